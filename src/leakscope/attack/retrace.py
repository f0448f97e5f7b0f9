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
from leakscope.attack.simulation import coarse
from leakscope.attack.solver import Moment, Variable
from leakscope.attack.trajectory import Trajectory, both_ends
from leakscope.errors import LeakscopeError, require
from leakscope.federated.local import check_batch
from leakscope.update import Protocol, State, Update, under

ORDERS = 7_000_000_000
"""Seeds of replays begin here: the order of a client's examples must not be met by chance."""

MEAN_OF = 4
"""Replays whose mean the end is compared by: one order of the examples differs from the mean of all
as much as the client's own, and with uneven batches that costs more than the end gains."""

SIMILAR = 0.9
"""Cosine with the replay from which on a few long steps tell how the path depends on the images."""


@dataclass(frozen=True, kw_only=True)
class Retrace(Trajectory):
    """The client's optimiser on the gradients ``g(w(s_k), x, y)`` at places of its own path.

    The update is the sum of what the client's optimiser made of the gradients along its path, and
    the path follows from data and protocol. So every ``every`` iterations the client is replayed
    on the current dummies. Of the replay only the curvature is believed, for both ends are known::

        w(s) = w0 + s (wT - w0) + trust |u| / |u'| (w'(s) - w0 - s (w'(1) - w0))

    where ``'`` marks the replay, ``u = w0 - wT``, and ``trust = max(0, cos(u', u))``. Dummies equal
    to the client's data replay its path, but for the order of its examples, which is not known.
    So once the dummies are good, part of the gap at the end comes from the order alone, and is not
    to be spread over the path: with K places, ``w(s)`` is half way between this and ``w'(s)``.

    The gradients at K places stand for those of the steps around them (Gauss-Legendre). For plain
    SGD they are summed up; momentum adds to each what it carries over; for Adam they are divided
    by the roots of the second moments that they themselves make up. This is differentiated
    through, unlike the path.

    In the end the path is differentiated through as well: what counts then is the replay's own
    update, and how it changes with the images is taken from a client that takes few long steps::

        predicted(x) = coarse(x) + replayed(x') - coarse(x')

    where ``x'`` are the images at the last replay, of which there are several in different orders:
    their mean is nearest to the client's. Adam makes other long steps of short ones, so
    for its clients there is no such end.

    Attributes:
        nodes: K, places on the path where a gradient is computed, at most one per step.
        every: iterations between two replays.
        grow: the place on the schedule from which on there are K; a single one does before, while
            the images are rough, at a K-th of the time.
        unroll: the place from which on the path is differentiated through, if long steps lead where
            the replay does; never by default. Replays come three times as often then.
        strides: long steps that this takes.
        damping: added to what Adam divides by, as a share of the mean gradient of the tensor.
            Without it Adam's movement hardly depends on the size of a gradient, so that there is
            no slope to follow.
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
        """None, but a complaint if the client cannot be replayed."""
        both_ends(problem)
        check_replay(problem)
        return {}

    def refresh(
        self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor], now: Moment
    ) -> State:
        """Weights at all nodes, on the straight line at first, then from each replay that is due.

        Dummies that are still noise would cost a replay and tell nothing, so the first one comes
        after a third of the interval. In the end, what long steps miss of the replay instead.
        """
        if self.unroll is not None and not self.traceable(theta):
            due = (now.done - self.unroll) % max(1, self.every // 3) == 0
            return self._missed(problem, x, y, now.done, least=-math.inf) if due else {}
        if self.unroll in now.reached and not problem.adaptive:
            missed = self._missed(problem, x, y, now.done, least=SIMILAR)
            if missed:
                return missed
        due = now.done == 0 or self.grow in now.reached or now.done % self.every == self.every // 3
        grown = now.reached.stop > self.grow
        return self._path(problem, x, y, now.done, grown) if due else {}

    def _path(self, problem: Problem, x: Tensor, y: Tensor, iteration: int, grown: bool) -> State:
        """Weights at the nodes of the path, all of them once it has ``grown``."""
        start, end = both_ends(problem)
        steps = problem.protocol.steps(problem.num_examples)
        nodes = quadrature(self.nodes if grown else 1, steps)
        first, second = optimizer.mixing(problem.protocol, [(n.first, n.last) for n in nodes])
        shares = torch.tensor([node.share for node in nodes])
        found = {"first": first.to(x), "second": second.to(x), "shares": shares.to(x)}
        for number, node in enumerate(nodes):
            for name, tensor in start.items():
                found[f"{number}/{name}"] = tensor.lerp(end[name], node.place / steps)
        if iteration == 0:
            return found
        replayed = replay(problem, x, y, nodes, seed=iteration)
        moved = replayed.moved
        trust = _cosine(moved, problem.observed).clamp_min(0)
        ratio = trust * length(problem.observed) / length(moved).clamp_min(1e-30)
        if not ratio.isfinite():  # it diverged
            return found
        own = trust / 2 if grown else torch.zeros_like(trust)
        for number, node in enumerate(nodes):
            for name, here in replayed.weights[number].items():
                bend = here - start[name] + node.place / steps * moved[name]
                anchored = found[f"{number}/{name}"] + ratio * bend
                found[f"{number}/{name}"] = anchored.lerp(here, own)
        return found

    def traceable(self, theta: Mapping[str, Tensor]) -> bool:
        """Until the path is differentiated through."""
        return not under(dict(theta), "missed/")

    @torch.no_grad()
    def _missed(
        self, problem: Problem, x: Tensor, y: Tensor, iteration: int, least: float
    ) -> State:
        """What long steps miss of the replay; nothing if their cosine is not above ``least``."""
        protocol = problem.protocol
        assert protocol.lr is not None
        assert protocol.batch_size is not None
        scale = protocol.lr * protocol.steps(problem.num_examples)
        long = coarse(problem, x, y, self.strides)
        orders = 1 if protocol.batch_size >= problem.num_examples else MEAN_OF
        seeds = range(iteration * orders, (iteration + 1) * orders)
        moved = _mean([replay(problem, x, y, seed=seed).moved for seed in seeds])
        if not _cosine(long, moved) > least:  # also where it diverged
            return {}
        return {f"missed/{name}": tensor / scale - long[name] for name, tensor in moved.items()}

    def predict(self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]) -> State:
        """The mean movement of a local step, in units of the step size."""
        if missed := under(dict(theta), "missed/"):
            long = coarse(problem, x, y, self.strides)
            return {name: tensor + missed[name] for name, tensor in long.items()}
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
                divisor = optimizer.spread(protocol, _mixed(theta["second"][k], squares))
                floor = self.damping * gradient.detach().abs().mean()
                moves.append(_mixed(theta["first"][k], at) / (divisor + floor))
            if decay:
                moves = [m + decay * place[name] for m, place in zip(moves, places, strict=True)]
            total[name] = _mixed(shares, moves)
        return total


def _mixed(weights: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """``sum_k weights[k] tensors[k]``."""
    total = weights[0] * tensors[0]
    for weight, tensor in zip(weights[1:], tensors[1:], strict=True):
        total = total + weight * tensor
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
        moved: the update it ends in, with the sign of a gradient.
    """

    weights: list[State]
    moved: State


