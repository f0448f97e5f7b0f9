"""Both sides at once: what was found, held against the truth and against proper baselines."""

from leakscope.measure.baseline import signal_free
from leakscope.measure.finding import RECOGNISABLE_DB, Finding, Scores, measure, score
from leakscope.measure.identity import Identification, reidentify
from leakscope.measure.image import (
    ImageScores,
    check_measurable,
    images,
    label_accuracy,
    matching_rate,
)
from leakscope.measure.lpips import Lpips
from leakscope.measure.statistics import Interval, difference, excess, interval, share
from leakscope.measure.text import TextScores, sentences
from leakscope.measure.trajectory import Straightness, straightness, walk

__all__ = [
    "RECOGNISABLE_DB",
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
