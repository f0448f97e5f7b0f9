"""Defenses that send less: few entries of the update, or few bits of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakmeter.errors import require
from leakmeter.federated.defenses.base import Defense, moved
from leakmeter.state import State
from leakmeter.update import Update, rounded


@dataclass(frozen=True)
class Sparse(Defense):
    """Base of defenses that send a share of the entries of each tensor; at least one is sent."""

    known: ClassVar[str] = "The server sees which entries were sent: the others are exactly zero."
    adaptive: ClassVar[str] = "Entries that were not sent count on neither side of the comparison."

    keep: float

    def __post_init__(self) -> None:
        require("keep", self.keep, above=0, most=1)

    def places(self, tensor: Tensor, count: int, draws: torch.Generator) -> Tensor:
        """Choose which ``count`` entries of a flat ``tensor`` are sent."""
        raise NotImplementedError

    def send(self, update: Update, model: nn.Module, draws: torch.Generator) -> Update:
        """Set all but the chosen entries to zero."""

        def only(tensor: Tensor) -> Tensor:
            mask = torch.zeros(tensor.numel(), dtype=torch.bool, device=tensor.device)
            count = max(1, round(self.keep * tensor.numel()))
            mask[self.places(tensor.flatten(), count, draws).to(tensor.device)] = True
            return torch.where(mask.view_as(tensor), tensor, 0)

        return moved(
            update, lambda movement: {n: only(t) for n, t in movement.items()}, sparse=True
        )


@dataclass(frozen=True)
class TopK(Sparse):
    """Only the largest entries of every tensor are sent (Aji and Heafield 2017).

    The rest is dropped, not kept for the next round. Zhu et al. 2019 (DLG) call it the most
    effective cheap defense.

    Attributes:
        keep: share of the entries of each tensor that is sent, by magnitude.
    """

    def places(self, tensor: Tensor, count: int, draws: torch.Generator) -> Tensor:
        """Choose the largest entries."""
        return tensor.abs().topk(count).indices


@dataclass(frozen=True)
class Prune(Sparse):
    """Random entries of every tensor are sent, the others are dropped (Konecny et al. 2016).

    What is sent is not scaled up, so the update is smaller than it was.

    Attributes:
        keep: share of the entries of each tensor that is sent.
    """

    def places(self, tensor: Tensor, count: int, draws: torch.Generator) -> Tensor:
        """Any."""
        return torch.randperm(len(tensor), generator=draws)[:count]


@dataclass(frozen=True)
class Quantize(Defense):
    """Every entry is sent with few bits, one step size per tensor (Bernstein et al. 2018 for 1).

    For weights, the movement is rounded, not the weights themselves.

    Attributes:
        bits: bits per entry, 1 to 16; with one, only the sign is left.
    """

    known: ClassVar[str] = "The server knows how entries were rounded, and to how many bits."
    adaptive: ClassVar[str] = (
        "Labels are read from sums over many weights where a bias was rounded coarsely; rounding "
        "the prediction as well made the images worse, so it is compared as it is."
    )

    bits: int

    def __post_init__(self) -> None:
        require("bits", self.bits, least=1, most=16)

    def send(self, update: Update, model: nn.Module, draws: torch.Generator) -> Update:
        """Round each tensor by itself."""

        def change(movement: State) -> State:
            return {name: rounded(tensor, self.bits) for name, tensor in movement.items()}

        return moved(update, change, bits=self.bits)
