"""An attack is a choice of parts; running it is the same for all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

import leakscope
from leakscope.attack.checkpoint import Checkpoint
from leakscope.attack.compiling import Compiling
from leakscope.attack.distance import Distance, as_sent
from leakscope.attack.labels import Automatic, Known, Labels, Single
from leakscope.attack.prior import Prior
from leakscope.attack.problem import Problem
from leakscope.attack.reconstruction import Reconstruction
from leakscope.attack.solver import (
    Moment,
    Objective,
    Progress,
    Refresh,
    Solution,
    Solver,
    Traceable,
    Variable,
    solve,
)
from leakscope.attack.trajectory import Start, Trajectory
from leakscope.errors import require, unknown
from leakscope.federated.local import behaviour
from leakscope.state import State, under
from leakscope.update import Update

Beginning = Literal["noise", "grey"]
"""Images begin as N(0, 1) in normalised pixels, or as constant grey."""

SOLVED = 1e-4
"""Once a restart has brought the match below this share of where it began, no other follows."""


@dataclass(frozen=True)
class Emphasis:
    """A factor on the distance that moves geometrically from ``first`` to ``last`` (DLFA).

    Attributes:
        first: the factor at the beginning.
        last: the factor once ``until`` of all iterations are done, and from then on.
    """

    first: float
    last: float
    until: float = 0.5

    def __post_init__(self) -> None:
        require("first emphasis", self.first, above=0)
        require("last emphasis", self.last, above=0)
        require("until", self.until, above=0, most=1)

    def __call__(self, share: Tensor) -> Tensor:
        """The factor after ``share`` of all iterations."""
        ratio = torch.tensor(self.last / self.first, device=share.device)
        return self.first * ratio ** (share / self.until).clamp_max(1)


@dataclass(frozen=True, eq=False)
class View:
    """One update, and which of the images under reconstruction its client used for it.

    Attributes:
        problem: the update, prepared.
        members: [n] indices of the images, or ``None`` for all in order.
        labels: [n] labels of these images in this update, or ``None`` for those of the images.
        weight: how much it counts beside other updates.
        prefix: of the names of its trajectory's parameters.
    """

    problem: Problem
    members: Tensor | None = None
    labels: Tensor | None = None
    weight: float = 1.0
    prefix: str = ""

    def share_of(self, values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Its images, and their labels [n] or class probabilities [n, classes]."""
        x, y = values["images"], values["labels"]
        if y.is_floating_point():
            y = y.softmax(1)
        if self.members is not None:
            x, y = x[self.members], y[self.members]
        return x, y if self.labels is None else self.labels


