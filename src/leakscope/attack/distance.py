"""How far the predicted movement of the weights is from the observed one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from leakscope.update import State


class Distance(Protocol):
    """Maps two sets of tensors of the same names and shapes to a scalar."""

    sees_scale: bool
    """Whether it must be given the mean gradient of a local step, not just its direction."""

    def __call__(self, predicted: State, observed: State) -> Tensor:
        """The distance, a scalar tensor, zero when both agree."""
        ...


@dataclass(frozen=True)
class Cosine:
    """``1 - <a, b> / (|a| |b|)`` over all parameters together (IG, equation 4; L_sim in SME).

    Blind to scale, so the step size and the number of steps need not be known.
    """

    sees_scale = False

    def __call__(self, predicted: State, observed: State) -> Tensor:
        """One minus the cosine of the angle between the two."""
        pairs = [(predicted[name], observed[name]) for name in observed]
        dot = torch.stack([(a * b).sum() for a, b in pairs]).sum()
        norms = [
            torch.stack([tensor.square().sum() for tensor in side]).sum().sqrt()
            for side in zip(*pairs, strict=True)
        ]
        return 1 - dot / (norms[0] * norms[1])


@dataclass(frozen=True)
class Euclidean:
    """``|a - b|^2`` summed over all tensors (DLG, equation 1).

    Sees scale: weights that were sent back are first turned into the mean gradient of a local
    step, for which the client's step size and number of steps must be known.
    """

    sees_scale = True

    def __call__(self, predicted: State, observed: State) -> Tensor:
        """The squared difference."""
        return torch.stack([(predicted[n] - observed[n]).square().sum() for n in observed]).sum()
