"""Small victims that several tests share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import leakmeter as lm

CLIENTS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1},
    "sgd with weight decay": {"lr": 0.1, "weight_decay": 0.1},
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "nesterov": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "adam": {"lr": 0.01, "optimizer": "adam", "weight_decay": 0.1},
    "adamw": {"lr": 0.01, "optimizer": "adamw", "weight_decay": 0.5},
}
"""A client of every optimizer."""


def tiny(classes: int = 5, channels: int = 1, size: int = 12) -> nn.Module:
    """A convolution and a dense layer: attacked in milliseconds."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(channels, 4, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * size * size, classes),
        )


def examples(
    count: int = 3, classes: int = 5, channels: int = 1, size: int = 12
) -> tuple[Tensor, Tensor]:
    """Noise images in [0, 1] and labels."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand((count, channels, size, size), generator=generator)
    return images, torch.randint(classes, (count,), generator=generator)


def tiny_update() -> lm.Update:
    """Weights after two epochs of :func:`tiny` on :func:`examples`."""
    return lm.Client(tiny(), *examples(), epochs=2, batch_size=2, lr=0.05).train()


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether both hold the same names, types and bits."""
    return list(a) == list(b) and all(
        a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a
    )
