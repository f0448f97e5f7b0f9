"""THE loop: the only place in leakmeter that iterates an attack.

A step is a pure function of tensors, so it can be stopped, stored, resumed and compiled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value

from leakmeter.attacks.compiling import MEASURED, Compiling, compiled, log_failure, pays
from leakmeter.attacks.schedule import Plateau, Schedule
from leakmeter.errors import LeakmeterError, require
from leakmeter.execution import Checkpoint, Pause, Paused, Progress
from leakmeter.state import State, under


def _unchanged(value: Tensor) -> Tensor:
    return value


@dataclass(frozen=True, eq=False)
class Variable:
    """Something the objective depends on.

    Attributes:
        value: where it starts.
        lr: its step size, or ``None`` for a constant that gets no gradient.
        project: maps it to the nearest admissible value after every step.
        every: iterations between two steps, which are longer by this factor; in between it is a
            constant, which saves the cost of its gradient. Solvers that move all variables at once
            ignore it.
    """

    value: Tensor
    lr: float | None = None
    project: Callable[[Tensor], Tensor] = _unchanged
    every: int = 1


class Objective(Protocol):
    """What is minimized: in each phase a pure function of all values."""

    def __call__(
        self, values: Mapping[str, Tensor], share: Tensor, phases: tuple[str, ...]
    ) -> tuple[Tensor, Tensor]:
        """(loss, match): the whole objective and its distance term, both scalars.

        ``share`` of all iterations have been done, a scalar; ``phases`` are the names of the
        present :class:`Phase`.
        """
        ...


Differentiate = Callable[[State], tuple[State, tuple[Tensor, Tensor]]]
"""Maps values to their gradients and (loss, match)."""


class Moment(NamedTuple):
    """When something happens in a run.

    Attributes:
        done: iterations so far.
        reached: places on the schedule since the iteration before: one, or several where a stage
            was left early or time is short.
    """

    done: int
    reached: range


@dataclass(frozen=True, eq=False)
class Phase:
    """What holds until the next one begins.

    Attributes:
        names: its names, one for each part of the objective that changes with it. With other names
            the step is a different one, which is compiled anew.
        constants: further values that follow from the others.
    """

    names: tuple[str, ...] = ()
    constants: State = field(default_factory=dict)


Refresh = Callable[[State, Phase, Moment], Phase | None]
"""Called before every iteration with all values and the present phase; returns the next one, or
``None`` if that one goes on."""

Traceable = Callable[[tuple[str, ...]], bool]
"""Whether a step of the phase of these names can be compiled."""


@dataclass(frozen=True, kw_only=True)
class Solver:
    """Base of all solvers.

    Attributes:
        lr: step size for the images; other variables may bring their own.
        relative: ``lr`` is a share of the way from black to white, so that it suits however the
            client normalizes; by default it is in units of the normalized images.
        iterations: the largest number of iterations.
        decay: schedule that scales all step sizes; ``None`` keeps them constant.
        plateau: when to leave a stage of the schedule early; never by default.
        seconds: time after which the schedule has ended, however slow the iterations are.
        pure: whether a step is one function of tensors: it can be compiled, and move only some of
            the variables.
    """

    lr: float
    iterations: int
    relative: bool = False
    decay: Schedule | None = None
    plateau: Plateau | None = None
    seconds: float | None = None
    pure: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require("iterations", self.iterations, least=1)
        require("lr", self.lr, above=0)
        if self.seconds is not None:
            require("seconds", self.seconds, above=0)

    def scale(self, iteration: int) -> float:
        """Multiplier of all step sizes in ``iteration``, counted from 0."""
        return 1.0 if self.decay is None else self.decay(iteration, self.iterations)

    def next_stage(self, iteration: int) -> int:
        """Where the schedule's next stage begins, or the end."""
        if self.decay is None:
            return self.iterations
        return self.decay.next_stage(iteration, self.iterations)

    def hurried(self, loop: Loop) -> Loop:
        """Return the loop, moved ahead on the schedule as far as the time limit demands."""
        if self.seconds is None:
            return loop
        due = math.ceil(min(1.0, loop.seconds / self.seconds) * self.iterations)
        begun = loop.done if due >= self.next_stage(loop.place) else loop.begun
        return replace(loop, place=max(loop.place, due), begun=begun)

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
        """Do one iteration: return new values, new state, and [loss, match] before it."""
        raise NotImplementedError

    def finished(self, state: State) -> bool:
        """Whether further steps would change nothing."""
        return False

    def answer(self, values: State, state: State) -> State:
        """Return what the run has found: by default, the point where it ended."""
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


