"""A defense that hides the features that reveal most about the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakmeter.errors import LeakmeterError, require, unknown
from leakmeter.federated.defenses.base import Defense
from leakmeter.update import Protocol, Update

DIRECTIONS = 8
"""Number of random directions in which the slope of every feature is measured."""


@dataclass(frozen=True)
class Soteria(Defense):
    """Features that pin down the image are cut from one layer's gradient (Sun et al. 2021).

    To the first order, a feature r_i that is changed to zero moves the image that explains it by
    ``|r_i| / |d r_i / d x|``. The paper wants that as large as possible for as few features as
    possible, so it cuts the features with the *largest* ratio (its algorithm 1; its public code
    cuts the smallest inverse). Cutting a feature zeroes its column in the gradient of the layer
    that the features go into, in every local step. Other layers are not touched.

    Here both are root mean squares over a batch, which the paper does not define, and the slopes
    are estimated: for a normal v, ``E[(J v)_i^2] = |J_i|^2``.

    Attributes:
        prune: share of the features that is cut, of those that are not all zero in the batch.
        layer: name of a fully connected layer; by default the first one that is trained.
    """

    known: ClassVar[str] = "The server sees which columns of the layer's weight did not move."
    adaptive: ClassVar[str] = (
        "Entries that are zero count on neither side of the comparison, if the cut columns are: "
        "after several steps only those that were cut in each."
    )

    prune: float = 0.8
    layer: str | None = None

    def __post_init__(self) -> None:
        require("prune", self.prune, most=1)

    def check(self, model: nn.Module, protocol: Protocol, defenses: Sequence[Defense]) -> None:
        """Check that there is such a layer."""
        self.defended_layer(model)

    def gradient(self, model: nn.Module, inputs: Tensor, draws: torch.Generator) -> None:
        """Zero the columns of the features that reveal most."""
        _, layer = self.defended_layer(model)
        if layer.weight.grad is None:
            return
        features, slopes = sensitivity(model, layer, inputs, draws)
        # A feature that is zero for the whole batch has a zero column anyway, and no ratio.
        live = features > 0
        ratio = torch.where(live, features / slopes, 0)
        cut = ratio.argsort(descending=True)[: round(self.prune * int(live.sum()))]
        layer.weight.grad[:, cut] = 0

    def send(self, update: Update, model: nn.Module, draws: torch.Generator) -> Update:
        """Send the same update, marked as sparse if most of the cut columns are zero in it."""
        name, layer = self.defended_layer(model)
        zero = (update.observed([name])[name] == 0).all(0)
        if not zero.any() or zero.sum() < round(self.prune * layer.in_features) / 2:
            return update
        return replace(update, protocol=update.protocol.model_copy(update={"sparse": True}))

    def defended_layer(self, model: nn.Module) -> tuple[str, nn.Linear]:
        """Return the name of the layer's weight, and the layer."""
        found = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and module.weight.requires_grad
        }
        if not found:
            raise LeakmeterError("soteria: the network has no trained fully connected layer")
        name = next(iter(found)) if self.layer is None else self.layer
        if name not in found:
            raise unknown("trained fully connected layer", name, found)
        return f"{name}.weight".lstrip("."), found[name]


def sensitivity(
    model: nn.Module, layer: nn.Module, inputs: Tensor, draws: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Size of the features [F] that go into ``layer``, and of their slopes ``|d r_i / d x|`` [F].

    Both as root mean squares over the batch (and over all places where the layer is applied).

    Args:
        model: called as it is; its buffers are restored.
        layer: one of its modules.
        inputs: normalized images [B, C, H, W].
        draws: gives the directions.
    """
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    buffers = {buffer: buffer.clone() for buffer in model.buffers()}
    x = inputs.detach().requires_grad_()
    try:
        # Fused attention has no second derivative, the plain one has.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            model(x)
            features = torch.cat([each.flatten(0, -2) for each in seen])
            # J'u is linear in u, so its derivative along v is J v: backward twice is forward once.
            u = torch.zeros_like(features, requires_grad=True)
            pulled = torch.autograd.grad(features, x, u, create_graph=True)[0]
        squares = [
            torch.autograd.grad(
                pulled, u, torch.randn(x.shape, generator=draws).to(x), retain_graph=True
            )[0].square()
            for _ in range(DIRECTIONS)
        ]
    finally:
        hook.remove()
        for buffer, kept in buffers.items():
            buffer.copy_(kept)
    return features.detach().square().mean(0).sqrt(), torch.stack(squares).mean((0, 1)).sqrt()
