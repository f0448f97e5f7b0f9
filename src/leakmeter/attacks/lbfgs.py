"""L-BFGS, the solver of DLG and of SAPAG on small networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from leakmeter.attacks.solver import Clock, Differentiate, Solver, Variable
from leakmeter.state import State


@dataclass(frozen=True, kw_only=True)
class LBFGS(Solver):
    """Limited-memory BFGS without a line search, matching ``torch.optim`` step for step.

    All variables move together. An iteration is ``inner`` evaluations, after which variables are
    projected. Without a line search a run may diverge, so its answer is the best point seen.

    Attributes:
        inner: evaluations of the objective per iteration.
        memory: pairs of steps and gradient changes kept.
    """

    lr: float = 1.0
    inner: int = 20
    memory: int = 100

    def start(self, values: State) -> State:
        """Start with an empty memory."""
        flat = _flat(values, values)
        empty = flat.new_zeros((0, len(flat)))
        return {
            "steps": empty,
            "changes": empty,
            "point": flat,
            "gradient": torch.zeros_like(flat),
            "curvature": flat.new_ones(()),
            "begun": flat.new_zeros(()),
            "finished": flat.new_zeros(()),
            "unit": flat.new_zeros(()),
            "best": flat,
            "best_loss": flat.new_full((), torch.inf),
        }

    def finished(self, state: State) -> bool:
        """Return whether the gradient vanished or no direction descends."""
        return bool(state["finished"])

    def answer(self, values: State, state: State) -> State:
        """Return the best admissible point seen; the last one has not been evaluated."""
        return _shaped(state["best"], values)

    def step(
        self,
        differentiate: Differentiate,
        learned: Mapping[str, Variable],
        values: State,
        state: State,
        clock: Clock,
    ) -> tuple[State, State, Tensor]:
        """Make ``inner`` evaluations, each followed by a step."""
        first_losses: Tensor | None = None
        for _ in range(self.inner):
            gradients, pair = differentiate(values)
            losses = torch.stack(pair)
            first_losses = losses if first_losses is None else first_losses
            if losses[0] < state["best_loss"] and _admissible(values, learned):
                state = {**state, "best": _flat(values, values), "best_loss": losses[0]}
            state = self._remember(_flat(values, values), _flat(gradients, values), state)
            if self.finished(state):
                break
            lr = self.lr * clock.scale
            if not state["begun"]:
                size = state["gradient"].abs().sum()
                lr = lr * torch.maximum((1 / size).clamp_max(1), 0.1 / size)
            move = lr * self._direction(state)
            if not state["gradient"] @ move < -1e-9 * state["unit"]:
                state = {**state, "finished": torch.ones_like(state["finished"])}
                break
            state = {**state, "begun": torch.ones_like(state["begun"])}
            step = _shaped(move, values)
            values = {name: value + step[name] for name, value in values.items()}
        projected = {name: v.project(values[name]) for name, v in learned.items()}
        assert first_losses is not None
        return projected, state, first_losses

    def _remember(self, point: Tensor, gradient: Tensor, state: State) -> State:
        """Add the step from the last point and the change of the gradient to the memory."""
        state = dict(state)
        if state["begun"]:
            change, step = gradient - state["gradient"], point - state["point"]
            bend = change @ step
            if bend > 1e-10 * state["unit"]:
                state["steps"] = torch.cat([state["steps"], step[None]])[-self.memory :]
                state["changes"] = torch.cat([state["changes"], change[None]])[-self.memory :]
                state["curvature"] = bend / (change @ change)
        else:
            # torch's thresholds are absolute, but a confident network's gradient starts out tiny.
            state["unit"] = gradient.abs().max().clamp_max(1)
        state["point"], state["gradient"] = point, gradient
        moving = gradient.abs().max() > 1e-7 * state["unit"]  # false also when not a number
        state["finished"] = (~moving).to(gradient)
        return state

    def _direction(self, state: State) -> Tensor:
        """Return minus the memory's inverse Hessian times the gradient (two-loop recursion)."""
        steps, changes = state["steps"], state["changes"]
        weights = 1 / (steps * changes).sum(1)
        direction = -state["gradient"]
        factors = []
        for step, change, weight in zip(
            reversed(steps), reversed(changes), reversed(weights), strict=True
        ):
            factors.append(weight * (step @ direction))
            direction = direction - factors[-1] * change
        direction = direction * state["curvature"]
        for step, change, weight, factor in zip(
            steps, changes, weights, reversed(factors), strict=True
        ):
            direction = direction + step * (factor - weight * (change @ direction))
        return direction


def _flat(tensors: State, order: State) -> Tensor:
    return torch.cat([tensors[name].flatten() for name in order])


def _shaped(flat: Tensor, like: State) -> State:
    pieces = flat.split([value.numel() for value in like.values()])
    return {
        name: piece.view_as(value)
        for (name, value), piece in zip(like.items(), pieces, strict=True)
    }


def _admissible(values: State, learned: Mapping[str, Variable]) -> bool:
    """Return whether projection would leave all values unchanged."""
    return all(torch.equal(v.project(values[name]), values[name]) for name, v in learned.items())