@dataclass(frozen=True, kw_only=True)
class Attack:
    """``minimise D(observed, predicted(x, y; theta)) + priors(x) + penalty(theta)``.

    Attributes:
        trajectory: how dummy data would have moved the weights.
        distance: how that is compared with what was observed.
        priors: what is known about images.
        solver: how the objective is minimised.
        labels: where labels come from unless they are given to :meth:`run`.
        start: how images begin.
        restarts: runs from different starts, of which the best match is kept.
        emphasis: schedule of a factor on the distance.
        switching: strength of :class:`~leakscope.attack.switching.Switching`; none for weights of a
            client with Adam, where it costs 5 dB and more (docs/retrace.md).
    """

    trajectory: Trajectory
    distance: Distance
    priors: tuple[Prior, ...]
    solver: Solver
    labels: Labels = field(default_factory=Automatic)
    start: Beginning = "noise"
    restarts: int = 1
    emphasis: Emphasis | None = None
    switching: float = 0.0

    def __post_init__(self) -> None:
        require("restarts", self.restarts, least=1)
        require("switching", self.switching)
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

    def run(
        self,
        model: nn.Module,
        update: Update,
        *,
        labels: Tensor | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        on_progress: Progress | None = None,
        checkpoint: str | Path | None = None,
        compiling: Compiling = "auto",
    ) -> Reconstruction:
        """Reconstruct the client's examples from ``update`` alone.

        Args:
            model: the architecture; its weights are not used, those of the update are.
            update: what the client sent.
            labels: [N] integers if the attacker is assumed to know them, else they are recovered.
            seed: of the random start; the same seed gives the same bits on the same machine.
            device: where to compute; the model's own by default.
            on_progress: called after every iteration with (done, total, match).
            checkpoint: a file that keeps the half-finished attack; if it holds one, the attack
                goes on from there. It is removed at the end.
            compiling: whether to compile the attack's step: when that is expected to save time,
                ``always`` or ``never``. It changes the last bits of the result, so where runs must
                be the same to the bit, decide.
        """
        problem = Problem.of(model, update, device)
        source = self.labels if labels is None else Known(labels)
        identity = ""
        if checkpoint is not None:
            told = None if labels is None else labels.tolist()
            network = behaviour(model, problem.shape)
            identity = f"{self!r} {seed} {told} {network} {update.fingerprint()}"
        return self.reconstruct(
            [View(problem)],
            source,
            seed=seed,
            on_progress=on_progress,
            checkpoint=None if checkpoint is None else Path(checkpoint),
            identity=identity,
            compiling=compiling,
        )

    def reconstruct(
        self,
        views: Sequence[View],
        source: Labels,
        *,
        count: int | None = None,
        seed: int = 0,
        on_progress: Progress | None = None,
        checkpoint: Path | None = None,
        identity: str = "",
        compiling: Compiling = "auto",
    ) -> Reconstruction:
        """Find the images that explain all ``views`` at once.

        Args:
            views: at least one update and its share in the images.
            source: of the labels of all images.
            count: how many images there are; those of the only view by default.
            seed: of the random start.
            on_progress: called after every iteration.
            checkpoint: a file that keeps the half-finished attack.
            identity: what that file belongs to.
            compiling: whether to compile the step.
        """
        whole = views[0].problem
        if count is not None:
            whole = replace(whole, num_examples=count)
        objective = self._objective(views, whole)
        solutions: list[Solution] = []
        stores: list[Checkpoint] = []
        for restart in range(self.restarts):
            variables = self._variables(views, whole, source, seed + restart * 1_000_003)
            if checkpoint is not None:
                place = checkpoint.with_name(f"{checkpoint.name}{restart or ''}")
                key = f"{leakscope.__version__} {identity} {restart}"
                key = hashlib.sha256(key.encode()).hexdigest()
                stores.append(Checkpoint(place, key))
            solutions.append(
                solve(
                    objective,
                    variables,
                    self.solver,
                    refresh=self._refresh(views),
                    on_progress=_shifted(on_progress, restart, self.restarts),
                    checkpoint=stores[-1] if stores else None,
                    compiling=compiling,
                    traceable=self._traceable(views),
                )
            )
            if solutions[-1].match < SOLVED * solutions[-1].history["match"][0]:
                break
        for store in stores:
            store.remove()
        return self._result(whole, solutions, source, seed)

    def _result(
        self, problem: Problem, solutions: list[Solution], source: Labels, seed: int
    ) -> Reconstruction:
        best = min(solutions, key=lambda solution: solution.match)
        labels = best.values["labels"]
        x = self.trajectory.merge(problem, best.values["images"])
        return Reconstruction(
            images=problem.pixels(x).clamp(0, 1).cpu(),
            labels=(labels.argmax(1) if labels.is_floating_point() else labels).cpu(),
            history=best.history,
            seconds=sum(solution.seconds for solution in solutions),
            attack=repr(self),
            seed=seed,
            labels_known=isinstance(source, Known),
            compiled=best.compiled,
            parameters={name: t.cpu() for name, t in best.values.items() if t.ndim == 0},
        )

    def _variables(
        self, views: Sequence[View], problem: Problem, source: Labels, seed: int
    ) -> dict[str, Variable]:
        """Images, labels and the trajectories' own, at their start."""
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

        def objective(values: Mapping[str, Tensor], share: Tensor) -> tuple[Tensor, Tensor]:
            x = values["images"]
            match, penalty = x.new_zeros(()), x.new_zeros(())
            for view, problem, compare in compared:
                its = view.share_of(values)
                theta = under(dict(values), view.prefix)
                predicted = self.trajectory.predict(problem, *its, theta)
                match = match + view.weight * compare(predicted)
                penalty = penalty + self.trajectory.penalty(problem, *its, theta)
            for prior in self.priors:
                penalty = penalty + prior.penalty(x, whole)
            weight = 1.0 if self.emphasis is None else self.emphasis(share)
            return weight * match + penalty, match

        return objective

    def _felt(self, problem: Problem) -> Problem:
        """The same to be differentiated, with units that switch."""
        return problem if problem.adaptive else replace(problem, switching=self.switching)

    def _traceable(self, views: Sequence[View]) -> Traceable:
        return lambda constants: all(
            self.trajectory.traceable(under(constants, view.prefix)) for view in views
        )

    def _refresh(self, views: Sequence[View]) -> Refresh:
        def refresh(values: State, now: Moment) -> State:
            return {
                view.prefix + name: tensor
                for view in views
                for name, tensor in self.trajectory.refresh(
                    view.problem, *view.share_of(values), under(values, view.prefix), now
                ).items()
            }

        return refresh


def _shifted(on_progress: Progress | None, restart: int, restarts: int) -> Progress | None:
    """The same callback, with the work of all restarts as its total."""
    if on_progress is None or restarts == 1:
        return on_progress
    return lambda done, total, match: on_progress(restart * total + done, restarts * total, match)
