"""Replay the client's training on the current guess, and follow the path it took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from leakscope.attack import optimizer
from leakscope.attack.problem import Problem
from leakscope.attack.reconstruction import Reconstruction
from leakscope.attack.solver import Variable
from leakscope.attack.trajectory import Trajectory, both_ends
from leakscope.errors import LeakscopeError, require
from leakscope.federated.local import check_batch
from leakscope.update import State, Update, under

ORDERS = 7_000_000_000
"""Seeds of replays begin here: the order of a client's examples must not be met by chance."""


@dataclass(frozen=True, kw_only=True)
class Retrace(Trajectory):
    """``sum_k P_k g(w(s_k), x, y)``: a quadrature of the gradient along the client's own path.

    The update is the sum of what the client's optimiser made of the gradients along its path, and
    the path follows from data and protocol. So every ``every`` iterations the client is replayed
    on the current dummies. Of the replay only the curvature is believed, for both ends are known:

        w(s) = w0 + s (wT - w0) + trust |u| / |u'| (w'(s) - w0 - s (w'(1) - w0))

    where ' marks the replay, u = w0 - wT, and ``trust = max(0, cos(u', u))``. Dummies equal to the
    client's data replay its path, but for the order of its examples, which is not known.

    P_k is what the optimiser does with a gradient of the steps around node k: 1 for plain SGD, the
    steps that its momentum adds, and for Adam the division by its replayed second moment; the less
    trust, the nearer each entry is to the mean of its tensor.

    Attributes:
        nodes: K, places on the path where a gradient is computed, at most one per step.
        every: iterations between two replays.
        damping: of Adam's division, as a share of its mean. Less is more exact at the end of the
            search, but leads it astray before (12.8 dB with 0.01, 17.9 with 0.3, one client).
    """

    nodes: int = 3
    every: int = 25
    damping: float = 0.3
    replays: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require("nodes", self.nodes, least=1)
        require("every", self.every, least=1)
        require("damping", self.damping)

    def variables(self, problem: Problem) -> dict[str, Variable]:
        """None, but a complaint if the client cannot be replayed."""
        both_ends(problem)
        _check(problem)
        return {}

    def refresh(self, problem: Problem, x: Tensor, y: Tensor, iteration: int) -> State:
        """Weights and factors of all nodes from a new replay, when it is due."""
        if iteration % self.every:
            return {}
        start, end = both_ends(problem)
        steps = problem.protocol.steps(problem.num_examples)
        nodes = quadrature(self.nodes, steps)
        replayed = replay(problem, x, y, nodes, damping=self.damping, seed=iteration)
        moved = {name: start[name] - replayed.end[name] for name in start}
        trust = _cosine(moved, problem.observed).clamp_min(0)
        ratio = trust * _length(problem.observed) / _length(moved).clamp_min(1e-30)
        diverged = not ratio.isfinite()  # then all that is left is the straight line
        found = {}
        for number, node in enumerate(nodes):
            found[f"{number}/share"] = ratio.new_tensor(node.share)
            share = node.place / steps
            for name, here in replayed.weights[number].items():
                line = start[name].lerp(end[name], share)
                factor = replayed.factors[number][name] / steps
                if diverged:
                    factor = torch.full_like(factor, node.share)
                else:
                    line = line + ratio * (here - start[name] + share * moved[name])
                    factor = factor.mean().lerp(factor, trust)
                found[f"{number}/weights/{name}"] = line
                found[f"{number}/factor/{name}"] = factor
        return found

    def predict(self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]) -> State:
        """The mean movement of a local step."""
        decay = problem.decay(len(x)) if problem.protocol.optimizer == "adamw" else 0.0
        total: State = {}
        for number in range(self.nodes):
            if f"{number}/share" not in theta:
                break  # fewer steps than nodes
            weights = under(dict(theta), f"{number}/weights/")
            factors = under(dict(theta), f"{number}/factor/")
            for name, gradient in problem.gradient(weights, x, y).items():
                part = factors[name] * gradient
                if decay:
                    part = part + decay * theta[f"{number}/share"] * weights[name]
                total[name] = total[name] + part if name in total else part
        return total


class Node(NamedTuple):
    """A place on the path of T steps.

    Attributes:
        place: steps done there; between two steps for a fraction.
        first: of the steps it stands for, counted from 0.
        last: behind these.
        share: of all steps.
    """

    place: float
    first: int
    last: int
    share: float


def quadrature(nodes: int, steps: int) -> list[Node]:
    """Gauss-Legendre nodes on the axis of ``steps`` steps, at most one per step."""
    if nodes >= steps:
        return [Node(step, step, step + 1, 1 / steps) for step in range(steps)]
    roots, weights = np.polynomial.legendre.leggauss(nodes)
    edges = np.rint(np.cumsum([0.0, *weights]) / 2 * steps).astype(int).tolist()
    # The gradient of step t is taken where t steps are done, half a step before its middle.
    places = ((roots + 1) / 2 * steps - 0.5).clip(0, steps - 1).tolist()
    return [
        Node(place, first, last, (last - first) / steps)
        for place, first, last in zip(places, edges[:-1], edges[1:], strict=True)
        if first < last
    ]


