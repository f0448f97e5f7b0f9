"""Replays the client's training on a guess and scores how well that explains the update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leakmeter.attacks import client_optimizer
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.errors import LeakmeterError, require
from leakmeter.federated.local import check_batch
from leakmeter.state import State, cosine
from leakmeter.update import Protocol, Update

ORDERS = 7_000_000_000
"""First seed of replays, chosen so that they do not hit the client's own order by chance."""


class Node(NamedTuple):
    """A place on the path of T steps.

    Attributes:
        place: the number of steps done there; a fraction lies between two steps.
        first: the first of the steps it stands for, counted from 0.
        last: one past the last of these.
        share: their share of all steps.
    """

    place: float
    first: int
    last: int
    share: float


class Replay(NamedTuple):
    """The client's training on some data.

    Attributes:
        weights: the weights at each node.
        moved: the resulting update, with the sign of a gradient.
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
        x: normalized images [N, C, H, W].
        y: labels [N] or class probabilities [N, classes].
        nodes: places of interest.
        seed: the seed of the order of examples, which is not known.
    """
    protocol, known = problem.protocol, problem.protocol.need("epochs", "batch_size")
    weights, buffers = problem.before, client_optimizer.fresh(protocol, problem.before)
    wanted = {round_(node.place) for node in nodes for round_ in (math.floor, math.ceil)}
    seen: dict[int, State] = {}
    order = torch.Generator().manual_seed(ORDERS + seed)
    number = 0
    for _ in range(known.epochs):
        shuffled = torch.randperm(len(x), generator=order).to(x.device)
        for batch in shuffled.split(known.batch_size):
            if number in wanted:
                seen[number] = weights
            gradient = problem.gradient(weights, x[batch], y[batch])
            number += 1
            weights, buffers = client_optimizer.step(protocol, weights, gradient, buffers, number)
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
    """Score how well training on ``found`` explains ``update``: 1 exactly, 0 not at all.

    This is the cosine between the movement of a replay of the client and the observed one, averaged
    over several orders of the examples because the client's is not known. With several batches per
    epoch, even the truth scores less than 1. It needs no ground truth and is comparable across
    attacks. For one gradient it compares gradients.

    Example:
        >>> from leakmeter import data, models, papers
        >>> from leakmeter.federated import Client
        >>> photos = data.load("photos", size=16)
        >>> net = models.build("mlp", classes=photos.classes, channels=3, size=16)
        >>> update = Client(net, photos.images[:1], photos.labels[:1]).gradient()
        >>> found = papers.closed_form().run(net, update)
        >>> replay_score(net, update, found) > 0.999
        True
    """
    require("orders", orders, least=1)
    problem = Problem.of(model, update, device)
    expected = (problem.num_examples, *problem.shape)
    if found.images.shape != expected:
        raise LeakmeterError(
            f"found has images {tuple(found.images.shape)}, the update is of {expected}: "
            "score a reconstruction of this update"
        )
    x = problem.normalized(found.images)
    y = found.labels.to(x.device)
    if problem.after is None:
        return cosine(problem.gradient(problem.before, x, y), problem.observed).item()
    check_replay(problem)
    scores = []
    for seed in range(orders):
        scores.append(cosine(replay(problem, x, y, seed=seed).moved, problem.observed))
    return torch.stack(scores).mean().item()


def check_replay(problem: Problem) -> None:
    """Refuse an update whose client cannot be replayed."""
    problem.protocol.need("lr", "epochs", "batch_size", "optimizer")
    check_batches(problem.model, problem.protocol, problem.num_examples)


def check_batches(model: nn.Module, protocol: Protocol, count: int) -> None:
    """Refuse batches of ``count`` examples that batch norm cannot take."""
    check_batch(model, protocol, (count - 1) % protocol.need("batch_size").batch_size + 1)


def _between(seen: Mapping[int, State], place: float) -> State:
    """The weights at ``place``, between those of two steps."""
    low, high = seen[math.floor(place)], seen[math.ceil(place)]
    return {name: tensor.lerp(high[name], place % 1) for name, tensor in low.items()}
