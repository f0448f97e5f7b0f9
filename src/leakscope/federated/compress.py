"""Sending less: few entries of the update, or few bits of each; and what it takes to send it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakscope.errors import require
from leakscope.federated.defence import Defence, moved
from leakscope.state import State
from leakscope.update import Update, rounded


@dataclass(frozen=True)
class TopK(Defence):
    """Only the largest entries of every tensor are sent (Aji and Heafield 2017).

    The rest is dropped, not kept for the next round. Zhu et al. 2019 (DLG) call it the most
    effective cheap defence.

    Attributes:
        keep: share of the entries of each tensor that is sent, by magnitude; at least one is.
    """

    known: ClassVar[str] = "The server sees which entries were sent: the others are exactly zero."
    adaptive: ClassVar[str] = "Entries that were not sent count on neither side of the comparison."

    keep: float

    def __post_init__(self) -> None:
        require("keep", self.keep, above=0, most=1)

    def send(self, update: Update, model: nn.Module, draws: torch.Generator) -> Update:
        """All but the largest entries at zero."""
        return _chosen(update, self.keep, lambda tensor, count: tensor.abs().topk(count).indices)


@dataclass(frozen=True)
class Prune(Defence):
    """Random entries of every tensor are sent, the others are dropped (Konecny et al. 2016).

    What is sent is not scaled up, so the update is smaller than it was.

    Attributes:
        keep: share of the entries of each tensor that is sent; at least one is.
    """

    known: ClassVar[str] = "The server sees which entries were sent: the others are exactly zero."
    adaptive: ClassVar[str] = "Entries that were not sent count on neither side of the comparison."

    keep: float

    def __post_init__(self) -> None:
        require("keep", self.keep, above=0, most=1)

    def send(self, update: Update, model: nn.Module, draws: torch.Generator) -> Update:
        """All but some random entries at zero."""
        return _chosen(
            update,
            self.keep,
            lambda tensor, count: torch.randperm(len(tensor), generator=draws)[:count],
        )


@dataclass(frozen=True)
class Quantise(Defence):
    """Every entry is sent with few bits, one step size per tensor (Bernstein et al. 2018 for 1).

    Weights are rounded in their movement, not in themselves.

    Attributes:
        bits: of an entry, 1 to 16; with one only its sign is left.
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
        """Each tensor rounded by itself."""

        def change(movement: State) -> State:
            return {name: rounded(tensor, self.bits) for name, tensor in movement.items()}

        return moved(update, change, bits=self.bits)


def sent_bytes(update: Update) -> int:
    """Bytes that ``update`` takes on the wire, by its protocol and its tensors alone.

    Tensors that did not move are not sent. The others are, entry by entry or in a sparse form
    with the cheaper of a list of 4-byte places and a bitmap. A number takes the size of its type,
    or ``bits`` and a 4-byte step size per tensor.
    """
    if update.gradient is not None:
        sent = update.gradient
    else:
        sent = {name: update.before[name] - after for name, after in update.returned.items()}
    return sum(_bytes(tensor, update) for tensor in sent.values() if tensor.any())


def _bytes(tensor: Tensor, update: Update) -> int:
    count, extra = tensor.numel(), 0
    if not tensor.is_floating_point():
        return count * tensor.element_size()
    if update.protocol.sparse:
        whole, count = count, int(tensor.count_nonzero())
        extra = min(4 * count, math.ceil(whole / 8))
    if update.protocol.bits is not None:
        return extra + math.ceil(count * update.protocol.bits / 8) + 4
    return extra + count * tensor.element_size()


def _chosen(update: Update, keep: float, places: Callable[[Tensor, int], Tensor]) -> Update:
    """``update`` with a share ``keep`` of each tensor: so many entries, at ``places``."""

    def only(tensor: Tensor) -> Tensor:
        mask = torch.zeros(tensor.numel(), dtype=torch.bool, device=tensor.device)
        count = max(1, round(keep * tensor.numel()))
        mask[places(tensor.flatten(), count).to(tensor.device)] = True
        return torch.where(mask.view_as(tensor), tensor, 0)

    return moved(update, lambda movement: {n: only(t) for n, t in movement.items()}, sparse=True)
