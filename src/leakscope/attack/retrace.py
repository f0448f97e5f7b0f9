"""Replay the client's training on the current guess, and follow the path it took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from leakscope.attack import optimizer
from leakscope.attack.problem import Problem
from leakscope.attack.reconstruction import Reconstruction
from leakscope.attack.trajectory import Trajectory, both_ends
from leakscope.errors import require
from leakscope.update import State, Update, under


@dataclass(frozen=True, kw_only=True)
class Retrace(Trajectory):
    """``sum_k P_k g(w(s_k), x, y)``: a quadrature of the gradient along the client's own path.

    The update is the sum of what the client's optimiser made of the gradients along its path, and
    the path follows from data and protocol. So every ``every`` iterations the client is replayed
    on the current dummies. Of the replay only the curvature is believed, for both ends are known:

        w(s) = w0 + s (wT - w0) + trust |u| / |u'| (w'(s) - w0 - s (w'(1) - w0))

    where ' marks the replay, u = w0 - wT, and ``trust = max(0, cos(u', u))``. Dummies equal to the
    client's data replay its path, and then the prediction has no error but the quadrature's.

    P_k is what the optimiser does with a gradient of the steps around node k: 1 for plain SGD, the
    steps that its momentum adds, and for Adam the division by its replayed second moment.

    Attributes:
        nodes: K, places on the path where a gradient is computed, at most one per step.
        every: iterations between two replays.
        damping: of Adam's division, as a share of its mean.
    """

    nodes: int = 3
    every: int = 25
    damping: float = 1e-3

    def __post_init__(self) -> None:
        require("nodes", self.nodes, least=1)
        require("every", self.every, least=1)
        require("damping", self.damping)

    def refresh(self, problem: Problem, x: Tensor, y: Tensor, iteration: int, total: int) -> State:
        """Weights and factors of all nodes from a new replay, when it is due."""
        if iteration % self.every:
            return {}
        start, end = both_ends(problem)
        steps = problem.protocol.steps(problem.num_examples)
        nodes = quadrature(self.nodes, steps)
        replayed = replay(problem, x, y, nodes, damping=self.damping, seed=iteration)
        moved = {name: start[name] - replayed.end[name] for name in start}
        trust = (1 - _distance(moved, problem.observed)).clamp_min(0)
        ratio = trust * _length(problem.observed) / _length(moved).clamp_min(1e-30)
        found = {}
        for number, node in enumerate(nodes):
            share = node.place / steps
            for name, here in replayed.weights[number].items():
                bend = here - start[name] + share * moved[name]
                line = start[name].lerp(end[name], share)
                found[f"{number}/weights/{name}"] = line + ratio * bend
                factor = replayed.factors[number][name] / steps
                found[f"{number}/factor/{name}"] = factor.mean().lerp(factor, trust)
        return found

    def predict(self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]) -> State:
        """The mean movement of a local step."""
        decay = problem.protocol.weight_decay if problem.protocol.optimizer == "adamw" else 0.0
        total: State = {}
        nodes = quadrature(self.nodes, problem.protocol.steps(problem.num_examples))
        for number, node in enumerate(nodes):
            weights = under(dict(theta), f"{number}/weights/")
            factors = under(dict(theta), f"{number}/factor/")
            for name, gradient in problem.gradient(weights, x, y).items():
                part = factors[name] * gradient
                if decay:
                    part = part + decay * node.share * weights[name]
                total[name] = total[name] + part if name in total else part
        return total


class Node(NamedTuple):
    """A place on the path of T steps.

    Attributes:
        place: steps done there.
        first: of the steps it stands for, counted from 0.
        last: behind these.
        share: of all steps.
    """

    place: int
    first: int
    last: int
    share: float


def quadrature(nodes: int, steps: int) -> list[Node]:
    """Gauss-Legendre nodes on the axis of ``steps`` steps, at most one per step."""
    nodes = min(nodes, steps)
    if nodes == steps:
        return [Node(step, step, step + 1, 1 / steps) for step in range(steps)]
    roots, weights = np.polynomial.legendre.leggauss(nodes)
    edges = np.rint(np.cumsum([0.0, *weights]) / 2 * steps).astype(int).tolist()
    places = np.rint((roots + 1) / 2 * steps - 0.5).astype(int).tolist()
    return [
        Node(place, first, last, (last - first) / steps)
        for place, first, last in zip(places, edges[:-1], edges[1:], strict=True)
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
    nodes: Iterable[Node] = (),
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
    protocol.need("lr", "epochs", "batch_size", "optimizer")
    assert protocol.epochs is not None
    assert protocol.batch_size is not None
    nodes = list(nodes)
    weights, buffers = problem.before, optimizer.fresh(protocol, problem.before)
    at: dict[int, State] = {}
    shares = [0.0] * len(nodes)
    factors = [optimizer.no_gain(protocol, weights) for _ in nodes]
    order = torch.Generator().manual_seed(seed)
    number = 0
    for _ in range(protocol.epochs):
        shuffled = torch.randperm(len(x), generator=order).to(x.device)
        for batch in shuffled.split(protocol.batch_size):
            for node in nodes:
                if node.place == number:
                    at[number] = weights
            gradient = problem.gradient(weights, x[batch], y[batch])
            number += 1
            weights, buffers = optimizer.step(protocol, weights, gradient, buffers, number)
            gains = optimizer.gains(protocol, buffers, number, damping)
            for index, node in enumerate(nodes):
                inside = float(node.first < number <= node.last)
                shares[index], gain = optimizer.momentum(protocol, shares[index], inside)
                if gain:
                    for name, factor in factors[index].items():
                        factor += gain * gains[name] if gains else gain
    return Replay([at[node.place] for node in nodes], factors, weights)


def replay_score(
    model: nn.Module,
    update: Update,
    found: Reconstruction,
    *,
    device: torch.device | str | None = None,
) -> float:
    """How well training on ``found`` explains ``update``, from 1 (exactly) down to -1.

    The cosine between the movement of a replay of the client and the one observed. It needs no
    ground truth and is comparable across attacks. For one gradient it compares gradients.
    """
    problem = Problem.of(model, update, device)
    images = found.images.to(problem.low)
    x = problem.low + images * (problem.high - problem.low)
    y = found.labels.to(x.device)
    if problem.after is None:
        moved = problem.gradient(problem.before, x, y)
    else:
        end = replay(problem, x, y).end
        moved = {name: start - end[name] for name, start in problem.before.items()}
    return float(1 - _distance(moved, problem.observed))


def _length(state: State) -> Tensor:
    return torch.stack([tensor.square().sum() for tensor in state.values()]).sum().sqrt()


def _distance(a: State, b: State) -> Tensor:
    """The cosine distance of two movements."""
    dot = torch.stack([(a[name] * b[name]).sum() for name in b]).sum()
    return 1 - dot / (_length(a) * _length(b)).clamp_min(1e-30)
