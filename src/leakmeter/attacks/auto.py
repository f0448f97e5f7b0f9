"""Choose the attack automatically: try those that fit the update, keep what explains it best."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, SupportsFloat

from torch import nn

from leakmeter.attacks.attack import Attack, RunOptions, Searching
from leakmeter.attacks.closed_form import pixel_layer
from leakmeter.attacks.infer import Inferred, infer, unknown_fields
from leakmeter.attacks.layers import smooth
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.attacks.replay import check_replay, replay_score
from leakmeter.errors import LeakmeterError, StorageError, require
from leakmeter.execution import Progress
from leakmeter.update import Update

ENOUGH = 0.9999
"""Replay score beyond which no other attack can improve visibly."""

CLEARLY = 0.8
"""Scores are blurred by the unknown order of examples, and noise can raise them a little: a later
candidate must leave less than this share of what an earlier one leaves (``docs/auto.md``)."""

FEW = 4
"""The most examples that L-BFGS can tell apart."""

DEEP = 8
"""Number of layers from which the attack follows the gradient's sign in small steps."""


@dataclass(frozen=True)
class Candidate:
    """An attack that may be tried.

    Attributes:
        name: the name of the recipe.
        attack: the attack itself.
        when: which updates it is tried on.
        why: the reason, as part of a sentence.
        least: iterations it must have run to be trusted: an attack that smooths little explains
            an update before its images are good.
    """

    name: str
    attack: Attack
    when: Callable[[Problem], bool] = field(repr=False)
    why: str = field(repr=False)
    least: int = field(default=0, repr=False)

    def fits(self, problem: Problem) -> bool:
        """Return whether the candidate is worth trying."""
        iterations = self.attack.iterations
        short = iterations is not None and iterations < self.least
        return not short and self.when(problem)


@dataclass(frozen=True)
class Auto(Attack):
    """Runs the candidates that fit an update, strongest first, and keeps the best.

    The best is the one with the highest :func:`~leakmeter.attacks.replay.replay_score` or, in
    doubt, the stronger candidate; no truth is needed. Unknown settings of the client are inferred
    from rough reconstructions, each of which may use what followed from the one before.

    Attributes:
        candidates: what may be tried, in order.
        rough: attacks on weights, the first of which needs no knowledge of the training.
        seconds: approximate time that all of them may take together; each gets an equal share and
            shortens its schedule if necessary.
    """

    candidates: tuple[Candidate, ...]
    rough: tuple[Candidate, ...]
    seconds: float

    needs: ClassVar[str] = "one gradient, or weights before and after"

    def __post_init__(self) -> None:
        require("seconds", self.seconds, above=0)

    def reconstruct(self, model: nn.Module, update: Update, options: RunOptions) -> Reconstruction:
        """Run the candidates that fit."""
        problem = Problem.of(model, update, options.device)
        tried = _Tried(model, options)
        notes = []
        if update.after is not None and unknown_fields(update.protocol):
            inferred = self._infer(tried, update)
            notes.append(f"the client's training was inferred: {inferred.words}")
            update = replace(update, protocol=inferred.protocol)
            problem = replace(problem, protocol=inferred.protocol)
        fitting = [candidate for candidate in self.candidates if candidate.fits(problem)]
        for number, candidate in enumerate(fitting):
            if tried.found and tried.best[0] >= ENOUGH:
                break
            follow = _part(options.on_progress, number, len(fitting))
            found = tried.run(candidate, update, self.seconds / len(fitting), follow)
            if found is not None:
                tried.score(candidate, update, found)
        if not tried.found:
            raise LeakmeterError("\n".join(tried.failures))
        return tried.result(notes)

    def _infer(self, tried: _Tried, update: Update) -> Inferred:
        """Infer what the protocol of ``update`` leaves open."""
        known = update
        for number, candidate in enumerate(self.rough):
            follow = _part(tried.options.on_progress, number, len(self.rough))
            found = tried.run(candidate, known, self.seconds / 4, follow)
            if found is None:
                raise LeakmeterError(tried.failures[-1])
            inferred = infer(tried.model, update, found, device=tried.options.device)
            known = replace(update, protocol=inferred.protocol)
        return inferred

    def searching(self, model: nn.Module, update: Update) -> Searching:
        """Return the first candidate that fits and can use several updates."""
        problem = Problem.of(model, update, None)
        for candidate in self.candidates:
            if candidate.fits(problem):
                with contextlib.suppress(LeakmeterError):
                    return candidate.attack.searching(model, update)
        raise LeakmeterError("no attack fits this update")


