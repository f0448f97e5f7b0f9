"""Numbers as sentences and tables have them."""

from __future__ import annotations

import math

from leakmeter.judge.evidence import Utility
from leakmeter.judge.results import ConfigurationResult, GuaranteeResult
from leakmeter.measure import share

WHOSE = {"client": "whole client", "example": "one image"}
"""What a guarantee hides the presence of."""


def percent(value: float) -> str:
    """A share in whole percent."""
    return f"{value:.0%}"


def spread(utility: Utility) -> str:
    """Lowest and highest accuracy of the repetitions; empty if there is one."""
    if len(utility.accuracy) < 2:
        return ""
    return f"{100 * min(utility.accuracy):.0f} to {percent(max(utility.accuracy))}"


def learns(utility: Utility) -> bool:
    """Whether the mean accuracy can be told apart from always naming the most frequent class.

    By the lower bound for so many test images: repetitions share images, so they do not add to it.
    """
    mean = sum(utility.accuracy) / len(utility.accuracy)
    return share(round(mean * utility.test_images), utility.test_images).low > utility.chance


def size(count: int) -> str:
    """Bytes in the largest unit that keeps a digit before the point; empty for none."""
    if count <= 0:
        return ""
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= least:
            return f"{count / least:.3g} {unit}"
    return f"{count} B"


def epsilon(guarantee: GuaranteeResult | None) -> str:
    """The tighter epsilon; empty without a guarantee."""
    if guarantee is None:
        return ""
    return "∞" if guarantee.prv is None else f"{guarantee.prv:.3g}"


def promise(configuration: ConfigurationResult) -> str:
    """The guarantee in words; empty if there is none that promises anything."""
    guarantee = configuration.guarantee
    if guarantee is None or guarantee.prv is None:
        return ""
    return f"ε = {epsilon(guarantee)} at {scope(configuration)}"


def scope(configuration: ConfigurationResult) -> str:
    """What a guarantee is about; empty without one."""
    guarantee = configuration.guarantee
    if guarantee is None:
        return ""
    times = "one round" if guarantee.rounds == 1 else f"{guarantee.rounds} rounds"
    return f"δ = {guarantee.delta:g} ({WHOSE[guarantee.protects]}, {times})"


def finite(value: float) -> float | None:
    """A number, or ``None`` for what is none or infinite."""
    return value if math.isfinite(value) else None
