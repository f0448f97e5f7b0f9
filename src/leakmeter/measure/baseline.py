"""The baseline: what the same pipeline produces when the update carries no signal."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakmeter.state import State
from leakmeter.update import Update


def signal_free(update: Update, seed: int = 0) -> Update:
    """Replace an update's movement by noise of the same norm, tensor by tensor.

    An attack on it shows what pairing, priors and luck contribute: only what exceeds this leaked.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise_like(tensor: Tensor) -> Tensor:
        noise = torch.randn(tensor.shape, generator=generator).to(tensor)
        return noise.mul(tensor.norm() / noise.norm().clamp_min(1e-12))

    if update.gradient is not None:
        gradient = {name: noise_like(tensor) for name, tensor in update.gradient.items()}
        return replace(update, gradient=gradient)
    after: State = {}
    for name, start in update.before.items():
        end = update.returned[name]
        after[name] = start + noise_like(end - start) if start.is_floating_point() else end
    return replace(update, after=after)
