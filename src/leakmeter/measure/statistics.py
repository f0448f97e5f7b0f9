"""Confidence intervals."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from leakmeter.errors import require

FEWEST_FOR_BOOTSTRAP = 20


class Interval(NamedTuple):
    """A mean or share and the bounds of its confidence interval."""

    mean: float
    low: float
    high: float


def interval(values: Tensor, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Mean of ``values`` [N] with a confidence interval, as if they were independent.

    A percentile bootstrap (9,999 resamples) from 20 values on. With fewer it is too narrow (three
    values cover the mean three times out of four), so Student's t takes its place. A single value
    says nothing about spread: its bounds are NaN.
    """
    from scipy import stats  # takes half a second, which workers need not spend

    array = values.detach().cpu().double().numpy()
    mean = float(array.mean())
    if len(array) < 2:
        return Interval(mean, float("nan"), float("nan"))
    if len(array) < FEWEST_FOR_BOOTSTRAP:
        error = float(stats.sem(array))
        half = error * float(stats.t.ppf((1 + confidence) / 2, len(array) - 1))
        return Interval(mean, mean - half, mean + half)
    found = stats.bootstrap(
        (array,),
        np.mean,
        n_resamples=9_999,
        batch=1_000,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(mean, float(found.low), float(found.high))


def share(hits: int, total: int, confidence: float = 0.95) -> Interval:
    """``hits / total`` with its Wilson score interval, as if the trials were independent.

    Unlike :func:`interval` of zeros and ones it says something where all trials agree: none of 10
    is 0 to 0.28.
    """
    from scipy import stats

    require("total", total, least=1)
    require("hits", hits, most=total)
    found = stats.binomtest(hits, total).proportion_ci(confidence, method="wilson")
    return Interval(hits / total, float(found.low), float(found.high))


def difference(first: Interval, second: Interval) -> Interval:
    """``first - second`` of two independent estimates, from their own intervals.

    Each bound is as far from the difference as the two distances that make it up, put together
    like the sides of a right angle (MOVER, Zou and Donner 2008). Of two Wilson intervals it is
    Newcombe's (1998, method 10), which holds for few trials and for shares of 0 and 1, too.
    """
    mean = first.mean - second.mean
    below = math.hypot(first.mean - first.low, second.high - second.mean)
    above = math.hypot(first.high - first.mean, second.mean - second.low)
    return Interval(mean, mean - below, mean + above)


def excess(hits: int, baseline: int, total: int) -> Interval:
    """The share of ``total`` images that was hit beyond the baseline's, with its 95% interval."""
    return difference(share(hits, total), share(baseline, total))
