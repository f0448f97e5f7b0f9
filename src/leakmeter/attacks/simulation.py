"""The client's local training, unrolled and differentiated through."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.func import vjp

from leakmeter.attacks import client_optimizer
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.trajectory import Trajectory, both_ends
from leakmeter.state import State


@dataclass(frozen=True)
class Simulation(Trajectory):
    """Replays every local step on the dummy data with the client's own optimizer.

    IG's form (appendix B.1) goes over the same dummies in the same batches in every epoch. With
    ``per_epoch`` each epoch has dummies of its own (DLFA), since the client shuffles.

    Time grows with the number of steps T. Memory grows with its square root: the steps are cut
    into about sqrt(T) segments, and the inside of a segment is computed again on the way back.
    """

    per_epoch: bool = False
    replays: ClassVar[bool] = True
    traceable: ClassVar[bool] = False  # the compiler cannot handle recomputation

    def copies(self, problem: Problem) -> int:
        """Return the number of dummies per image: one, or one for each epoch."""
        both_ends(problem)
        known = problem.protocol.need("lr", "epochs", "batch_size", "optimizer")
        return known.epochs if self.per_epoch else 1

    def merge(self, problem: Problem, x: Tensor) -> Tensor:
        """Pair every epoch's dummies with those of the first by PSNR, and average."""
        epochs = x.unflatten(0, (-1, problem.num_examples))
        paired = [epochs[0]]
        for epoch in epochs[1:]:
            gaps = (problem.pixels(epochs[0])[:, None] - problem.pixels(epoch)).square()
            loss = gaps.flatten(2).mean(2).clamp_min(1e-12).log10()
            paired.append(
                epoch[torch.as_tensor(linear_sum_assignment(loss.cpu().double().numpy())[1])]
            )
        return torch.stack(paired).mean(0)

    def predict(self, problem: Problem, x: Tensor, y: Tensor, theta: Mapping[str, Tensor]) -> State:
        """``(w0 - wT) / (eta T)`` of the replay."""
        protocol = problem.protocol
        batches = self._batches(problem)
        size = math.isqrt(len(batches) - 1) + 1
        segments = [batches[i : i + size] for i in range(0, len(batches), size)]
        names = list(problem.before)
        flow = _flat(problem.before, *client_optimizer.fresh(protocol, problem.before))
        # Labels that are learned get a gradient, integers are constants.
        data = [x, y] if y.is_floating_point() else [x]
        done = 0
        for segment in segments:
            run = partial(_train, problem, names, segment, done, y)
            flow = list(_Segment.apply(run, len(data), *data, *flow))  # type: ignore[no-untyped-call]
            done += len(segment)
        scale = protocol.need("lr").lr * len(batches)
        ends = zip(names, flow, strict=False)
        return {name: (problem.before[name] - end) / scale for name, end in ends}

    def _batches(self, problem: Problem) -> list[tuple[Tensor, Tensor]]:
        """For every local step, which dummies and which labels it uses."""
        known, count = problem.protocol.need("epochs", "batch_size"), problem.num_examples
        order = torch.arange(count, device=problem.low.device)
        return [
            (batch + epoch * count * self.per_epoch, batch)
            for epoch in range(known.epochs)
            for batch in order.split(known.batch_size)
        ]


def coarse(problem: Problem, x: Tensor, y: Tensor, strides: int) -> State:
    """``(w0 - wT) / (eta T)`` of a client with SGD if it took few long steps, each over all images.

    Together they are as long as the client's own steps, including what momentum adds.

    Args:
        problem: the update under attack.
        x: normalized images [N, C, H, W].
        y: labels [N] or class probabilities [N, classes].
        strides: how many steps, at most as many as the client took.
    """
    protocol, count = problem.protocol, problem.num_examples
    known, steps = protocol.need("lr", "epochs"), protocol.steps(count)
    strides = min(strides, steps)
    gain = client_optimizer.mixing(protocol, [(0, steps)])[0].item()
    # A sum over all images is that over as many batches as an epoch has.
    batches = steps // known.epochs if protocol.reduction == "sum" else 1
    settings = {
        "epochs": strides,
        "batch_size": count,
        "lr": known.lr * gain * steps / strides / batches,
        "momentum": 0.0,
        "nesterov": False,
        "weight_decay": protocol.weight_decay * batches,
    }
    long = replace(problem, protocol=protocol.model_copy(update=settings))
    moved = Simulation().predict(long, x, y, {})
    return {name: tensor * (gain / batches) for name, tensor in moved.items()}


class _Segment(torch.autograd.Function):
    """Some steps whose inside is not stored but computed again for the derivative."""

    @staticmethod
    def forward(run: Callable[..., Any], count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(run(tensors[:count], tensors[count:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.run, ctx.count = inputs[:2]
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            return tuple(ctx.run(tensors[: ctx.count], tensors[ctx.count :]))

        # No second derivative is needed, and recording for one would store all segments.
        with torch.no_grad():
            pull_back = vjp(run, *ctx.saved_tensors)[1]
            return (None, None, *pull_back(cotangents))


def _train(
    problem: Problem,
    names: list[str],
    batches: list[tuple[Tensor, Tensor]],
    done: int,
    labels: Tensor,
    data: tuple[Tensor, ...],
    flow: tuple[Tensor, ...],
) -> list[Tensor]:
    """Return the weights and the optimizer's buffers after some steps."""
    x, y = data[0], data[1] if len(data) > 1 else labels
    weights = dict(zip(names, flow, strict=False))
    rest = list(flow[len(names) :])
    buffers = [
        dict(zip(names, rest[i : i + len(names)], strict=True))
        for i in range(0, len(rest), len(names))
    ]
    for number, (which, whose) in enumerate(batches, start=done + 1):
        gradient = problem.gradient(weights, x[which], y[whose])
        weights, buffers = client_optimizer.step(
            problem.protocol, weights, gradient, buffers, number
        )
    return _flat(weights, *buffers)


def _flat(*states: State) -> list[Tensor]:
    """All tensors, one after another."""
    return [tensor for state in states for tensor in state.values()]
