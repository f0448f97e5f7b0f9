"""The rule: whether an image, a client, a configuration leaks is decided here and nowhere else.

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
"""The worst first."""


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
        """With its interval."""
        mean, low, high = share(hits, total)
        return cls(hits=hits, total=total, share=mean, low=low, high=high)


class Leakage(Judged):
    """Share of images recognized beyond the baseline's, and its 95% interval (Newcombe)."""

    share: float
    low: float
    high: float


class Leak(Judged):
    """What leaked to an attack: the one number that verdict, matrix, comparison and gate go by.

    Attributes:
        basis: ``recognized`` images, or those ``picked out`` of their line-ups.
        hits: of the attack.
        baseline: of the same attack on noise in place of the update.
        total: images.
        share: ``(hits - baseline) / total``; not above 0 if nothing leaked.
        low: bound of its 95% interval.
        high: likewise.
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
        """From the counts."""
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
        """As the statistics have it."""
        return Interval(self.share, self.low, self.high)


def leak(recognized: Leak, picked: Leak) -> Leak:
    """What leaked: the images that were recognized, or those picked out if that is more."""
    return picked if 2 * picked.share >= 1 and picked.share > recognized.share else recognized


def level(recognized: Leak, picked: Leak) -> Level:
    """What that means for clients it is tried on."""
    if leak(recognized, picked).share <= 0:
        return "could not break it"
    # Half of the images recognized is a leak, though yet more may be picked out.
    return "leaks" if 2 * recognized.share >= 1 else "leaks in part"


def worst(levels: Iterable[Level]) -> Level:
    """Of several attacks, or of several configurations."""
    return min(levels, key=LEVELS.index)
