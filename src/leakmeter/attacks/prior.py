"""What is known about images before any update is seen.

A prior may add a penalty to the objective, or restrict the images after every step, or both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from leakmeter.attacks.problem import Problem
from leakmeter.errors import require


class Prior:
    """Base of all priors: no penalty, no restriction. Override either."""

    def penalty(self, x: Tensor, problem: Problem) -> Tensor:
        """Return a scalar added to the objective; ``x`` are normalized images [N, C, H, W]."""
        return x.new_zeros(())

    def project(self, x: Tensor, problem: Problem) -> Tensor:
        """Return the nearest admissible images to ``x``; applied after every step."""
        return x


@dataclass(frozen=True)
class Weighted(Prior):
    """Base of the priors that are a penalty times a ``weight``."""

    weight: float

    def __post_init__(self) -> None:
        require(f"weight of {type(self).__name__}", self.weight)


@dataclass(frozen=True)
class TotalVariation(Weighted):
    """``weight * (mean |dx| + mean |dy|)``: neighboring pixels are alike (IG, equation 4).

    Attributes:
        summed: whether to sum over the images instead of taking their mean. The more images share
            an update, the less it says about each, and the more must be assumed.
    """

    summed: bool = False

    def penalty(self, x: Tensor, problem: Problem) -> Tensor:
        """Anisotropic total variation of normalized images."""
        across = (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
        down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
        return self.weight * (across + down) * (len(x) if self.summed else 1)


@dataclass(frozen=True)
class SquaredVariation(Weighted):
    """``weight * sum (dx^2 + dy^2)`` with wrap-around, mean over images: DLFA's total variation."""

    def penalty(self, x: Tensor, problem: Problem) -> Tensor:
        """Return squared differences of neighbors; opposite edges count as neighbors, too."""
        gaps = [(x - x.roll(1, axis)).square() for axis in (-1, -2)]
        return self.weight * (gaps[0] + gaps[1]).sum((1, 2, 3)).mean()


@dataclass(frozen=True)
class SoftBox(Weighted):
    """``weight * sum excess^2`` of pixels outside [0, 1], mean over images: DLFA's clip penalty."""

    def penalty(self, x: Tensor, problem: Problem) -> Tensor:
        """Squared distance of the pixels, not normalized, to the valid range."""
        pixels = problem.pixels(x)
        return self.weight * (pixels - pixels.clamp(0, 1)).square().sum((1, 2, 3)).mean()


@dataclass(frozen=True)
class EpochOrder(Weighted):
    """Every epoch has the same images in another order (DLFA).

    ``weight`` times the mean over all pairs of epochs of the mean squared difference between their
    summaries, which do not depend on order: the mean image or, with ``filters``, the largest
    response at every pixel to that many random 3x3 filters.
    """

    filters: int = 0

    def penalty(self, x: Tensor, problem: Problem) -> Tensor:
        """Return the spread of the epochs' summaries; ``x`` holds all epochs' dummies in turn."""
        epochs = len(x) // problem.num_examples
        if self.filters:
            x = functional.conv2d(x, _random_filters(self.filters, x.shape[1]).to(x), padding=1)
        each = x.unflatten(0, (epochs, problem.num_examples))
        summary: Tensor = each.amax(1) if self.filters else each.mean(1)
        # The mean of (a - b)^2 over all pairs is twice the variance.
        return self.weight * 2 * summary.var(0, correction=0).mean()


@lru_cache(maxsize=4)
def _random_filters(count: int, channels: int) -> Tensor:
    """[count, channels, 3, 3], always the same; drawn once, not in every iteration."""
    generator = torch.Generator().manual_seed(0)
    filters = torch.randn((count, channels, 3, 3), generator=generator)
    return filters / math.sqrt(9 * channels)


@dataclass(frozen=True)
class Box(Prior):
    """Pixels lie between black and white (IG, section 4)."""

    def project(self, x: Tensor, problem: Problem) -> Tensor:
        """Clip to the valid range in normalized space."""
        return torch.minimum(torch.maximum(x, problem.low), problem.high)