@torch.no_grad()
def replay(
    problem: Problem,
    x: Tensor,
    y: Tensor,
    nodes: Sequence[Node] = (),
    *,
    seed: int = 0,
) -> Replay:
    """Train as the client's protocol says.

    Args:
        problem: the update under attack.
        x: normalised images [N, C, H, W].
        y: labels [N] or class probabilities [N, classes].
        nodes: places of interest.
        seed: of the order of examples, which is not known.
    """
    protocol = problem.protocol
    assert protocol.epochs is not None
    assert protocol.batch_size is not None
    weights, buffers = problem.before, optimizer.fresh(protocol, problem.before)
    wanted = {round_(node.place) for node in nodes for round_ in (math.floor, math.ceil)}
    seen: dict[int, State] = {}
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
    moved = {name: start - weights[name] for name, start in problem.before.items()}
    return Replay([_between(seen, node.place) for node in nodes], moved)


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
    x = problem.normalized(found.images)
    y = found.labels.to(x.device)
    if problem.after is None:
        return _cosine(problem.gradient(problem.before, x, y), problem.observed).item()
    check_replay(problem)
    scores = []
    for seed in range(orders):
        scores.append(_cosine(replay(problem, x, y, seed=seed).moved, problem.observed))
    return torch.stack(scores).mean().item()


def check_replay(problem: Problem) -> None:
    """Refuse an update whose client cannot be replayed."""
    problem.protocol.need("lr", "epochs", "batch_size", "optimizer")
    check_batches(problem.model, problem.protocol, problem.num_examples)


def check_batches(model: nn.Module, protocol: Protocol, count: int) -> None:
    """Refuse batches of ``count`` examples that batch norm cannot take."""
    assert protocol.batch_size is not None
    check_batch(model, protocol, (count - 1) % protocol.batch_size + 1)


def _between(seen: Mapping[int, State], place: float) -> State:
    """The weights at ``place``, between those of two steps."""
    low, high = seen[math.floor(place)], seen[math.ceil(place)]
    return {name: tensor.lerp(high[name], place % 1) for name, tensor in low.items()}


def length(state: State) -> Tensor:
    """Euclidean, of all tensors together."""
    return torch.stack([tensor.square().sum() for tensor in state.values()]).sum().sqrt()


def _mean(states: Sequence[State]) -> State:
    return {name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]}


def _cosine(a: State, b: State) -> Tensor:
    dot = torch.stack([(a[name] * b[name]).sum() for name in b]).sum()
    return dot / (length(a) * length(b)).clamp_min(1e-30)
