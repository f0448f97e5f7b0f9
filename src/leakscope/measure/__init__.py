"""Both sides at once: what was found, held against the truth and against proper baselines."""

from leakscope.measure.baseline import signal_free
from leakscope.measure.finding import RECOGNISABLE_DB, Finding, Scores, measure
from leakscope.measure.identity import Identification, reidentify
from leakscope.measure.image import ImageScores, check_measurable, images, label_accuracy
from leakscope.measure.statistics import Interval, interval

__all__ = [
    "RECOGNISABLE_DB",
    "Finding",
    "Identification",
    "ImageScores",
    "Interval",
    "Scores",
    "check_measurable",
    "images",
    "interval",
    "label_accuracy",
    "measure",
    "reidentify",
    "signal_free",
]
