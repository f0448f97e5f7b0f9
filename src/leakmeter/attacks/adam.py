"""Adam, with optional decoupled weight decay, signed gradients and look-ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from leakmeter.attacks.schedule import Schedule, StepDecay
from leakmeter.attacks.solver import Clock, Differentiate, Solver, Variable
from leakmeter.errors import require
from leakmeter.state import State


@dataclass(frozen=True)
class LookAhead:
    """Follow ``(1 - share) G(x) + share G(x + radius G / |G|)`` (FedLeak's regularization).

    G is the gradient for the images. This prefers flat minima, at the cost of a second gradient.
    """

    share: float
    radius: float

    def __post_init__(self) -> None:
        require("share of the gradient ahead", self.share, most=1)
        require("radius of the look-ahead", self.radius)

    def __call__(self, differentiate: Differentiate) -> Differentiate:
        """Return the same differentiation with the images' gradient regularized."""

        def regularized(values: State) -> tuple[State, tuple[Tensor, Tensor]]:
            here, losses = differentiate(values)
            slope = here["images"]
            step = self.radius * slope / slope.norm().clamp_min(1e-12)
            there, _ = differentiate({**values, "images": values["images"] + step})
            return {**here, "images": slope.lerp(there["images"], self.share)}, losses

        return regularized


@dataclass(frozen=True, kw_only=True)
class Adam(Solver):
    """Adam (Kingma and Ba 2015); AdamW with ``weight_decay`` (Loshchilov and Hutter 2019).

    Attributes:
        sign: follow only the sign of the images' gradient (IG, section 4).
        look_ahead: regularize the images' gradient (FedLeak).
    """

    decay: Schedule | None = field(default_factory=StepDecay)
    sign: bool = False
    look_ahead: LookAhead | None = None
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    pure: ClassVar[bool] = True

    def start(self, values: State) -> State:
        """Start with zero moments."""
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
        """Move every variable with its own step size."""
        if self.look_ahead is not None:
            differentiate = self.look_ahead(differentiate)
        gradients, losses = differentiate(values)
        moved: State = {}
        moments: State = {}
        for name, variable in learned.items():
            assert variable.lr is not None
            lr = clock.scale * variable.lr * variable.every
            count = torch.ceil(clock.count / variable.every)
            new, moment = self._move(name, values[name], gradients[name], state, lr, count)
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
