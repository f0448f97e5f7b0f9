"""Both sides at once: what was found, held against the truth and against proper baselines."""

from leakscope.measure.baseline import signal_free
from leakscope.measure.finding import RECOGNISABLE_DB, Finding, Scores, measure
from leakscope.measure.identity import Identification, reidentify
from leakscope.measure.image import ImageScores, images, label_accuracy
from leakscope.measure.statistics import Interval, interval

__all__ = [
    "RECOGNISABLE_DB",
    "Finding",
    "Identification",
    "ImageScores",
    "Interval",
    "Scores",
    "images",
    "interval",
    "label_accuracy",
    "measure",
    "reidentify",
    "signal_free",
]
