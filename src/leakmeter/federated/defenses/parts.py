"""Defenses that train or send only a part of the network."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leakmeter.errors import LeakmeterError, require
from leakmeter.federated.defenses.base import Defense, moved
from leakmeter.models.factory import seeded
from leakmeter.state import State
from leakmeter.update import Protocol, Update

SEED = 0
"""Seed of the initial weights that a defense adds; the network is public, so all share it."""

_ALIKE = "Tensors that did not move are left out of the comparison."


@dataclass(frozen=True)
class Freeze(Defense):
    """Only the last layers are trained, the others keep the weights they came with.

    A layer is a module that owns parameters itself, in the order of ``named_modules``.

    Attributes:
        train: how many layers are trained.
    """

    known: ClassVar[str] = "The server knows which layers are trained."
    adaptive: ClassVar[str] = _ALIKE

    train: int

    def __post_init__(self) -> None:
        require("train", self.train, least=1)

    def network(self, model: nn.Module) -> nn.Module:
        """Return a copy in which all layers but the last are frozen."""
        model = copy.deepcopy(model)
        found = layers(model)
        if self.train >= len(found):
            raise LeakmeterError(
                f"freeze: train is {self.train} but the network has {len(found)} layers: "
                "use a smaller number, else nothing is frozen"
            )
        kept = {name for names in found[-self.train :] for name in names}
        for name, parameter in model.named_parameters():
            if name not in kept:
                parameter.requires_grad_(False)
        return model


@dataclass(frozen=True)
class Withhold(Defense):
    """The last layers are trained but stay at home, a personal head (Arivazhagan et al. 2019).

    A layer is a module that owns parameters itself, in the order of ``named_modules``. A simulated
    client keeps nothing from round to round: it trains its head anew from the one it received.

    Attributes:
        last: how many layers are not sent: as received, or zero in a gradient.
    """

    known: ClassVar[str] = "The server sees which layers were not sent."
    adaptive: ClassVar[str] = _ALIKE

    last: int

    def __post_init__(self) -> None:
        require("last", self.last, least=1)

    def check(self, model: nn.Module, protocol: Protocol, defenses: Sequence[Defense]) -> None:
        """Check that some layers are left to send."""
        count = len(layers(model))
        if self.last >= count:
            raise LeakmeterError(
                f"withhold: last is {self.last} but the network has {count} layers: "
                "use a smaller number, else nothing is sent"
            )

    def send(self, update: Update, model: nn.Module, draws: torch.Generator) -> Update:
        """Send the update without the last layers."""
        names = {name for layer in layers(model)[-self.last :] for name in layer}
        if update.after is not None:
            home = {name: update.before[name] for name in update.after if name in names}
            return replace(update, after={**update.after, **home})

        def change(gradient: State) -> State:
            return {n: torch.zeros_like(t) if n in names else t for n, t in gradient.items()}

        return moved(update, change)


@dataclass(frozen=True)
class LoRA(Defense):
    """Only low-rank additions to the weights are trained and sent (Hu et al. 2022).

    Every trained ``nn.Linear`` and ``nn.Conv2d`` gets ``alpha / rank * up(down(x))`` beside its
    own answer; all else is frozen. ``up`` starts at zero, so nothing changes before training.
    Subclasses of the two are frozen without an addition, since their owners may not call them.

    Attributes:
        rank: of the addition, in each group of a grouped convolution.
        alpha: its scale.
    """

    known: ClassVar[str] = "The server knows the frozen weights and the additions it receives."
    adaptive: ClassVar[str] = _ALIKE

    rank: int = 4
    alpha: float = 8.0

    def __post_init__(self) -> None:
        require("rank", self.rank, least=1)
        require("alpha", self.alpha, above=0)

    def network(self, model: nn.Module) -> nn.Module:
        """Return a copy with the additions and all else frozen."""
        model = copy.deepcopy(model)
        chosen = [
            module
            for module in model.modules()
            if type(module) in (nn.Linear, nn.Conv2d) and module.weight.requires_grad
        ]
        if not chosen:
            raise LeakmeterError("lora: the network has no trained nn.Linear or nn.Conv2d")
        model.requires_grad_(False)
        with seeded(SEED):
            extended = {module: self._extended(module) for module in chosen}
        return exchanged(model, extended)

    def _extended(self, module: nn.Module) -> nn.Module:
        scale = self.alpha / self.rank
        if isinstance(module, nn.Linear):
            return LowRankLinear(module, self.rank, scale)
        assert isinstance(module, nn.Conv2d)
        return LowRankConv2d(module, self.rank, scale)


class LowRankLinear(nn.Linear):
    """``base`` and a low-rank addition to its weight: ``W + scale * up down``.

    The parameters keep their names, beside ``down.weight`` and ``up.weight``. Those are layers of
    their own, so that whatever looks for layers finds what is trained.

    Args:
        base: whose parameters it takes over.
        rank: of the addition.
        scale: of the addition.
    """

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__(base.in_features, base.out_features, bias=base.bias is not None)
        self.weight, self.bias, self.scale = base.weight, base.bias, scale
        self.down = nn.Linear(base.in_features, rank, bias=False).to(base.weight)
        self.up = nn.Linear(rank, base.out_features, bias=False).to(base.weight)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        added: Tensor = self.up(self.down(x))
        return super().forward(x) + self.scale * added


class LowRankConv2d(nn.Conv2d):
    """``base`` and a low-rank addition to its kernel; see :class:`LowRankLinear`."""

    def __init__(self, base: nn.Conv2d, rank: int, scale: float) -> None:
        window: dict[str, Any] = {
            "kernel_size": base.kernel_size,
            "stride": base.stride,
            "padding": base.padding,
            "dilation": base.dilation,
            "padding_mode": base.padding_mode,
            "groups": base.groups,
        }
        super().__init__(base.in_channels, base.out_channels, bias=base.bias is not None, **window)
        self.weight, self.bias, self.scale = base.weight, base.bias, scale
        inner, groups = rank * base.groups, base.groups
        self.down = nn.Conv2d(base.in_channels, inner, bias=False, **window).to(base.weight)
        self.up = nn.Conv2d(inner, base.out_channels, 1, groups=groups, bias=False).to(base.weight)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[N, in, H, W] -> [N, out, H', W']."""
        added: Tensor = self.up(self.down(x))
        return super().forward(x) + self.scale * added


def layers(model: nn.Module) -> list[list[str]]:
    """Names of the tensors of each module that owns parameters, in order.

    A fully connected or convolutional layer counts as one layer, whatever it consists of.
    """
    found: list[list[str]] = []
    inside: set[nn.Module] = set()
    for prefix, module in model.named_modules():
        owns = next(module.parameters(recurse=False), None) is not None
        if module in inside or not owns:
            continue
        atom = isinstance(module, nn.Linear | nn.Conv2d)
        inside |= set(module.modules()) if atom else set()
        start = f"{prefix}." if prefix else ""
        found.append([start + name for name in module.state_dict() if atom or "." not in name])
    return found


def exchanged(model: nn.Module, new: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """``model`` with some of its modules replaced, in place, wherever they are used."""
    for parent in list(model.modules()):
        # named_children would name a module that is used twice only once.
        for name, child in list(parent._modules.items()):
            if child is not None and child in new:
                setattr(parent, name, new[child])
    return new.get(model, model)
