"""Distances between the predicted movement of the weights and the observed one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from leakmeter.attacks.layers import LayerWeights
from leakmeter.attacks.problem import Problem
from leakmeter.errors import LeakmeterError, require
from leakmeter.state import State

Compare = Callable[[State], Tensor]
"""Maps a predicted movement to its distance from the observed one, a scalar, zero if equal."""


class Distance(Protocol):
    """Compares movements of the weights; whatever does not change is prepared once."""

    @property
    def sees_scale(self) -> bool:
        """Whether length matters; if so, the client's step size and steps must be known."""
        ...

    def against(self, problem: Problem) -> Compare:
        """Return the function that compares with what was observed."""
        ...


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum()


def _factors(layers: LayerWeights | None, problem: Problem) -> dict[str, float]:
    return dict.fromkeys(problem.observed, 1.0) if layers is None else layers.of(problem)


@dataclass(frozen=True)
class Cosine:
    """``1 - sum a_l <p_l, o_l> / (sqrt(sum a_l |p_l|^2) sqrt(sum a_l |o_l|^2))``.

    With all layer weights a_l equal it is IG's equation 4 and SME's L_sim; with others AGIC's
    equation 6. Blind to scale, so the step size and the number of steps need not be known.
    """

    layers: LayerWeights | None = None
    sees_scale: ClassVar[bool] = False

    def against(self, problem: Problem) -> Compare:
        """The observed direction at unit length."""
        weight = _factors(self.layers, problem)
        seen = problem.observed
        length = _total([weight[n] * seen[n].square().sum() for n in seen]).sqrt()
        target = {name: tensor * (weight[name] / length) for name, tensor in seen.items()}

        def compare(predicted: State) -> Tensor:
            dot = _total([(predicted[name] * target[name]).sum() for name in target])
            norm = _total([weight[name] * predicted[name].square().sum() for name in target])
            return 1 - dot / norm.sqrt()

        return compare


@dataclass(frozen=True)
class Euclidean:
    """``sum a_l |p_l - o_l|^2`` over all tensors (DLG, equation 1).

    This depends on scale: returned weights are first turned into the mean gradient of a local
    step, so the client's step size and number of steps must be known.

    Attributes:
        layers: the weights a_l; 1 by default.
        summed: compare sums over all local steps and divide by their number, as DLFA does.
    """

    layers: LayerWeights | None = None
    summed: bool = False
    sees_scale: ClassVar[bool] = True

    def against(self, problem: Problem) -> Compare:
        """The mean gradient of a step."""
        weight, target = _factors(self.layers, problem), problem.mean_gradient()
        # |T p - T o|^2 / T = T |p - o|^2
        steps = problem.protocol.steps(problem.num_examples) if self.summed else 1

        def compare(predicted: State) -> Tensor:
            return steps * _total(
                [weight[n] * (predicted[n] - target[n]).square().sum() for n in target]
            )

        return compare


@dataclass(frozen=True)
class GaussianKernel:
    """``sum Q_l (1 - exp(-(p - o)^2 / sigma_l^2))``, ``sigma_l^2 = Var(o_l)`` (SAPAG, equation 4).

    The norm is taken element by element and summed, so that large gradients cannot drown out the
    many small ones. Other readings of the paper's norm fail on one of its two initializations.
    """

    layers: LayerWeights | None = None
    sees_scale: ClassVar[bool] = True

    def against(self, problem: Problem) -> Compare:
        """The mean gradient of a step and the width of each layer's kernel."""
        weight, target = _factors(self.layers, problem), problem.mean_gradient()
        spread = {
            name: tensor.var(correction=0).clamp_min(1e-30) for name, tensor in target.items()
        }

        def compare(predicted: State) -> Tensor:
            return _total(
                [
                    weight[n] * -torch.expm1(-(predicted[n] - target[n]).square() / spread[n]).sum()
                    for n in target
                ]
            )

        return compare


@dataclass(frozen=True)
class AbsoluteCosine:
    """The cosine distance plus ``|p - o|_1 / |o|_1`` with both at unit length (FedLeak).

    Divided by ``|o|_1`` both terms lie between 0 and about 2, whatever the size of the network.
    """

    sees_scale: ClassVar[bool] = False

    def against(self, problem: Problem) -> Compare:
        """The observed direction at unit length."""
        cosine = Cosine().against(problem)
        seen = problem.observed
        length = _total([tensor.square().sum() for tensor in seen.values()]).sqrt()
        target = {name: tensor / length for name, tensor in seen.items()}
        size = _total([tensor.abs().sum() for tensor in target.values()])

        def compare(predicted: State) -> Tensor:
            norm = _total([predicted[name].square().sum() for name in target]).sqrt()
            gaps = [(predicted[name] / norm - target[name]).abs().sum() for name in target]
            return cosine(predicted) + _total(gaps) / size

        return compare


@dataclass(frozen=True)
class Partial:
    """Another distance on the largest entries alone: a share ``keep`` of every tensor (FedLeak)."""

    distance: Distance
    keep: float

    def __post_init__(self) -> None:
        require("keep", self.keep, above=0, most=1)

    @property
    def sees_scale(self) -> bool:
        """The same as for the inner distance."""
        return self.distance.sees_scale

    def against(self, problem: Problem) -> Compare:
        """Return the inner distance with the rest of both sides set to zero."""
        masks = {name: _largest(tensor, self.keep) for name, tensor in problem.observed.items()}
        kept = {name: tensor * masks[name] for name, tensor in problem.observed.items()}
        inner = self.distance.against(replace(problem, observed=kept))
        return lambda predicted: inner({name: predicted[name] * masks[name] for name in masks})


def as_sent(distance: Distance, problem: Problem) -> Compare:
    """Return the comparison for an update that was encoded before it was sent.

    The server decodes updates, so it knows how they were encoded: falsified tensors and omitted
    entries count on neither side. Rounding needs no such care. Its errors are nearly random, and
    the cosine averages them out; rounding the prediction as well, or ignoring errors within half a
    step, lost 3 to 6 dB at 4 bits and as much at 1.
    """
    protocol = problem.protocol
    honest = {n: t for n, t in problem.observed.items() if n not in protocol.distorted}
    if not honest:
        raise LeakmeterError("protocol.distorted names all that was sent: nothing is left to match")
    compare = distance.against(replace(problem, observed=honest))
    if not protocol.sparse:
        return compare
    kept = {name: (seen != 0).to(seen) for name, seen in honest.items()}
    return lambda predicted: compare({name: predicted[name] * kept[name] for name in kept})


def _largest(tensor: Tensor, share: float) -> Tensor:
    """Return 1 for the largest ``share`` of entries by magnitude (at least one), else 0."""
    count = max(1, round(share * tensor.numel()))
    chosen = tensor.abs().flatten().topk(count).indices
    return torch.zeros_like(tensor).flatten().index_fill(0, chosen, 1.0).view_as(tensor)
