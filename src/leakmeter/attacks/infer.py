"""Infer from the update itself what the server was not told about the client's training.

Every plausible setting is replayed on a rough reconstruction; the one that explains the update
best is taken. How far the client's weights moved determines the product of step size and number
of steps. The split between the two hardly changes the path, so it cannot be inferred and does not
matter.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from leakmeter.attacks.problem import Problem
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.attacks.replay import check_batches, replay
from leakmeter.errors import LeakmeterError
from leakmeter.state import State, norm
from leakmeter.update import Protocol, Update

FIELDS = ("optimizer", "epochs", "batch_size", "lr")
"""Settings that can be inferred."""

SURE = 0.03
"""Margin by which a value must explain more than all others to count as sure."""

EXPLAINED = 0.3
"""Share of the update that must be explained for anything to be sure."""

EVEN, UNEVEN = 0.65, 0.45
"""Mean movement squared over mean squared movement, above and below which the optimizer is clear.

Over five networks and three protocols each, SGD had .11 to .53, Adam .54 to 1, AdamW .46 to 1.
"""

_FITS = 4
"""Number of replays to find a step size; each brings the length of the movement closer."""


@dataclass(frozen=True)
class Inferred:
    """How the client seems to have trained.

    Attributes:
        protocol: what was known, with the unknown fields filled in.
        explained: ``1 - |u' - u| / |u|`` of the replay with these settings.
        margins: for every unknown field, how much less the next best value explains; infinite
            where there was no other candidate.
        fitted: whether the step size was unknown and was fitted to the rest.
    """

    protocol: Protocol
    explained: float
    margins: dict[str, float]
    fitted: bool

    @property
    def words(self) -> str:
        """What was inferred, and how certain it is, in one line."""
        parts = []
        for field, margin in self.margins.items():
            clear = margin == math.inf or (margin > SURE and self.explained > EXPLAINED)
            sure = "sure" if clear else "a guess"
            parts.append(f"{field} {getattr(self.protocol, field)} ({sure})")
        if self.fitted:
            parts.append(f"lr {self.protocol.lr:.2g} (fitted)")
        return ", ".join(parts)


def unknown_fields(protocol: Protocol) -> list[str]:
    """Return the settings that a replay needs but that are not known."""
    return [field for field in FIELDS if getattr(protocol, field) is None]


@torch.no_grad()
def infer(
    model: nn.Module,
    update: Update,
    found: Reconstruction,
    *,
    device: torch.device | str | None = None,
) -> Inferred:
    """Fill in what the protocol of ``update`` leaves open.

    Args:
        model: the architecture.
        update: weights before and after, with some of :data:`FIELDS` unknown.
        found: a reconstruction that needs none of them, as from ``papers.sme(100)``.
        device: where to compute.
    """
    problem = Problem.of(model, update, device)
    if problem.after is None:
        raise LeakmeterError("one gradient has no settings to infer: attack it as it is")
    x, y = problem.normalized(found.images), found.labels.to(problem.low.device)
    tried = [_fit(problem, candidate, x, y) for candidate in _candidates(problem)]
    if not tried:
        raise LeakmeterError("no setting of the client can be replayed on this network")
    explained, best = max(tried, key=lambda each: each[0])
    margins = {}
    for field in unknown_fields(update.protocol):
        if field != "lr":
            others = [e for e, p in tried if getattr(p, field) != getattr(best, field)]
            margins[field] = explained - max(others, default=-math.inf)
    return Inferred(best, explained, margins, fitted=update.protocol.lr is None)


def _candidates(problem: Problem) -> Iterator[Protocol]:
    """Yield the known settings with common values for each unknown one, except the step size."""
    told, count = problem.protocol, problem.num_examples
    usual = [1, 2, 5, 10, 20, 50] if told.lr is not None else [1, 5, 20]
    sizes = sorted({size for size in (10, 32, count) if size <= count} | {count // 2 or 1})
    grid: dict[str, list[Any]] = {
        "optimizer": [told.optimizer] if told.optimizer else _optimizers(problem.observed),
        "epochs": [told.epochs] if told.epochs else usual,
        "batch_size": [told.batch_size] if told.batch_size else sizes,
    }
    for values in itertools.product(*grid.values()):
        candidate = told.model_copy(update=dict(zip(grid, values, strict=True)))
        with contextlib.suppress(LeakmeterError):  # batches that batch norm cannot take
            check_batches(problem.model, candidate, count)
            yield candidate


def _optimizers(observed: State) -> list[str]:
    """Guess the optimizer: Adam moves all weights about equally far, SGD does not."""
    pieces = [tensor[tensor != 0].double().abs() for tensor in observed.values()]
    pieces = [piece for piece in pieces if len(piece) > 1]
    evenness = [len(piece) * piece.mean() ** 2 / piece.square().mean() for piece in pieces]
    even = float(sum(evenness)) / max(1, sum(map(len, pieces)))
    if even > EVEN:
        return ["adam"]
    return ["sgd"] if even < UNEVEN else ["sgd", "adam"]


def _fit(problem: Problem, candidate: Protocol, x: Tensor, y: Tensor) -> tuple[float, Protocol]:
    """Return how much a candidate explains, fitting its step size if that is unknown."""
    if candidate.lr is not None:
        return _explained(problem, candidate, x, y)[0], candidate
    lr = 1e-3
    best = -math.inf, candidate
    for _ in range(_FITS):
        trial = candidate.model_copy(update={"lr": lr})
        explained, ratio = _explained(problem, trial, x, y)
        if explained > best[0]:
            best = explained, trial
        lr = lr / ratio if math.isfinite(ratio) and ratio > 0 else lr / 10
    return best


def _explained(problem: Problem, protocol: Protocol, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return ``1 - |u' - u| / |u|`` of a replay, and ``|u'| / |u|``."""
    moved = replay(replace(problem, protocol=protocol), x, y).moved
    gap = {name: tensor - problem.observed[name] for name, tensor in moved.items()}
    unit = norm(problem.observed).item()
    share = 1 - norm(gap).item() / unit
    return (share if math.isfinite(share) else -math.inf), norm(moved).item() / unit
