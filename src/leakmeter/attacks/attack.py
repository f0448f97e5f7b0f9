"""The base classes of all attacks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from leakmeter.attacks.compiling import Compiling
from leakmeter.attacks.labels import Known, Labels
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.attacks.trajectory import Trajectory
from leakmeter.errors import LeakmeterError
from leakmeter.execution import Paused, Progress, kept
from leakmeter.federated.local import behavior
from leakmeter.update import Update


@dataclass(frozen=True, eq=False, kw_only=True)
class RunOptions:
    """Settings for running an attack, apart from the attack itself.

    Attributes:
        labels: [N] integers if the attacker is assumed to know them, else they are recovered.
        seed: the seed of the random start; the same seed gives the same bits on the same machine.
        device: where to compute; by default, where the model is.
        on_progress: called after every iteration with (done, total, match).
        paused: called after every iteration; if it returns true, the attack raises
            :class:`~leakmeter.execution.Pause`.
        folder: where unfinished work and finished results are kept, if anywhere.
        compiling: whether to compile the attack's step: when that is expected to save time,
            ``always`` or ``never``. It changes the last bits of the result, so choose one of the
            latter two where runs must match bit for bit.
    """

    labels: Tensor | None = None
    seed: int = 0
    device: torch.device | str | None = None
    on_progress: Progress | None = None
    paused: Paused = lambda: False
    folder: Path | None = None
    compiling: Compiling = "auto"


class Attack(ABC):
    """Base of everything that reconstructs examples from an update. It never sees the truth."""

    @property
    @abstractmethod
    def needs(self) -> str:
        """What must have been sent and what must be known about the client, in words."""

    def run(
        self,
        model: nn.Module,
        update: Update,
        *,
        labels: Tensor | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        on_progress: Progress | None = None,
        paused: Paused = lambda: False,
        folder: str | Path | None = None,
        compiling: Compiling = "auto",
    ) -> Reconstruction:
        """Reconstruct the client's examples from ``update`` alone.

        Args:
            model: the architecture; its weights are not used, those of the update are.
            update: what the client sent.
            labels: see :class:`RunOptions` for this and the following arguments.
            seed: the seed of the random start.
            device: where to compute.
            on_progress: called after every iteration.
            paused: called after every iteration.
            folder: where to keep unfinished work; if it holds some of this same run, that resumes.
            compiling: whether to compile the attack's step.
        """
        options = RunOptions(
            labels=labels,
            seed=seed,
            device=device,
            on_progress=on_progress,
            paused=paused,
            folder=None if folder is None else Path(folder),
            compiling=compiling,
        )
        return self.attempt(model, update, options)

    def attempt(self, model: nn.Module, update: Update, options: RunOptions) -> Reconstruction:
        """Do the same as :meth:`run`, with all options in one value."""

        def work(folder: Path | None) -> Reconstruction:
            return self.reconstruct(model, update, replace(options, folder=folder))

        of: list[object] = []
        if options.folder is not None:
            known = update.protocol.need("input_shape")
            network = behavior(model, known.input_shape)
            of = [self, options.labels, options.seed, network, update.fingerprint()]
        return kept(work, options.folder, name="attack", of=of, load=Reconstruction.load)

    @abstractmethod
    def reconstruct(self, model: nn.Module, update: Update, options: RunOptions) -> Reconstruction:
        """Run the attack, whether or not it was run before."""

    @property
    def iterations(self) -> int | None:
        """The largest number of iterations; ``None`` if the attack does not search."""
        return None

    def within(self, *, iterations: int | None = None, seconds: float | None = None) -> Self:
        """Return this attack limited to the given iterations and seconds, where it searches."""
        return self

    def searching(self, model: nn.Module, update: Update) -> Searching:
        """Return the part that can use several updates at once; raise an error if there is none."""
        raise LeakmeterError(f"{type(self).__name__} takes one update: give one file")


class Searching(Attack):
    """An attack that searches for images that explain one update or several."""

    trajectory: Trajectory
    labels: Labels

    @abstractmethod
    def explain(
        self, views: Sequence[View], source: Labels, options: RunOptions, count: int | None = None
    ) -> Reconstruction:
        """Find the images that explain all ``views`` at once.

        Args:
            views: at least one update, each with the images it covers.
            source: where the labels of all images come from.
            options: options of the run; its labels are not used.
            count: how many images there are; by default, those of the only view.
        """

    def reconstruct(self, model: nn.Module, update: Update, options: RunOptions) -> Reconstruction:
        """Reconstruct from one update."""
        problem = Problem.of(model, update, options.device)
        source = self.labels if options.labels is None else Known(options.labels)
        return self.explain([View(problem)], source, options)

    def searching(self, model: nn.Module, update: Update) -> Searching:
        """Return this attack itself."""
        return self


@dataclass(frozen=True, eq=False)
class View:
    """One update, and which of the images under reconstruction its client used for it.

    Attributes:
        problem: the update, prepared.
        members: [n] indices of the images, or ``None`` for all in order.
        labels: [n] labels of these images in this update, or ``None`` for those of the images.
        weight: how much it counts relative to other updates.
        prefix: the prefix of its trajectory's parameter names.
    """

    problem: Problem
    members: Tensor | None = None
    labels: Tensor | None = None
    weight: float = 1.0
    prefix: str = ""

    def share_of(self, values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return its images, and their labels [n] or class probabilities [n, classes]."""
        x, y = values["images"], values["labels"]
        if y.is_floating_point():
            y = y.softmax(1)
        if self.members is not None:
            x, y = x[self.members], y[self.members]
        return x, y if self.labels is None else self.labels
