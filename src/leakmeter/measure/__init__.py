"""Compares what was found with the truth and with proper baselines."""

from leakmeter.measure.baseline import signal_free
from leakmeter.measure.finding import RECOGNIZABLE_DB, Finding, Scores, measure, score
from leakmeter.measure.identity import Identification, reidentify
from leakmeter.measure.image import (
    ImageScores,
    check_measurable,
    images,
    label_accuracy,
    matching_rate,
)
from leakmeter.measure.lpips import Lpips
from leakmeter.measure.statistics import Interval, difference, excess, interval, share
from leakmeter.measure.text import TextScores, sentences
from leakmeter.measure.trajectory import Straightness, straightness, walk

__all__ = [
    "RECOGNIZABLE_DB",
    "Finding",
    "Identification",
    "ImageScores",
    "Interval",
    "Lpips",
    "Scores",
    "Straightness",
    "TextScores",
    "check_measurable",
    "difference",
    "excess",
    "images",
    "interval",
    "label_accuracy",
    "matching_rate",
    "measure",
    "reidentify",
    "score",
    "sentences",
    "share",
    "signal_free",
    "straightness",
    "walk",
]