@dataclass(frozen=True, eq=False)
class Solution:
    """What the loop has found.

    Attributes:
        values: every variable, learned and constant.
        history: ``loss`` and ``match`` [iterations], each before the step it led to.
        match: distance of the answer.
        seconds: time spent, including that before an interruption.
        compiled: whether its step was, for some of the time at least.
    """

    values: State
    history: dict[str, Tensor]
    match: float
    seconds: float
    compiled: bool


@dataclass(frozen=True, eq=False)
class Loop:
    """The state of the loop between two iterations.

    Attributes:
        values: values of the learned variables.
        constants: values of the other variables.
        phase: the current phase.
        state: the solver's own state.
        track: [iterations, 2], loss and match so far.
        done: the number of iterations done.
        place: the place on the schedule; further than ``done`` once a stage was left early.
        begun: iterations done when the present stage began.
        since: iterations done and seconds spent when the present phase began.
        fast: whether the step of this phase is compiled, once that has been decided.
        compiled: whether the step of any phase was compiled.
        seconds: time spent.
    """

    values: State
    constants: State
    phase: Phase
    state: State
    track: Tensor
    done: int = 0
    place: int = 0
    begun: int = 0
    since: tuple[int, float] = (0, 0.0)
    fast: bool | None = None
    compiled: bool = False
    seconds: float = 0.0

    @property
    def all_values(self) -> State:
        """Return all values: learned, constant, and those of the phase."""
        return {**self.constants, **self.phase.constants, **self.values}

    def save(self, checkpoint: Checkpoint) -> None:
        """Store the state."""
        states = {
            "values": self.values,
            "constants": self.constants,
            "phase": self.phase.constants,
            "state": self.state,
        }
        tensors = {f"{part}/{n}": t for part, state in states.items() for n, t in state.items()}
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        checkpoint.save({**tensors, "track": self.track}, {**numbers, "phases": self.phase.names})

    def restored(self, checkpoint: Checkpoint) -> Loop:
        """What was stored in a run of the same work, or this state if nothing was."""
        saved = checkpoint.load()
        if saved is None:
            return self
        tensors, numbers = saved
        moved = {name: tensor.to(self.track.device) for name, tensor in tensors.items()}
        phase = Phase(tuple(numbers.pop("phases")), under(moved, "phase/"))
        return Loop(
            values=under(moved, "values/"),
            constants=under(moved, "constants/"),
            phase=phase,
            state=under(moved, "state/"),
            track=moved["track"],
            **numbers,
        )


_NUMBERS = ("done", "place", "begun", "since", "fast", "compiled", "seconds")


def solve(
    objective: Objective,
    variables: Mapping[str, Variable],
    solver: Solver,
    *,
    refresh: Refresh | None = None,
    on_progress: Progress | None = None,
    paused: Paused = lambda: False,
    checkpoint: Checkpoint | None = None,
    compiling: Compiling = "auto",
    traceable: Traceable = lambda phases: True,
) -> Solution:
    """Minimize ``objective`` over the variables that have a step size.

    Args:
        objective: pure function of all values.
        variables: what it depends on.
        solver: the update rule and its schedule.
        refresh: begins the phases.
        on_progress: called after every iteration.
        paused: asked after every iteration whether to store the state and raise :class:`Pause`.
        checkpoint: where to store the state from time to time and to resume from.
        compiling: whether to compile the step.
        traceable: whether the objective allows it.
    """
    began = time.perf_counter()
    constants = {name: v.value for name, v in variables.items() if v.lr is None}
    learned = {name: v for name, v in variables.items() if v.lr is not None}
    values = {name: v.value for name, v in learned.items()}
    track = torch.zeros((solver.iterations, 2), device=values["images"].device)
    loop = Loop(values, constants, Phase(), solver.start(values), track)
    if checkpoint is not None:
        loop = loop.restored(checkpoint)
        began -= loop.seconds
    steps = _Steps(objective, learned, solver, compiling, traceable)
    reached = range(loop.place, loop.place + 1)
    try:
        while loop.place < solver.iterations and not solver.finished(loop.state):
            now = Moment(loop.done, reached)
            phase = None if refresh is None else refresh(loop.all_values, loop.phase, now)
            if phase is not None:
                if loop.fast and phase.names != loop.phase.names:
                    loop = replace(loop, since=(loop.done, time.perf_counter() - began), fast=None)
                loop = replace(loop, phase=phase)
            loop, losses = steps.next(loop)
            loop = solver.hurried(replace(loop, seconds=time.perf_counter() - began))
            reached = range(reached.stop, loop.place + 1)
            if on_progress is not None:
                on_progress(loop.place, solver.iterations, losses[1])
            if checkpoint is not None and checkpoint.due():
                loop.save(checkpoint)
            if paused():
                raise Pause
    except (KeyboardInterrupt, Pause):
        if checkpoint is not None:
            loop.save(checkpoint)
        raise
    if checkpoint is not None:
        loop.save(checkpoint)
    found = {**loop.all_values, **solver.answer(loop.values, loop.state)}
    loss, match = objective(found, torch.ones_like(track[0, 0]), loop.phase.names)
    if not (loss.isfinite() and match.isfinite()):
        raise LeakmeterError("the attack diverged (its loss is not finite): lower its lr")
    losses, matches = loop.track[: loop.done].cpu().unbind(1)
    return Solution(
        values={name: found[name] for name in variables},
        history={"loss": losses, "match": matches},
        match=match.item(),
        seconds=loop.seconds,
        compiled=loop.compiled,
    )


