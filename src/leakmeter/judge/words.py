"""Formats numbers for sentences and tables."""

from __future__ import annotations

import math

from leakmeter.judge.evidence import Utility
from leakmeter.judge.results import ConfigurationResult, GuaranteeResult
from leakmeter.measure import share

WHOSE = {"client": "whole client", "example": "one image"}
"""What a guarantee hides the presence of."""


def percent(value: float) -> str:
    """Format a share in whole percent."""
    return f"{value:.0%}"


def spread(utility: Utility) -> str:
    """Format the lowest and highest accuracy of the repetitions; empty if there is only one."""
    if len(utility.accuracy) < 2:
        return ""
    return f"{100 * min(utility.accuracy):.0f} to {percent(max(utility.accuracy))}"


def learns(utility: Utility) -> bool:
    """Return whether the mean accuracy clearly beats always naming the most frequent class.

    By the lower bound for so many test images: repetitions share images, so they do not add to it.
    """
    mean = sum(utility.accuracy) / len(utility.accuracy)
    return share(round(mean * utility.test_images), utility.test_images).low > utility.chance


def size(count: int) -> str:
    """Format bytes in the largest unit with a digit before the point; empty for none."""
    if count <= 0:
        return ""
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= least:
            return f"{count / least:.3g} {unit}"
    return f"{count} B"


def epsilon(guarantee: GuaranteeResult | None) -> str:
    """Format the tighter epsilon; empty without a guarantee."""
    if guarantee is None:
        return ""
    return "∞" if guarantee.prv is None else f"{guarantee.prv:.3g}"


def promise(configuration: ConfigurationResult) -> str:
    """Put the guarantee into words; empty if it promises nothing."""
    guarantee = configuration.guarantee
    if guarantee is None or guarantee.prv is None:
        return ""
    return f"ε = {epsilon(guarantee)} at {scope(configuration)}"


def scope(configuration: ConfigurationResult) -> str:
    """Describe what a guarantee covers; empty without one."""
    guarantee = configuration.guarantee
    if guarantee is None:
        return ""
    times = "one round" if guarantee.rounds == 1 else f"{guarantee.rounds} rounds"
    return f"δ = {guarantee.delta:g} ({WHOSE[guarantee.protects]}, {times})"


def finite(value: float) -> float | None:
    """Return a number, or ``None`` if it is NaN or infinite."""
    return value if math.isfinite(value) else None
