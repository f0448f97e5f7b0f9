"""One step of the client's optimiser as a function of tensors, as ``torch.optim`` does it."""

from __future__ import annotations

import torch

from leakscope.update import Protocol, State


def fresh(protocol: Protocol, weights: State) -> list[State]:
    """The optimiser's buffers before the first step."""
    count = 2 if protocol.optimizer != "sgd" else int(protocol.momentum > 0)
    return [
        {name: torch.zeros_like(tensor) for name, tensor in weights.items()} for _ in range(count)
    ]


def step(
    protocol: Protocol, weights: State, gradient: State, buffers: list[State], number: int
) -> tuple[State, list[State]]:
    """New weights and buffers.

    ``gradient`` already contains coupled weight decay; ``number`` counts from 1.
    """
    assert protocol.lr is not None
    lr = protocol.lr
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
    spread = adam_spread(protocol, second, number)
    moved = {
        name: weight * (1 - decay) - lr / (1 - b1**number) * first[name] / spread[name]
        for name, weight in weights.items()
    }
    return moved, [first, second]


def adam_spread(protocol: Protocol, second: State, number: int) -> State:
    """What Adam divides by in step ``number``, given its second moments."""
    unbias = 1 - protocol.betas[1] ** number
    # The square root has no slope at zero; the tiny number keeps its derivative finite.
    return {n: (v / unbias + 1e-30).sqrt() + protocol.eps for n, v in second.items()}


def momentum(protocol: Protocol, carried: float, own: float) -> tuple[float, float]:
    """How much of some steps' gradients is in the momentum, and in the movement, of a step.

    Args:
        protocol: of the client.
        carried: how much was in the momentum before.
        own: 1 if the step's own gradient is among them, else 0.
    """
    if protocol.optimizer != "sgd":
        b1 = protocol.betas[0]
        carried = b1 * carried + (1 - b1) * own
        return carried, carried
    carried = protocol.momentum * carried + own
    return carried, own + protocol.momentum * carried if protocol.nesterov else carried


def gains(protocol: Protocol, buffers: list[State], number: int, damping: float) -> State:
    """What Adam multiplies its momentum by in step ``number``; nothing for SGD.

    Weights with almost no gradient are multiplied by almost anything, rounding errors included:
    no entry is divided by less than ``damping`` times the mean of its tensor. One that never had
    a gradient does not move, so its gain is 0.
    """
    if protocol.optimizer == "sgd":
        return {}
    second, unbias = buffers[1], 1 - protocol.betas[0] ** number
    return {
        name: (second[name] > 0) / (unbias * torch.maximum(t, damping * t.mean()))
        for name, t in adam_spread(protocol, second, number).items()
    }


def no_gain(protocol: Protocol, weights: State) -> State:
    """Zeros to sum up gains in: numbers for SGD, whose gains are alike for all weights."""
    alike = protocol.optimizer == "sgd"
    return {n: t.new_zeros(() if alike else t.shape) for n, t in weights.items()}
