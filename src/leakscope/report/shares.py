"""Differences of shares, with intervals."""

from __future__ import annotations

import math

from leakscope.measure import Interval, share


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
