"""The rule: only here is it decided whether an image, a client or a configuration leaks.

Let r be the
share of training images that an attack recognizes over all clients and b the same share for that
attack on an update without signal; let p and q be the shares that are picked out of their line-ups,
close or not. What leaked to the attack is r - b, or p - q if that is more and at least one half.
An attack ``leaks`` if r - b >= 1/2, ``leaks in part`` if anything leaked to it, else it ``could not
break it``: failing to break something does not make it safe. A configuration is judged by the worst
of its attacks, and counted by the one to which most leaked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from leakmeter.measure import Interval, excess, share

Level = Literal["leaks", "leaks in part", "could not break it", "not measured"]

LEVELS: tuple[Level, ...] = ("leaks", "leaks in part", "could not break it", "not measured")
"""All levels, the worst first."""


class Judged(BaseModel):
    """Base of what is stored in ``results.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Share(Judged):
    """``hits`` of ``total`` images, and the 95% interval of their share (Wilson)."""

    hits: int = Field(ge=0)
    total: int = Field(ge=1)
    share: float
    low: float
    high: float

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.hits > self.total:
            raise ValueError("hits exceed total")
        return self

    @classmethod
    def of(cls, hits: int, total: int) -> Self:
        """Compute the share with its interval."""
        mean, low, high = share(hits, total)
        return cls(hits=hits, total=total, share=mean, low=low, high=high)


class Leakage(Judged):
    """Share of images recognized beyond the baseline's, and its 95% interval (Newcombe)."""

    share: float
    low: float
    high: float


class Leak(Judged):
    """What leaked to an attack: the one number behind verdict, matrix, comparison and gate.

    Attributes:
        basis: ``recognized`` images, or those ``picked out`` of their line-ups.
        hits: images that the attack hit.
        baseline: hits of the same attack on noise in place of the update.
        total: the number of images.
        share: ``(hits - baseline) / total``; not above 0 if nothing leaked.
        low: lower bound of its 95% interval.
        high: upper bound of its 95% interval.
    """

    basis: Literal["recognized", "picked out"]
    hits: int
    baseline: int
    total: int
    share: float
    low: float
    high: float

    @classmethod
    def of(cls, basis: Literal["recognized", "picked out"], hits: Share, baseline: Share) -> Self:
        """Compute the leak from the counts."""
        found = excess(hits.hits, baseline.hits, hits.total)
        return cls(
            basis=basis,
            hits=hits.hits,
            baseline=baseline.hits,
            total=hits.total,
            share=found.mean,
            low=found.low,
            high=found.high,
        )

    @property
    def interval(self) -> Interval:
        """The share with its interval."""
        return Interval(self.share, self.low, self.high)


def leak(recognized: Leak, picked: Leak) -> Leak:
    """Return what leaked: the images recognized, or those picked out if that is more."""
    return picked if 2 * picked.share >= 1 and picked.share > recognized.share else recognized


def level(recognized: Leak, picked: Leak) -> Level:
    """Return the level that these leaks amount to."""
    if leak(recognized, picked).share <= 0:
        return "could not break it"
    # Recognizing half of the images is a leak, even if more images are picked out.
    return "leaks" if 2 * recognized.share >= 1 else "leaks in part"


def worst(levels: Iterable[Level]) -> Level:
    """Return the worst level of several attacks or several configurations."""
    return min(levels, key=LEVELS.index)
