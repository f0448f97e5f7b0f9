"""Confidence intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import bootstrap
from torch import Tensor


class Interval(NamedTuple):
    """A mean and the bounds of its confidence interval."""

    mean: float
    low: float
    high: float


def interval(values: Tensor, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Mean of ``values`` [N] with a percentile-bootstrap interval over them (10,000 resamples).

    A single value says nothing about spread: its bounds are NaN.
    """
    array = values.detach().cpu().double().numpy()
    mean = float(array.mean())
    if len(array) < 2:
        return Interval(mean, float("nan"), float("nan"))
    found = bootstrap(
        (array,),
        np.mean,
        n_resamples=9_999,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(mean, float(found.low), float(found.high))
