"""How dummy data would have moved the weights: the model of the client's path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from leakscope.attack.problem import Problem
from leakscope.attack.solver import Variable
from leakscope.errors import LeakscopeError
from leakscope.update import State


class Trajectory(Protocol):
    """Predicts the movement of the weights; may own learnable parameters."""

    def variables(self, problem: Problem) -> dict[str, Variable]:
        """The learnable parameters at their start, each with its rate and projection."""
        ...

    def predict(self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]) -> State:
        """Movement of the weights, with the sign of a gradient.

        Args:
            problem: the update under attack.
            x: dummy images, normalised, [N, C, H, W].
            y: dummy labels [N], or class probabilities [N, classes].
            theta: current values of :meth:`variables`.
        """
        ...


@dataclass(frozen=True)
class Start:
    """``g(w0, x, y)``: one gradient at the weights the client received (DLG, IG).

    Exact for one gradient or one local step; the further the client trains, the worse.
    """

    def variables(self, problem: Problem) -> dict[str, Variable]:
        """Nothing to learn."""
        return {}

    def predict(self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]) -> State:
        """The gradient at w0."""
        return problem.gradient(problem.before, x, y)


@dataclass(frozen=True)
class Line:
    """``g(w(alpha), x, y)`` with ``w(alpha) = (1 - alpha) w0 + alpha wT`` (SME, algorithm 1).

    Attributes:
        alpha: where on the line between both weights to start; clipped to [0, 1].
        lr: step size for alpha.
    """

    alpha: float = 0.5
    lr: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise LeakscopeError(f"alpha is {self.alpha}: use a number from 0 to 1")
        if not self.lr >= 0:
            raise LeakscopeError(f"lr of alpha is {self.lr}: use 0 or more")

    def variables(self, problem: Problem) -> dict[str, Variable]:
        """The place on the line, a scalar."""
        if problem.after is None:
            raise LeakscopeError(
                "this attack needs the weights before and after, the update has one gradient: "
                "use ig"
            )
        some = next(iter(problem.before.values()))
        return {
            "alpha": Variable(
                some.new_tensor(self.alpha), lr=self.lr, project=lambda a: a.clamp(0, 1)
            )
        }

    def predict(self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]) -> State:
        """The gradient at w(alpha)."""
        assert problem.after is not None
        weights = {
            name: start.lerp(problem.after[name], theta["alpha"])
            for name, start in problem.before.items()
        }
        return problem.gradient(weights, x, y)
