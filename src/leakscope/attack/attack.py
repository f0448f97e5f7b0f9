"""An attack is a choice of parts; running it is the same for all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from leakscope.attack.checkpoint import Checkpoint
from leakscope.attack.distance import Distance
from leakscope.attack.labels import Counts, Known, Labels
from leakscope.attack.prior import Prior
from leakscope.attack.problem import Problem
from leakscope.attack.reconstruction import Reconstruction
from leakscope.attack.solver import Adam, Objective, Progress, Variable, solve
from leakscope.attack.trajectory import Trajectory
from leakscope.federated.local import behaviour
from leakscope.update import Update


@dataclass(frozen=True, kw_only=True)
class Attack:
    """``minimise D(observed, predicted(x, y; theta)) + priors(x)`` over x and theta.

    Attributes:
        trajectory: how dummy data would have moved the weights.
        distance: how that is compared with what was observed.
        priors: what is known about images.
        solver: how the objective is minimised.
        labels: where labels come from unless they are given to :meth:`run`.
    """

    trajectory: Trajectory
    distance: Distance
    priors: tuple[Prior, ...]
    solver: Adam
    labels: Labels = field(default_factory=Counts)

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
        """
        problem = Problem.of(model, update, device)
        source = self.labels if labels is None else Known(labels)
        theta = self.trajectory.variables(problem)
        variables = {
            "images": self._start_images(problem, seed),
            "labels": source.variable(problem),
            **theta,
        }
        store = None
        if checkpoint is not None:
            told = variables["labels"].value.tolist()
            network = behaviour(model, problem.shape)
            identity = f"{self!r} {seed} {told} {network} {update.fingerprint()}"
            store = Checkpoint(Path(checkpoint), hashlib.sha256(identity.encode()).hexdigest())
        solution = solve(
            self._objective(problem),
            variables,
            self.solver,
            on_progress=on_progress,
            checkpoint=store,
        )
        if store is not None:
            store.remove()
        found = solution.values
        pixels = (found["images"] - problem.low) / (problem.high - problem.low)
        return Reconstruction(
            images=pixels.clamp(0, 1).cpu(),
            labels=found["labels"].cpu(),
            history=solution.history,
            seconds=solution.seconds,
            attack=repr(self),
            seed=seed,
            labels_known=labels is not None,
            parameters={name: found[name].cpu() for name in theta},
        )

    def _start_images(self, problem: Problem, seed: int) -> Variable:
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn((problem.num_examples, *problem.shape), generator=generator)
        return Variable(noise.to(problem.low), lr=self.solver.lr, project=self._project(problem))

    def _project(self, problem: Problem) -> Callable[[Tensor], Tensor]:
        def project(x: Tensor) -> Tensor:
            for prior in self.priors:
                x = prior.project(x, problem)
            return x

        return project

    def _objective(self, problem: Problem) -> Objective:
        observed = problem.mean_gradient() if self.distance.sees_scale else problem.observed

        def objective(values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
            x, y = values["images"], values["labels"]
            match = self.distance(self.trajectory.predict(problem, x, y, values), observed)
            loss = match
            for prior in self.priors:
                loss = loss + prior.penalty(x, problem)
            return loss, match

        return objective
