"""Replays the client's training on the current guess and follows the path it took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from leakmeter.attacks import client_optimizer
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.replay import Node, check_replay, replay
from leakmeter.attacks.simulation import coarse
from leakmeter.attacks.solver import Moment, Phase, Variable
from leakmeter.attacks.trajectory import Trajectory, both_ends
from leakmeter.errors import require
from leakmeter.state import State, cosine, mean, norm, under

MEAN_OF = 4
"""Replays whose mean the end is compared by: one order of the examples differs from the mean of all
as much as the client's own, and with uneven batches that costs more than the end gains."""

ROUGH, GROWN, END = "rough", "grown", "end"
"""The phases: one place on the path, all of them, and the path differentiated through."""

SIMILAR = 0.9
"""Cosine with the replay above which a few long steps show how the path depends on the images."""


@dataclass(frozen=True, kw_only=True)
class Retrace(Trajectory):
    """The client's optimizer on the gradients ``g(w(s_k), x, y)`` at places of its own path.

    The update is the sum of what the client's optimizer made of the gradients along its path, and
    the path follows from data and protocol. So every ``every`` iterations the client is replayed
    on the current dummies. Only the replay's curvature is used because both ends are known::

        w(s) = w0 + s (wT - w0) + trust |u| / |u'| (w'(s) - w0 - s (w'(1) - w0))

    where ``'`` marks the replay, ``u = w0 - wT``, and ``trust = max(0, cos(u', u))``. Dummies equal
    to the client's data replay its path, except for the order of its examples, which is unknown.
    So once the dummies are good, part of the gap at the end comes from the order alone and must not
    be spread over the path: with K places, ``w(s)`` is halfway between this and ``w'(s)``.

    The gradients at K places stand for those of the steps around them (Gauss-Legendre). For plain
    SGD they are summed up; momentum adds to each what it carries over; for Adam they are divided
    by the roots of the second moments that they themselves make up. This is differentiated
    through, unlike the path.

    In the end the path is differentiated through as well: what counts then is the replay's own
    update, and how it changes with the images is taken from a client that takes few long steps::

        predicted(x) = coarse(x) + replayed(x') - coarse(x')

    where ``x'`` are the images at the last replay. There are several replays in different orders,
    since their mean is nearest to the client's. With Adam, long steps do not add up like short
    ones, so its clients get no such end.

    Attributes:
        nodes: K, places on the path where a gradient is computed, at most one per step.
        every: iterations between two replays.
        grow: the place on the schedule from which there are K; before that, while the images are
            rough, a single one suffices, in a K-th of the time.
        unroll: the place from which the path is differentiated through, if long steps lead where
            the replay does; never by default. Replays are then three times as frequent.
        strides: the number of long steps that this takes.
        damping: added to what Adam divides by, as a share of the mean gradient of the tensor.
            Without it, Adam's movement hardly depends on the size of a gradient, which leaves no
            slope to follow.
    """

    nodes: int = 3
    every: int = 25
    grow: int = 0
    unroll: int | None = None
    strides: int = 8
    damping: float = 0.1
    replays: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require("nodes", self.nodes, least=1)
        require("every", self.every, least=1)
        require("grow", self.grow)
        if self.unroll is not None:
            require("unroll", self.unroll)
        require("strides", self.strides, least=1)
        require("damping", self.damping)

    def variables(self, problem: Problem) -> dict[str, Variable]:
        """Return none, but raise an error if the client cannot be replayed."""
        both_ends(problem)
        check_replay(problem)
        return {}

    def during(self, phase: str) -> Trajectory:
        """Return the trajectory of the phase; at the end it differentiates through the path."""
        return Unrolled(self.strides) if phase == END else self

    def refresh(
        self, problem: Problem, x: Tensor, y: Tensor, phase: Phase, now: Moment
    ) -> Phase | None:
        """Return the weights at all nodes: first on the straight line, then from each replay due.

        Replaying dummies that are still noise would tell nothing, so the first replay comes after
        a third of the interval. At the end, return what long steps miss of the replay instead.
        """
        if self.unroll is not None and END in phase.names:
            due = (now.done - self.unroll) % max(1, self.every // 3) == 0
            missed = Unrolled(self.strides).missed(problem, x, y, now.done) if due else {}
            return Phase((END,), missed) if missed else None
        if self.unroll in now.reached and not problem.adaptive:
            missed = Unrolled(self.strides).missed(problem, x, y, now.done, least=SIMILAR)
            if missed:
                return Phase((END,), missed)
        due = now.done == 0 or self.grow in now.reached or now.done % self.every == self.every // 3
        if not due:
            return None
        grown = now.reached.stop > self.grow
        name = GROWN if grown else ROUGH
        return Phase((name,), self._path(problem, x, y, now.done, grown))

    def _path(self, problem: Problem, x: Tensor, y: Tensor, iteration: int, grown: bool) -> State:
        """Return the weights at the nodes of the path, at all of them once it has ``grown``."""
        start, end = both_ends(problem)
        steps = problem.protocol.steps(problem.num_examples)
        nodes = quadrature(self.nodes if grown else 1, steps)
        first, second = client_optimizer.mixing(
            problem.protocol, [(n.first, n.last) for n in nodes]
        )
        shares = torch.tensor([node.share for node in nodes])
        found = {"first": first.to(x), "second": second.to(x), "shares": shares.to(x)}
        for number, node in enumerate(nodes):
            for name, tensor in start.items():
                found[f"{number}/{name}"] = tensor.lerp(end[name], node.place / steps)
        if iteration == 0:
            return found
        replayed = replay(problem, x, y, nodes, seed=iteration)
        moved = replayed.moved
        trust = cosine(moved, problem.observed).clamp_min(0)
        ratio = trust * norm(problem.observed) / norm(moved).clamp_min(1e-30)
        if not ratio.isfinite():  # it diverged
            return found
        own = trust / 2 if grown else torch.zeros_like(trust)
        for number, node in enumerate(nodes):
            for name, here in replayed.weights[number].items():
                bend = here - start[name] + node.place / steps * moved[name]
                anchored = found[f"{number}/{name}"] + ratio * bend
                found[f"{number}/{name}"] = anchored.lerp(here, own)
        return found

    def predict(self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]) -> State:
        """The mean movement of a local step, in units of the step size."""
        protocol, shares = problem.protocol, theta["shares"]
        decay = problem.decay(len(x)) if protocol.optimizer == "adamw" else 0.0
        places = [under(dict(theta), f"{number}/") for number in range(len(shares))]
        gradients = [problem.gradient(weights, x, y) for weights in places]
        total: State = {}
        for name in problem.before:
            at = [gradient[name] for gradient in gradients]
            if protocol.optimizer == "sgd":
                total[name] = _mixed(shares @ theta["first"], at)
                continue
            squares = [gradient.square() for gradient in at]
            moves = []
            for k, gradient in enumerate(at):
                divisor = client_optimizer.spread(protocol, _mixed(theta["second"][k], squares))
                floor = self.damping * gradient.detach().abs().mean()
                moves.append(_mixed(theta["first"][k], at) / (divisor + floor))
            if decay:
                moves = [m + decay * place[name] for m, place in zip(moves, places, strict=True)]
            total[name] = _mixed(shares, moves)
        return total


