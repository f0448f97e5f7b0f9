"""One step of the client's optimizer as a function of tensors, as ``torch.optim`` does it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leakmeter.state import State
from leakmeter.update import Protocol


def fresh(protocol: Protocol, weights: State) -> list[State]:
    """Return the optimizer's buffers before the first step."""
    count = 2 if protocol.optimizer != "sgd" else int(protocol.momentum > 0)
    return [
        {name: torch.zeros_like(tensor) for name, tensor in weights.items()} for _ in range(count)
    ]


def step(
    protocol: Protocol, weights: State, gradient: State, buffers: list[State], number: int
) -> tuple[State, list[State]]:
    """Return the new weights and buffers.

    ``gradient`` already contains coupled weight decay; ``number`` counts from 1.
    """
    lr = protocol.need("lr").lr
    if protocol.optimizer != "sgd":
        return _adam_step(protocol, lr, weights, gradient, buffers, number)
    move = gradient
    if buffers:
        speed = {n: protocol.momentum * buffers[0][n] + g for n, g in gradient.items()}
        nesterov = {n: g + protocol.momentum * speed[n] for n, g in gradient.items()}
        move, buffers = (nesterov if protocol.nesterov else speed), [speed]
    return {n: w - lr * move[n] for n, w in weights.items()}, buffers


def _adam_step(
    protocol: Protocol,
    lr: float,
    weights: State,
    gradient: State,
    buffers: list[State],
    number: int,
) -> tuple[State, list[State]]:
    (b1, b2), (first, second) = protocol.betas, buffers
    first = {n: b1 * first[n] + (1 - b1) * g for n, g in gradient.items()}
    second = {n: b2 * second[n] + (1 - b2) * g.square() for n, g in gradient.items()}
    decay = protocol.weight_decay * lr if protocol.optimizer == "adamw" else 0.0
    unbias = 1 - b2**number
    moved = {
        name: weight * (1 - decay)
        - lr / (1 - b1**number) * first[name] / spread(protocol, second[name] / unbias)
        for name, weight in weights.items()
    }
    return moved, [first, second]


def spread(protocol: Protocol, second: Tensor) -> Tensor:
    """Return what Adam divides by, given its bias-corrected second moments."""
    # The square root has no slope at zero; the tiny number keeps its derivative finite.
    return (second + 1e-30).sqrt() + protocol.eps


def mixing(protocol: Protocol, stretches: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Return how gradients enter later steps, as if constant over stretches of steps.

    Args:
        protocol: the client's protocol.
        stretches: (first step, last step + 1) of each of K stretches, in order, counted from 0.

    Returns:
        Two [K, K] tensors of means over the steps of stretch k: the weight of stretch j's gradient
        in what moves the weights (the momentum, bias-corrected for Adam), and of its square in
        Adam's second moment (all zero for SGD).
    """
    adam = protocol.optimizer != "sgd"
    (b1, b2), keep = protocol.betas, protocol.momentum
    first, second = torch.zeros(2, len(stretches), len(stretches), dtype=torch.float64)
    carried, squares = torch.zeros(2, len(stretches), dtype=torch.float64)
    for number, (begin, end) in enumerate(stretches):
        own = torch.eye(len(stretches), dtype=torch.float64)[number]
        for step in range(begin, end):
            if adam:
                carried = b1 * carried + (1 - b1) * own
                squares = b2 * squares + (1 - b2) * own
                first[number] += carried / (1 - b1 ** (step + 1)) / (end - begin)
                second[number] += squares / (1 - b2 ** (step + 1)) / (end - begin)
            else:
                carried = keep * carried + own
                moving = own + keep * carried if protocol.nesterov else carried
                first[number] += moving / (end - begin)
    return first, second
