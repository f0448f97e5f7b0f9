"""Attacks composed of parts, and their repetition from several starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from leakmeter.attacks.attack import RunOptions, Searching, View
from leakmeter.attacks.distance import Distance, as_sent
from leakmeter.attacks.labels import Automatic, Known, Labels, Single
from leakmeter.attacks.prior import Prior
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.attacks.solver import (
    Moment,
    Objective,
    Phase,
    Refresh,
    Solver,
    Variable,
    solve,
)
from leakmeter.attacks.trajectory import Start, Trajectory
from leakmeter.errors import require, unknown
from leakmeter.execution import Checkpoint, Progress, kept
from leakmeter.state import State, under

Beginning = Literal["noise", "gray"]
"""Images begin as N(0, 1) in normalized pixels, or as constant gray."""


@dataclass(frozen=True)
class Emphasis:
    """A factor on the distance that moves geometrically from ``first`` to ``last`` (DLFA).

    Attributes:
        first: the factor at the beginning.
        last: the factor from the point on where ``until`` of all iterations are done.
    """

    first: float
    last: float
    until: float = 0.5

    def __post_init__(self) -> None:
        require("first emphasis", self.first, above=0)
        require("last emphasis", self.last, above=0)
        require("until", self.until, above=0, most=1)

    def __call__(self, share: Tensor) -> Tensor:
        """Return the factor after ``share`` of all iterations."""
        ratio = torch.tensor(self.last / self.first, device=share.device)
        return self.first * ratio ** (share / self.until).clamp_max(1)


@dataclass(frozen=True, kw_only=True)
class MatchedAttack(Searching):
    """``minimize D(observed, predicted(x, y; theta)) + priors(x) + penalty(theta)``.

    Attributes:
        trajectory: how dummy data would have moved the weights.
        distance: how that is compared with what was observed.
        priors: what is known about images.
        solver: how the objective is minimized.
        labels: where labels come from unless they are given to :meth:`run`.
        start: how images are initialized.
        emphasis: schedule of a factor on the distance.
        relu_curvature: strength of :class:`~leakmeter.attacks.relu_curvature.ReluCurvature`. It is
            not used on weights that a client trained with Adam, where it costs 5 dB and more
            (docs/retrace.md).
    """

    trajectory: Trajectory
    distance: Distance
    priors: tuple[Prior, ...]
    solver: Solver
    labels: Labels = field(default_factory=Automatic)
    start: Beginning = "noise"
    emphasis: Emphasis | None = None
    relu_curvature: float = 0.0

    def __post_init__(self) -> None:
        require("relu_curvature", self.relu_curvature)
        if self.start not in get_args(Beginning):
            raise unknown("start", self.start, get_args(Beginning))

    @property
    def needs(self) -> str:
        """What must have been sent and what must be known about the client, in words."""
        settings = "the client's lr, epochs, batch_size and optimizer"
        if self.trajectory.replays:
            words = f"weights before and after, and {settings}"
        elif isinstance(self.trajectory, Start):
            extra = f" with {settings}" if self.distance.sees_scale else ""
            words = f"one gradient, or weights before and after{extra}"
        else:
            words = "weights before and after"
        return words + (", of one example" if isinstance(self.labels, Single) else "")

    @property
    def iterations(self) -> int:
        """The largest number of iterations."""
        return self.solver.iterations

    def within(self, *, iterations: int | None = None, seconds: float | None = None) -> Self:
        """Return this attack limited to the given iterations and seconds."""
        fewer = self.iterations if iterations is None else min(iterations, self.iterations)
        time = self.solver.seconds if seconds is None else seconds
        return replace(self, solver=replace(self.solver, iterations=fewer, seconds=time))

    def explain(
        self, views: Sequence[View], source: Labels, options: RunOptions, count: int | None = None
    ) -> Reconstruction:
        """Run a single search."""
        whole = views[0].problem
        if count is not None:
            whole = replace(whole, num_examples=count)
        folder = options.folder
        solution = solve(
            self._objective(views, whole),
            self._variables(views, whole, source, options.seed),
            self.solver,
            refresh=self._refresh(views),
            on_progress=options.on_progress,
            paused=options.paused,
            checkpoint=None if folder is None else Checkpoint(folder, "search"),
            compiling=options.compiling,
            traceable=self._traceable,
        )
        labels = solution.values["labels"]
        x = self.trajectory.merge(whole, solution.values["images"])
        return Reconstruction(
            images=whole.pixels(x).clamp(0, 1).cpu(),
            labels=(labels.argmax(1) if labels.is_floating_point() else labels).cpu(),
            history=solution.history,
            seconds=solution.seconds,
            attack=repr(self),
            seed=options.seed,
            labels_known=isinstance(source, Known),
            compiled=solution.compiled,
            parameters={name: t.cpu() for name, t in solution.values.items() if t.ndim == 0},
            match=solution.match,
        )

    def _variables(
        self, views: Sequence[View], problem: Problem, source: Labels, seed: int
    ) -> dict[str, Variable]:
        """Return the images, labels and the trajectories' own variables at their start."""
        generator = torch.Generator().manual_seed(seed)
        shape = (problem.num_examples * self.trajectory.copies(problem), *problem.shape)
        if self.start == "noise":
            images = torch.randn(shape, generator=generator).to(problem.low)
        else:
            images = problem.low.lerp(problem.high, 0.5).expand(shape).clone()
        lr = self.solver.lr
        if self.solver.relative:
            lr *= (problem.high - problem.low).mean().item()
        variables = {
            "images": Variable(problem.laid_out(images), lr=lr, project=self._project(problem)),
            "labels": source.variable(problem, generator),
        }
        for view in views:
            for name, variable in self.trajectory.variables(view.problem).items():
                variables[view.prefix + name] = variable
        return variables

    def _project(self, problem: Problem) -> Callable[[Tensor], Tensor]:
        def project(x: Tensor) -> Tensor:
            for prior in self.priors:
                x = prior.project(x, problem)
            return x

        return project

    def _objective(self, views: Sequence[View], whole: Problem) -> Objective:
        compared = [
            (view, self._felt(view.problem), as_sent(self.distance, view.problem)) for view in views
        ]

        def objective(
            values: Mapping[str, Tensor], share: Tensor, phases: tuple[str, ...]
        ) -> tuple[Tensor, Tensor]:
            x = values["images"]
            match, penalty = x.new_zeros(()), x.new_zeros(())
            trajectories = self._during(phases, len(views))
            for trajectory, (view, problem, compare) in zip(trajectories, compared, strict=True):
                its = view.share_of(values)
                theta = under(dict(values), view.prefix)
                predicted = trajectory.predict(problem, *its, theta)
                match = match + view.weight * compare(predicted)
                penalty = penalty + trajectory.penalty(problem, *its, theta)
            for prior in self.priors:
                penalty = penalty + prior.penalty(x, whole)
            weight = 1.0 if self.emphasis is None else self.emphasis(share)
            return weight * match + penalty, match

        return objective

    def _felt(self, problem: Problem) -> Problem:
        """Return the problem used for gradients, in which ReLU units have curvature."""
        return problem if problem.adaptive else replace(problem, relu_curvature=self.relu_curvature)

    def _during(self, phases: tuple[str, ...], views: int) -> list[Trajectory]:
        """Return the trajectory that currently predicts each view."""
        if not phases:
            return [self.trajectory] * views
        return [self.trajectory.during(phase) for phase in phases]

    def _traceable(self, phases: tuple[str, ...]) -> bool:
        return all(each.traceable for each in self._during(phases, 1))

    def _refresh(self, views: Sequence[View]) -> Refresh:
        def refresh(values: State, phase: Phase, now: Moment) -> Phase | None:
            names = phase.names or ("",) * len(views)
            changed = False
            constants: State = {}
            following: list[str] = []
            for name, view in zip(names, views, strict=True):
                its = Phase((name,), under(phase.constants, view.prefix))
                another = self.trajectory.refresh(view.problem, *view.share_of(values), its, now)
                changed = changed or another is not None
                its = another or its
                following += its.names
                constants |= {view.prefix + n: tensor for n, tensor in its.constants.items()}
            return Phase(tuple(following), constants) if changed else None

        return refresh