@dataclass(frozen=True)
class Unrolled(Trajectory):
    """``coarse(x) + replayed(x') - coarse(x')``: the end of :class:`Retrace`.

    Attributes:
        strides: the number of long steps that stand for the client's.
    """

    strides: int
    replays: ClassVar[bool] = True
    traceable: ClassVar[bool] = False

    @torch.no_grad()
    def missed(
        self, problem: Problem, x: Tensor, y: Tensor, iteration: int, least: float = -math.inf
    ) -> State:
        """Return what long steps miss of the replay, if their cosine with it is above ``least``."""
        known = problem.protocol.need("lr", "batch_size")
        scale = known.lr * problem.protocol.steps(problem.num_examples)
        long = coarse(problem, x, y, self.strides)
        orders = 1 if known.batch_size >= problem.num_examples else MEAN_OF
        seeds = range(iteration * orders, (iteration + 1) * orders)
        moved = mean([replay(problem, x, y, seed=seed).moved for seed in seeds])
        if not cosine(long, moved) > least:  # also where it diverged
            return {}
        return {f"missed/{name}": tensor / scale - long[name] for name, tensor in moved.items()}

    def predict(self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]) -> State:
        """The mean movement of a local step, in units of the step size."""
        missed = under(dict(theta), "missed/")
        long = coarse(problem, x, y, self.strides)
        return {name: tensor + missed[name] for name, tensor in long.items()}


def _mixed(weights: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Return ``sum_k weights[k] tensors[k]``."""
    total = weights[0] * tensors[0]
    for weight, tensor in zip(weights[1:], tensors[1:], strict=True):
        total = total + weight * tensor
    return total


def quadrature(nodes: int, steps: int) -> list[Node]:
    """Return Gauss-Legendre nodes over ``steps`` steps, at most one per step."""
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