class Replay(NamedTuple):
    """The client's training on some data.

    Attributes:
        weights: at each node.
        factors: for each node, what its gradient adds to the movement, in units of the step size.
        end: the weights it ends with.
    """

    weights: list[State]
    factors: list[State]
    end: State


@torch.no_grad()
def replay(
    problem: Problem,
    x: Tensor,
    y: Tensor,
    nodes: Sequence[Node] = (),
    *,
    damping: float = 0.0,
    seed: int = 0,
) -> Replay:
    """Train as the client's protocol says.

    Args:
        problem: the update under attack.
        x: normalised images [N, C, H, W].
        y: labels [N] or class probabilities [N, classes].
        nodes: places of interest.
        damping: of the nodes' factors, see :func:`optimizer.gains`.
        seed: of the order of examples, which is not known.
    """
    protocol = problem.protocol
    assert protocol.epochs is not None
    assert protocol.batch_size is not None
    weights, buffers = problem.before, optimizer.fresh(protocol, problem.before)
    wanted = {round_(node.place) for node in nodes for round_ in (math.floor, math.ceil)}
    seen: dict[int, State] = {}
    carried = [0.0] * len(nodes)
    factors = [optimizer.no_gain(protocol, weights) for _ in nodes]
    order = torch.Generator().manual_seed(ORDERS + seed)
    number = 0
    for _ in range(protocol.epochs):
        shuffled = torch.randperm(len(x), generator=order).to(x.device)
        for batch in shuffled.split(protocol.batch_size):
            if number in wanted:
                seen[number] = weights
            gradient = problem.gradient(weights, x[batch], y[batch])
            number += 1
            weights, buffers = optimizer.step(protocol, weights, gradient, buffers, number)
            gains = optimizer.gains(protocol, buffers, number, damping) if nodes else {}
            for index, node in enumerate(nodes):
                own = float(node.first < number <= node.last)
                carried[index], gain = optimizer.momentum(protocol, carried[index], own)
                if gain:
                    for name, factor in factors[index].items():
                        factor += gain * gains[name] if gains else gain
    return Replay([_between(seen, node.place) for node in nodes], factors, weights)


def replay_score(
    model: nn.Module,
    update: Update,
    found: Reconstruction,
    *,
    orders: int = 3,
    device: torch.device | str | None = None,
) -> float:
    """How well training on ``found`` explains ``update``: 1 for exactly, 0 for not at all.

    The cosine between the movement of a replay of the client and the one observed, mean over some
    orders of the examples, since the client's is not known: with several batches an epoch even the
    truth has less than 1. It needs no ground truth and is comparable across attacks. For one
    gradient it compares gradients.
    """
    require("orders", orders, least=1)
    problem = Problem.of(model, update, device)
    expected = (problem.num_examples, *problem.shape)
    if found.images.shape != expected:
        raise LeakscopeError(
            f"found has images {tuple(found.images.shape)}, the update is of {expected}: "
            "score a reconstruction of this update"
        )
    x = problem.low.lerp(problem.high, found.images.to(problem.low))
    y = found.labels.to(x.device)
    if problem.after is None:
        return _cosine(problem.gradient(problem.before, x, y), problem.observed).item()
    _check(problem)
    scores = []
    for seed in range(orders):
        end = replay(problem, x, y, seed=seed).end
        moved = {name: start - end[name] for name, start in problem.before.items()}
        scores.append(_cosine(moved, problem.observed))
    return torch.stack(scores).mean().item()


def _check(problem: Problem) -> None:
    """Refuse an update whose client cannot be replayed."""
    protocol = problem.protocol
    protocol.need("lr", "epochs", "batch_size", "optimizer")
    assert protocol.batch_size is not None
    check_batch(problem.model, protocol, (problem.num_examples - 1) % protocol.batch_size + 1)


def _between(seen: Mapping[int, State], place: float) -> State:
    """The weights at ``place``, between those of two steps."""
    low, high = seen[math.floor(place)], seen[math.ceil(place)]
    return {name: tensor.lerp(high[name], place % 1) for name, tensor in low.items()}


def _length(state: State) -> Tensor:
    return torch.stack([tensor.square().sum() for tensor in state.values()]).sum().sqrt()


def _cosine(a: State, b: State) -> Tensor:
    dot = torch.stack([(a[name] * b[name]).sum() for name in b]).sum()
    return dot / (_length(a) * _length(b)).clamp_min(1e-30)
