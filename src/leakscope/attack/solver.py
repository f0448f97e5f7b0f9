"""THE loop: the only place in leakscope that iterates an attack.

A step is a pure function of tensors, so it can be stopped, stored, resumed and compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value

from leakscope.attack.checkpoint import Checkpoint, Saved
from leakscope.attack.schedule import Schedule, StepDecay
from leakscope.errors import LeakscopeError, require
from leakscope.update import State


def _unchanged(value: Tensor) -> Tensor:
    return value


@dataclass(frozen=True, eq=False)
class Variable:
    """Something the objective depends on.

    Attributes:
        value: where it starts.
        lr: its step size, or ``None`` for a constant that gets no gradient.
        project: maps it to the nearest admissible value after every step.
    """

    value: Tensor
    lr: float | None = None
    project: Callable[[Tensor], Tensor] = _unchanged


class Objective(Protocol):
    """What is minimised: a pure function of all values."""

    def __call__(self, values: Mapping[str, Tensor], share: Tensor) -> tuple[Tensor, Tensor]:
        """(loss, match): the whole objective and its distance term, both scalars.

        ``share`` of all iterations have been done, a scalar.
        """
        ...


Differentiate = Callable[[State], tuple[State, tuple[Tensor, Tensor]]]
"""Maps values to their gradients and (loss, match)."""

Refresh = Callable[[State, int], State]
"""Called before every iteration with all values and the number of iterations done; what it returns
takes the place of constants, or joins them."""

Progress = Callable[[int, int, Tensor | None], None]
"""Called after every iteration with (done, total, match), where work without a match gives
``None``. Reading ``match`` may cost a device synchronisation: the callee decides how often to."""


@dataclass(frozen=True)
class LookAhead:
    """Follow ``(1 - share) G(x) + share G(x + radius G / |G|)`` (FedLeak's regularisation).

    G is the gradient for the images; it prefers flat minima, at the price of a second gradient.
    """

    share: float
    radius: float

    def __post_init__(self) -> None:
        require("share of the gradient ahead", self.share, most=1)
        require("radius of the look-ahead", self.radius)

    def __call__(self, differentiate: Differentiate) -> Differentiate:
        """The same differentiation with the images' gradient regularised."""

        def regularised(values: State) -> tuple[State, tuple[Tensor, Tensor]]:
            here, losses = differentiate(values)
            slope = here["images"]
            step = self.radius * slope / slope.norm().clamp_min(1e-12)
            there, _ = differentiate({**values, "images": values["images"] + step})
            return {**here, "images": slope.lerp(there["images"], self.share)}, losses

        return regularised


@dataclass(frozen=True, kw_only=True)
class Solver:
    """Base of all solvers: what every one has.

    Attributes:
        lr: step size for the images; other variables may bring their own.
        iterations: how many.
        decay: schedule that scales all step sizes; ``None`` keeps them constant.
    """

    lr: float
    iterations: int
    decay: Schedule | None = None

    def __post_init__(self) -> None:
        require("iterations", self.iterations, least=1)
        require("lr", self.lr, above=0)

    def scale(self, iteration: int) -> float:
        """Multiplier of all step sizes in ``iteration``, counted from 0."""
        return 1.0 if self.decay is None else self.decay(iteration, self.iterations)

    def start(self, values: State) -> State:
        """The solver's own state before the first step."""
        raise NotImplementedError

    def step(
        self,
        differentiate: Differentiate,
        learned: Mapping[str, Variable],
        values: State,
        state: State,
        clock: Clock,
    ) -> tuple[State, State, Tensor]:
        """One iteration: new values, new state, and [loss, match] before it."""
        raise NotImplementedError

    def finished(self, state: State) -> bool:
        """Whether further steps would change nothing."""
        return False

    def answer(self, values: State, state: State) -> State:
        """What the run has found: by default where it ended."""
        return values


@dataclass(frozen=True, eq=False)
class Clock:
    """Where the run is, as tensors, so that a compiled step need not be compiled again.

    Attributes:
        scale: multiplier of all step sizes.
        count: the iteration, counted from 1.
    """

    scale: Tensor
    count: Tensor


@dataclass(frozen=True, kw_only=True)
class Adam(Solver):
    """Adam (Kingma and Ba 2015); AdamW with ``weight_decay`` (Loshchilov and Hutter 2019).

    Attributes:
        sign: follow only the sign of the images' gradient (IG, section 4).
        look_ahead: regularise the images' gradient (FedLeak).
    """

    decay: Schedule | None = field(default_factory=StepDecay)
    sign: bool = False
    look_ahead: LookAhead | None = None
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def start(self, values: State) -> State:
        """Empty moments."""
        return {
            f"{moment}/{name}": torch.zeros_like(value)
            for name, value in values.items()
            for moment in ("first", "second")
        }

    def step(
        self,
        differentiate: Differentiate,
        learned: Mapping[str, Variable],
        values: State,
        state: State,
        clock: Clock,
    ) -> tuple[State, State, Tensor]:
        """Move every variable at its own rate."""
        if self.look_ahead is not None:
            differentiate = self.look_ahead(differentiate)
        gradients, losses = differentiate(values)
        moved: State = {}
        moments: State = {}
        for name, variable in learned.items():
            assert variable.lr is not None
            lr = clock.scale * variable.lr
            new, moment = self._move(name, values[name], gradients[name], state, lr, clock.count)
            moved[name] = variable.project(new)
            moments |= moment
        return moved, moments, torch.stack(losses)

    def _move(
        self, name: str, value: Tensor, gradient: Tensor, state: State, lr: Tensor, count: Tensor
    ) -> tuple[Tensor, State]:
        if self.sign and name == "images":
            gradient = gradient.sign()
        first = torch.lerp(gradient, state[f"first/{name}"], self.betas[0])
        second = torch.lerp(gradient.square(), state[f"second/{name}"], self.betas[1])
        unbiased = first / (1 - self.betas[0] ** count)
        spread = (second / (1 - self.betas[1] ** count)).sqrt() + self.eps
        kept = value * (1 - lr * self.weight_decay) if self.weight_decay else value
        moved = (kept - lr * unbiased / spread).to(value.dtype)
        return moved, {f"first/{name}": first, f"second/{name}": second}


@dataclass(frozen=True, eq=False)
class Solution:
    """What the loop has found.

    Attributes:
        values: every variable, learned and constant.
        history: ``loss`` and ``match`` [iterations], each before the step it led to.
        match: distance of the answer.
        seconds: time spent, including that before an interruption.
    """

    values: State
    history: dict[str, Tensor]
    match: float
    seconds: float


def solve(
    objective: Objective,
    variables: Mapping[str, Variable],
    solver: Solver,
    *,
    refresh: Refresh | None = None,
    on_progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> Solution:
    """Minimise ``objective`` over the variables that have a step size.

    Args:
        objective: pure function of all values.
        variables: what it depends on.
        solver: the update rule and its schedule.
        refresh: computes constants anew that follow from the values of the others.
        on_progress: called after every iteration.
        checkpoint: where to store the state from time to time and to resume from.
    """
    began = time.perf_counter()
    constants = {name: v.value for name, v in variables.items() if v.lr is None}
    learned = {name: v for name, v in variables.items() if v.lr is not None}
    values = {name: v.value for name, v in learned.items()}
    track = torch.zeros((solver.iterations, 2), device=values["images"].device)
    loop = Saved(values, constants, solver.start(values), track, done=0, seconds=0.0)
    if checkpoint is not None and (saved := checkpoint.load()) is not None:
        loop = saved.to(track.device)
        began -= loop.seconds
    try:
        while loop.done < solver.iterations and not solver.finished(loop.state):
            constants = loop.constants
            if refresh is not None:
                constants = {**constants, **refresh({**constants, **loop.values}, loop.done)}
            share = torch.tensor(loop.done / solver.iterations, device=track.device)
            values, state, losses = solver.step(
                _differentiation(objective, constants, share),
                learned,
                loop.values,
                loop.state,
                Clock(
                    torch.tensor(solver.scale(loop.done), device=track.device),
                    torch.tensor(loop.done + 1.0, device=track.device),
                ),
            )
            loop.track[loop.done] = losses
            seconds = time.perf_counter() - began
            loop = Saved(values, constants, state, loop.track, loop.done + 1, seconds)
            if on_progress is not None:
                on_progress(loop.done, solver.iterations, losses[1])
            if checkpoint is not None and checkpoint.due():
                checkpoint.save(loop)
    except KeyboardInterrupt:
        if checkpoint is not None:
            checkpoint.save(loop)
        raise
    if checkpoint is not None:
        checkpoint.save(loop)
    found = {**loop.constants, **solver.answer(loop.values, loop.state)}
    loss, match = objective(found, torch.ones_like(track[0, 0]))
    if not (loss.isfinite() and match.isfinite()):
        raise LeakscopeError("the attack diverged (its loss is not finite): lower its lr")
    losses, matches = loop.track[: loop.done].cpu().unbind(1)
    return Solution(
        values={name: found[name] for name in variables},
        history={"loss": losses, "match": matches},
        match=match.item(),
        seconds=loop.seconds,
    )


def _differentiation(objective: Objective, constants: State, share: Tensor) -> Differentiate:
    return grad_and_value(lambda values: objective({**constants, **values}, share), has_aux=True)