def _part(on_progress: Progress | None, number: int, count: int) -> Progress | None:
    """Wrap the callback for one of ``count`` attacks; the total work is in thousandths."""
    if on_progress is None:
        return None

    def follow(done: int, total: int, match: SupportsFloat | None) -> None:
        on_progress(round(1000 * (number + done / total) / count), 1000, match)

    return follow


@dataclass
class _Tried:
    """What has been tried on an update, and how well it explains it."""

    model: nn.Module
    options: RunOptions
    found: list[tuple[float, Candidate, Reconstruction]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def best(self) -> tuple[float, Candidate, Reconstruction]:
        """Return the first, or a later one that leaves clearly less of the update unexplained."""
        best = self.found[0]
        for each in self.found[1:]:
            if 1 - each[0] < CLEARLY * (1 - best[0]):
                best = each
        return best

    def run(
        self, candidate: Candidate, update: Update, seconds: float, on_progress: Progress | None
    ) -> Reconstruction | None:
        """Run the candidate and return its reconstruction."""
        attack, options = (
            candidate.attack.within(seconds=seconds),
            replace(self.options, on_progress=on_progress),
        )
        try:
            return attack.attempt(self.model, update, options)
        except StorageError:
            raise
        except LeakmeterError as error:
            self.failures.append(f"{candidate.name}: {error}")
            return None

    def score(self, candidate: Candidate, update: Update, found: Reconstruction) -> None:
        """Add a reconstruction to those found so far; one that cannot be replayed scores 0."""
        self.seconds += found.seconds
        if (done := len(found.history["match"])) < candidate.least:
            self.failures.append(f"{candidate.name}: {done} iterations are too few to judge it by")
            return
        score = 0.0
        try:
            score = replay_score(self.model, update, found, device=self.options.device)
        except LeakmeterError as error:
            self.failures.append(f"replay of {candidate.name}: {error}")
        self.found.append((score, candidate, found))

    def result(self, notes: list[str]) -> Reconstruction:
        """Return the best reconstruction, with the reasons and the total time spent."""
        score, chosen, found = self.best
        others = [f"{c.name} {s:.3f}" for s, c, _ in self.found if c is not chosen]
        compared = f" (others: {', '.join(others)})" if others else ""
        reason = f"{chosen.name}: {chosen.why}; replay score {score:.3f}{compared}"
        return replace(found, seconds=self.seconds, why="; ".join([reason, *notes, *self.failures]))


def many_steps(problem: Problem) -> bool:
    """Return whether the client sent weights, and not after a single step of plain SGD."""
    return not one_gradient(problem)


def replayable(problem: Problem) -> bool:
    """Return whether there are many steps and everything a replay needs is known."""
    with contextlib.suppress(LeakmeterError):
        check_replay(problem)
        return many_steps(problem)
    return False


def not_replayable(problem: Problem) -> bool:
    """Return whether a replay lacks a setting or would use a batch that the network refuses."""
    return many_steps(problem) and not replayable(problem)


def one_gradient(problem: Problem) -> bool:
    """Return whether one gradient was sent, or weights after one step of plain SGD."""
    protocol = problem.protocol
    if problem.after is None:
        return True
    if unknown_fields(protocol):
        return False
    return protocol.optimizer == "sgd" and protocol.steps(problem.num_examples) == 1


def computable(problem: Problem) -> bool:
    """Return whether there is one example, which a fully connected layer sees directly."""
    with contextlib.suppress(LeakmeterError):
        pixel_layer(problem)
        return problem.num_examples == 1
    return False


def smooth_gradient(problem: Problem) -> bool:
    """Return whether it is one gradient of few examples and the network is smooth."""
    return one_gradient(problem) and problem.num_examples <= FEW and smooth(problem)


def deep_gradient(problem: Problem) -> bool:
    """Return whether it is one gradient of a network with many layers."""
    layers = [tensor for tensor in problem.observed.values() if tensor.ndim > 1]
    return one_gradient(problem) and len(layers) > DEEP