SOLVED = 1e-4
"""No further start follows one that brought the match below this share of its initial value."""


@dataclass(frozen=True)
class Repeat(Searching):
    """An attack from several random starts, of which the best match is kept.

    Attributes:
        attack: the attack to repeat.
        times: how often to repeat it.
    """

    attack: MatchedAttack
    times: int

    def __post_init__(self) -> None:
        require("restarts", self.times, least=1)

    @property
    def needs(self) -> str:
        """The same as for the attack."""
        return self.attack.needs

    @property
    def trajectory(self) -> Trajectory:  # type: ignore[override]
        """The attack's trajectory."""
        return self.attack.trajectory

    @property
    def labels(self) -> Labels:  # type: ignore[override]
        """The attack's labels."""
        return self.attack.labels

    @property
    def iterations(self) -> int:
        """The largest number of iterations of each start."""
        return self.attack.iterations

    def within(self, *, iterations: int | None = None, seconds: float | None = None) -> Self:
        """Return this attack with limits; the seconds are those of all starts together."""
        each = None if seconds is None else seconds / self.times
        return replace(self, attack=self.attack.within(iterations=iterations, seconds=each))

    def explain(
        self, views: Sequence[View], source: Labels, options: RunOptions, count: int | None = None
    ) -> Reconstruction:
        """Search until one start has solved the problem or all have been tried."""
        found: list[Reconstruction] = []
        for start in range(self.times):

            def work(folder: Path | None, start: int = start) -> Reconstruction:
                its = replace(
                    options,
                    seed=options.seed + start * 1_000_003,
                    on_progress=_shifted(options.on_progress, start, self.times),
                    folder=folder,
                )
                return self.attack.explain(views, source, its, count)

            found.append(
                kept(work, options.folder, name="start", of=start, load=Reconstruction.load)
            )
            if found[-1].match < SOLVED * found[-1].history["match"][0]:
                break
        best = min(found, key=lambda each: each.match)
        seconds = sum(each.seconds for each in found)
        return replace(best, seconds=seconds, attack=repr(self), seed=options.seed)


def _shifted(on_progress: Progress | None, restart: int, restarts: int) -> Progress | None:
    """Wrap the callback so that its total is the work of all restarts."""
    if on_progress is None or restarts == 1:
        return on_progress
    return lambda done, total, match: on_progress(restart * total + done, restarts * total, match)
