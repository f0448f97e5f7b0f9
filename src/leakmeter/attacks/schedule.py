"""How step sizes change over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from leakmeter.errors import require


class Schedule(Protocol):
    """Scales all step sizes as the run goes on."""

    def __call__(self, iteration: int, total: int) -> float:
        """The multiplier in ``iteration``, counted from 0."""
        ...

    def next_stage(self, iteration: int, total: int) -> int:
        """Return the next iteration at which the rate changes, at most ``total``."""
        ...


class Smooth:
    """Base of the schedules without stages."""

    def next_stage(self, iteration: int, total: int) -> int:
        """Return the end of the run."""
        return total


@dataclass(frozen=True)
class StepDecay:
    """Multiply the step size by ``factor`` at each of the given shares of the run.

    The defaults are IG's (appendix C), also used by SME.
    """

    factor: float = 0.1
    at: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)

    def __post_init__(self) -> None:
        require("factor of the decay", self.factor, above=0)

    def __call__(self, iteration: int, total: int) -> float:
        """``factor`` to the power of the milestones passed."""
        return self.factor ** sum(iteration / total >= milestone for milestone in self.at)

    def next_stage(self, iteration: int, total: int) -> int:
        """The first iteration past the next milestone."""
        starts = [math.ceil(milestone * total) for milestone in self.at]
        return min((start for start in starts if start > iteration), default=total)


@dataclass(frozen=True)
class ExponentialDecay(Smooth):
    """``factor ** (iteration / every)``, the schedule of DLFA."""

    factor: float
    every: int

    def __post_init__(self) -> None:
        require("factor of the decay", self.factor, above=0)
        require("every", self.every, least=1)

    def __call__(self, iteration: int, total: int) -> float:
        """The multiplier, whatever the length of the run."""
        return float(self.factor ** (iteration / self.every))


@dataclass(frozen=True)
class CosineDecay(Smooth):
    """Half a cosine from 1 to 0 over the run (FedLeak)."""

    def __call__(self, iteration: int, total: int) -> float:
        """The multiplier."""
        return 0.5 * (1 + math.cos(math.pi * iteration / total))


@dataclass(frozen=True)
class LinearDecay(Smooth):
    """A straight line from 1 to 0, which suits short runs best (docs/retrace_settings.md)."""

    def __call__(self, iteration: int, total: int) -> float:
        """The multiplier."""
        return 1 - iteration / total


@dataclass(frozen=True)
class Plateau:
    """Move on to the schedule's next stage, or stop after its last, when the match stops falling.

    Attributes:
        window: iterations whose mean is compared with that of as many before them.
        gain: the share by which the mean must have fallen to continue.
    """

    window: int = 50
    gain: float = 0.01

    def __post_init__(self) -> None:
        require("window", self.window, least=1)
        require("gain", self.gain, most=1)

    def reached(self, matches: Tensor) -> bool:
        """Return whether the ``matches`` of a stage so far [iterations] have stopped falling."""
        if len(matches) % self.window or len(matches) < 2 * self.window:
            return False
        before, now = matches[-2 * self.window :].view(2, -1).mean(1).tolist()
        return bool(now > (1 - self.gain) * before)
