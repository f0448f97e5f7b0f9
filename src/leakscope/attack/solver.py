"""THE loop: the only place in leakscope that iterates an attack.

A step is a pure function of tensors, so it can be stopped, stored, resumed and compiled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value

from leakscope.attack.checkpoint import Checkpoint, Saved
from leakscope.errors import LeakscopeError
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

    def __call__(self, values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(loss, match): the whole objective and its distance term, both scalars."""
        ...


Progress = Callable[[int, int, Tensor | None], None]
"""Called after every iteration with (done, total, match), where work without a match gives
``None``. Reading ``match`` may cost a device synchronisation: the callee decides how often to."""


@dataclass(frozen=True)
class StepDecay:
    """Multiply the step size by ``factor`` at each of the given shares of the run.

    The defaults are IG's (appendix C), also used by SME.
    """

    factor: float = 0.1
    at: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)

    def __call__(self, share: float) -> float:
        """The multiplier after ``share`` of all iterations."""
        return self.factor ** sum(share >= milestone for milestone in self.at)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015), optionally on the sign of the gradient of the images.

    Attributes:
        lr: step size for the images; other variables bring their own.
        iterations: how many.
        decay: schedule that scales all step sizes; ``None`` keeps them constant.
        sign: follow only the sign of the images' gradient (IG, section 4).
    """

    lr: float
    iterations: int
    decay: StepDecay | None = field(default_factory=StepDecay)
    sign: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise LeakscopeError(f"iterations is {self.iterations}: use at least 1")
        if not 0 < self.lr < math.inf:
            raise LeakscopeError(f"lr is {self.lr}: use a number above 0")

    def scale(self, iteration: int) -> float:
        """Multiplier of all step sizes in ``iteration``, counted from 0."""
        return 1.0 if self.decay is None else self.decay(iteration / self.iterations)

    def start(self, values: Mapping[str, Tensor]) -> State:
        """Empty moments."""
        return {
            f"{moment}/{name}": torch.zeros_like(value)
            for name, value in values.items()
            for moment in ("first", "second")
        }

    def move(
        self, name: str, value: Tensor, gradient: Tensor, state: State, lr: Tensor, count: Tensor
    ) -> tuple[Tensor, State]:
        """One variable's new value and moments; ``count`` is the iteration counted from 1."""
        if self.sign and name == "images":
            gradient = gradient.sign()
        first = torch.lerp(gradient, state[f"first/{name}"], self.betas[0])
        second = torch.lerp(gradient.square(), state[f"second/{name}"], self.betas[1])
        unbiased = first / (1 - self.betas[0] ** count)
        spread = (second / (1 - self.betas[1] ** count)).sqrt() + self.eps
        moved = (value - lr * unbiased / spread).to(value.dtype)
        return moved, {f"first/{name}": first, f"second/{name}": second}


@dataclass(frozen=True, eq=False)
class Solution:
    """Where the loop ended.

    Attributes:
        values: every variable, learned and constant.
        history: ``loss`` and ``match`` [iterations], each before the step it led to.
        seconds: time spent, including that before an interruption.
    """

    values: State
    history: dict[str, Tensor]
    seconds: float


def solve(
    objective: Objective,
    variables: Mapping[str, Variable],
    solver: Adam,
    *,
    on_progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> Solution:
    """Minimise ``objective`` over the variables that have a step size.

    Args:
        objective: pure function of all values.
        variables: what it depends on.
        solver: the update rule and its schedule.
        on_progress: called after every iteration.
        checkpoint: where to store the state from time to time and to resume from.
    """
    began = time.perf_counter()
    constants = {name: v.value for name, v in variables.items() if v.lr is None}
    learned = {name: v for name, v in variables.items() if v.lr is not None}
    step = _make_step(objective, constants, learned, solver)
    values = {name: v.value for name, v in learned.items()}
    track = torch.zeros((solver.iterations, 2), device=values["images"].device)
    loop = Saved(values, solver.start(values), track, done=0, seconds=0.0)
    if checkpoint is not None and (saved := checkpoint.load()) is not None:
        loop = saved.to(track.device)
        began -= loop.seconds
    try:
        for iteration in range(loop.done, solver.iterations):
            scale = torch.tensor(solver.scale(iteration), device=track.device)
            count = torch.tensor(iteration + 1.0, device=track.device)
            values, state, losses = step(loop.values, loop.state, scale, count)
            loop.track[iteration] = losses
            loop = Saved(values, state, loop.track, iteration + 1, time.perf_counter() - began)
            if on_progress is not None:
                on_progress(loop.done, solver.iterations, losses[1])
            if checkpoint is not None and checkpoint.due():
                checkpoint.save(loop)
    except KeyboardInterrupt:
        if checkpoint is not None:
            checkpoint.save(loop)
        raise
    loss, match = loop.track.cpu().unbind(1)
    if not math.isfinite(loss[-1].item()):
        raise LeakscopeError("the attack diverged (its loss is not finite): lower its lr")
    return Solution({**constants, **loop.values}, {"loss": loss, "match": match}, loop.seconds)


def _make_step(
    objective: Objective,
    constants: State,
    learned: Mapping[str, Variable],
    solver: Adam,
) -> Callable[[State, State, Tensor, Tensor], tuple[State, State, Tensor]]:
    """One iteration as a pure function of tensors: new values, new state, [loss, match]."""
    differentiate = grad_and_value(lambda values: objective({**constants, **values}), has_aux=True)

    def step(
        values: State, state: State, scale: Tensor, count: Tensor
    ) -> tuple[State, State, Tensor]:
        gradients, losses = differentiate(values)
        moved: State = {}
        moments: State = {}
        for name, variable in learned.items():
            assert variable.lr is not None
            lr = scale * variable.lr
            new, moment = solver.move(name, values[name], gradients[name], state, lr, count)
            moved[name] = variable.project(new)
            moments |= moment
        return moved, moments, torch.stack(losses)

    return step