Step = Callable[[State, State, State, Tensor, Tensor, Tensor], tuple[State, State, Tensor]]
"""(values, constants, state, share, scale, count) -> (values, state, [loss, match])."""


class _Steps:
    """Performs the iterations, with a compiled step once that saves time."""

    def __init__(
        self,
        objective: Objective,
        learned: Mapping[str, Variable],
        solver: Solver,
        compiling: Compiling,
        traceable: Traceable,
    ) -> None:
        self.objective, self.learned, self.solver = objective, learned, solver
        self.compiling, self.traceable = compiling, traceable
        # Of the steps that move different variables the most frequent one is worth compiling.
        self.frequent = [name for name, v in learned.items() if v.every == 1]
        self.fast: dict[tuple[str, ...], Step] = {}

    def next(self, loop: Loop) -> tuple[Loop, Tensor]:
        """The loop after one more iteration, and [loss, match] before it."""
        solver, place = self.solver, loop.place
        loop = self._decide(loop)
        due = [n for n, v in self.learned.items() if not solver.pure or not loop.done % v.every]
        device = loop.track.device
        inputs = (
            {name: loop.values[name] for name in due},
            {n: t for n, t in loop.all_values.items() if n not in due},
            loop.state,
            torch.tensor(place / solver.iterations, device=device),
            torch.tensor(solver.scale(place), device=device),
            torch.tensor(loop.done + 1.0, device=device),
        )
        outputs = None
        if loop.fast and due == self.frequent:
            try:
                outputs = self._fast(loop.phase.names)(*inputs)
                loop = replace(loop, compiled=True)
            except Exception as error:  # whatever is wrong with the step itself, it raises below
                log_failure(error)
                loop = replace(loop, fast=False)
        values, state, losses = outputs or self._step(due, loop.phase.names)(*inputs)
        loop.track[loop.done] = losses
        done, place = loop.done + 1, place + 1
        begun = loop.begun
        if place == solver.next_stage(place - 1):
            begun = done
        elif solver.plateau is not None and solver.plateau.reached(loop.track[begun:done, 1]):
            begun, place = done, solver.next_stage(place)
        values, state = {**loop.values, **values}, {**loop.state, **state}
        loop = replace(loop, values=values, state=state, done=done, place=place, begun=begun)
        return loop, losses

    def _fast(self, phases: tuple[str, ...]) -> Step:
        if phases not in self.fast:
            self.fast[phases] = compiled(self._step(self.frequent, phases))
        return self.fast[phases]

    def _decide(self, loop: Loop) -> Loop:
        """Whether to compile, once enough iterations of the step's present form are measured."""
        measured, seconds = loop.done - loop.since[0], loop.seconds - loop.since[1]
        if loop.fast is not None or measured < MEASURED:
            return loop
        remaining = seconds / measured * (self.solver.iterations - loop.place)
        if self.solver.seconds is not None:
            remaining = min(remaining, self.solver.seconds - loop.seconds)
        wanted = self.compiling == "always" or (self.compiling == "auto" and pays(remaining))
        possible = self.solver.pure and self.traceable(loop.phase.names)
        return replace(loop, fast=possible and wanted)

    def _step(self, due: Sequence[str], phases: tuple[str, ...]) -> Step:
        learned = {name: self.learned[name] for name in due}

        def step(
            values: State, constants: State, state: State, share: Tensor, scale: Tensor, n: Tensor
        ) -> tuple[State, State, Tensor]:
            def differentiate(values: State) -> tuple[State, tuple[Tensor, Tensor]]:
                return grad_and_value(
                    lambda v: self.objective({**constants, **v}, share, phases), has_aux=True
                )(values)

            return self.solver.step(differentiate, learned, values, state, Clock(scale, n))

        return step
