"""Models of the client's path: how dummy data would have moved the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from leakmeter.attacks.problem import Problem
from leakmeter.attacks.solver import Moment, Phase, Variable
from leakmeter.errors import LeakmeterError, require
from leakmeter.state import State, lerp, under


class Trajectory:
    """Base of all trajectories; may own learnable parameters, and penalize them.

    Attributes:
        replays: whether it goes through the client's local steps, whose settings must be known.
        traceable: whether :meth:`predict` can be compiled as it is.
    """

    replays: ClassVar[bool] = False
    traceable: ClassVar[bool] = True

    def variables(self, problem: Problem) -> dict[str, Variable]:
        """The learnable parameters at their start, each with its rate and projection."""
        return {}

    def predict(self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]) -> State:
        """Movement of the weights as the mean gradient of a local step.

        Args:
            problem: the update under attack.
            x: dummy images, normalized, [N * copies, C, H, W].
            y: dummy labels [N], or class probabilities [N, classes].
            theta: current values of :meth:`variables`, and the constants of the phase.
        """
        raise NotImplementedError

    def penalty(
        self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]
    ) -> Tensor:
        """Return a scalar added to the objective; zero by default."""
        return x.new_zeros(())

    def refresh(
        self, problem: Problem, x: Tensor, y: Tensor, phase: Phase, now: Moment
    ) -> Phase | None:
        """Return the phase that begins ``now``, with one name, or ``None`` if ``phase`` continues.

        Its constants follow from the dummy data, but no gradient flows through them. By default
        there is one phase, without constants.
        """
        return None

    def during(self, phase: str) -> Trajectory:
        """Return the trajectory that predicts during the phase of this name."""
        return self

    def copies(self, problem: Problem) -> int:
        """Return how many dummies stand for one image of the client."""
        return 1

    def merge(self, problem: Problem, x: Tensor) -> Tensor:
        """The client's N images from all dummies [N * copies, C, H, W]."""
        return x


@dataclass(frozen=True)
class Start(Trajectory):
    """``g(w0, x, y)``: one gradient at the weights the client received (DLG, IG).

    Exact for one gradient or one local step; the further the client trains, the worse. On
    weights after several steps it is AGIC's one-batch approximation.
    """

    def predict(self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]) -> State:
        """The gradient at w0."""
        return problem.gradient(problem.before, x, y)


@dataclass(frozen=True)
class Line(Trajectory):
    """``g(w(alpha), x, y)`` with ``w(alpha) = (1 - alpha) w0 + alpha wT`` (SME, algorithm 1).

    Attributes:
        alpha: where on the line between both weights to start; clipped to [0, 1].
        lr: step size for alpha.
        every: iterations between two steps of alpha, each longer by this factor. The gradient of
            alpha needs that of all weights, which takes a quarter of an iteration's time, and alpha
            moves slowly.
    """

    alpha: float = 0.5
    lr: float = 1e-3
    every: int = 5

    def __post_init__(self) -> None:
        require("alpha", self.alpha, most=1)
        require("lr of alpha", self.lr)
        require("every", self.every, least=1)

    def variables(self, problem: Problem) -> dict[str, Variable]:
        """The place on the line, a scalar."""
        return {"alpha": _place(problem, self.alpha, self.lr, self.every)}

    def predict(self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]) -> State:
        """The gradient at w(alpha)."""
        end = both_ends(problem)[1]
        return problem.gradient(lerp(problem.before, end, theta["alpha"]), x, y)


@dataclass(frozen=True, kw_only=True)
class Bezier(Trajectory):
    """``d * g(w(t), x, y)``, ``w(t) = (1-t)^2 w0 + 2t(1-t) P1 + t^2 wT`` (NL-SME, algorithm 1).

    t, the control point P1 and the element-wise scaling d are learned; P1 and d are each as large
    as the network. The paper gives no numbers for rates and penalties.

    Attributes:
        path: learn P1, which starts at the midpoint.
        scaling: learn d, clipped to [0.1, 10], which starts at 1.
        lr_t: step size for t, which starts at 0.5 and is clipped to [0, 1].
        lr_path: step size for P1.
        lr_scaling: step size for d.
        keep_path: weight of ``|P1 - mid|^2``.
        keep_scaling: weight of ``|d - 1|^2``.
        classification: weight of the client's loss on the dummies at w(t).
    """

    path: bool = True
    scaling: bool = True
    lr_t: float
    lr_path: float
    lr_scaling: float
    keep_path: float
    keep_scaling: float
    classification: float = 0.0

    def __post_init__(self) -> None:
        for name in ("lr_t", "lr_path", "lr_scaling", "keep_path", "keep_scaling"):
            require(name, getattr(self, name))
        require("classification", self.classification)

    def variables(self, problem: Problem) -> dict[str, Variable]:
        """t, and for every tensor its part of P1 and d."""
        start, end = both_ends(problem)
        found = {"t": _place(problem, 0.5, self.lr_t)}
        if self.path:
            for name, middle in lerp(start, end, 0.5).items():
                found[f"path/{name}"] = Variable(middle, self.lr_path)
        if self.scaling:
            for name, tensor in start.items():
                found[f"scaling/{name}"] = Variable(
                    tensor.new_ones(tensor.shape), self.lr_scaling, lambda d: d.clamp(0.1, 10)
                )
        return found

    def predict(self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]) -> State:
        """The gradient at w(t), scaled."""
        gradient = problem.gradient(self._weights(problem, theta), x, y)
        scaling = under(dict(theta), "scaling/")
        return {n: g * scaling[n] for n, g in gradient.items()} if scaling else gradient

    def penalty(
        self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]
    ) -> Tensor:
        """Penalize how far P1 and d have moved, and add the optional classification loss."""
        start, end = both_ends(problem)
        total = x.new_zeros(())
        # Each is as large as the network, so terms of zero weight are not computed.
        if self.keep_path:
            middle = lerp(start, end, 0.5)
            for name, point in under(dict(theta), "path/").items():
                total = total + self.keep_path * (point - middle[name]).square().sum()
        if self.keep_scaling:
            for scaling in under(dict(theta), "scaling/").values():
                total = total + self.keep_scaling * (scaling - 1).square().sum()
        if self.classification:
            loss = problem.loss(self._weights(problem, theta), x, y)
            total = total + self.classification * loss
        return total

    def _weights(self, problem: Problem, theta: Mapping[str, Tensor]) -> State:
        (start, end), t = both_ends(problem), theta["t"]
        middle = under(dict(theta), "path/") or lerp(start, end, 0.5)
        return {
            name: (1 - t) ** 2 * start[name] + 2 * t * (1 - t) * middle[name] + t**2 * end[name]
            for name in start
        }


def both_ends(problem: Problem) -> tuple[State, State]:
    """w0 and wT, or a :class:`LeakmeterError` that says what to use instead."""
    if problem.after is None:
        raise LeakmeterError(
            "this attack needs the weights before and after, the update has one gradient: use ig"
        )
    return problem.before, problem.after


def _place(problem: Problem, start: float, lr: float, every: int = 1) -> Variable:
    """A learnable number in [0, 1] on the way between both weights."""
    both_ends(problem)
    some = next(iter(problem.before.values()))
    return Variable(
        some.new_tensor(start), lr=lr, project=lambda place: place.clamp(0, 1), every=every
    )
