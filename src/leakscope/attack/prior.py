"""What is known about images before any update is seen.

A prior may add a penalty to the objective, or restrict the images after every step, or both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attack.problem import Problem
from leakscope.errors import LeakscopeError


class Prior:
    """Base of all priors: no penalty, no restriction. Override either."""

    def penalty(self, x: Tensor, problem: Problem) -> Tensor:
        """A scalar added to the objective; ``x`` are normalised images [N, C, H, W]."""
        return x.new_zeros(())

    def project(self, x: Tensor, problem: Problem) -> Tensor:
        """The nearest admissible images to ``x``, applied after every step."""
        return x


@dataclass(frozen=True)
class TotalVariation(Prior):
    """``weight * (mean |dx| + mean |dy|)``: neighbouring pixels are alike (IG, equation 4)."""

    weight: float

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise LeakscopeError(f"total variation weight is {self.weight}: use 0 or more")

    def penalty(self, x: Tensor, problem: Problem) -> Tensor:
        """Anisotropic total variation of normalised images."""
        across = (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
        down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
        return self.weight * (across + down)


@dataclass(frozen=True)
class Box(Prior):
    """Pixels lie between black and white (IG, section 4)."""

    def project(self, x: Tensor, problem: Problem) -> Tensor:
        """Clip to the valid range in normalised space."""
        return torch.minimum(torch.maximum(x, problem.low), problem.high)
