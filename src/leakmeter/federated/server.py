"""What a server computes from updates: their mean, their sum, and the bytes received."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leakmeter.errors import LeakmeterError
from leakmeter.state import State
from leakmeter.update import Update


def average(updates: Sequence[Update]) -> State:
    """Mean of the states sent back, weighted by the number of examples."""
    if not updates:
        raise LeakmeterError("updates is empty: the server needs at least one to average")
    total = sum(update.num_examples for update in updates)
    mean: State = {}
    for name, start in updates[0].before.items():
        weighted = torch.zeros(start.shape, dtype=torch.float64)
        for update in updates:
            if update.after is None:
                raise LeakmeterError("updates must carry after: gradients cannot be averaged here")
            weighted += update.after[name].cpu().double() * (update.num_examples / total)
        whole = not start.is_floating_point()
        mean[name] = (weighted.round() if whole else weighted).to(start)
    return mean


def aggregate(updates: Sequence[Update]) -> Update:
    """Return what the server sees of several clients under secure aggregation.

    This is the mean of their weights or gradients, weighted by their numbers of examples. To the
    server it looks like one client with all the examples, in batches that are larger by the number
    of clients.

    Args:
        updates: of clients that received the same weights and train in the same way.
    """
    _check_alike(updates)
    first = updates[0]
    size = first.protocol.batch_size
    protocol = first.protocol.model_copy(
        update={
            "batch_size": None if size is None else size * len(updates),
            # Some entry may be zero in one of them only, and a sum of rounded ones is not rounded.
            "sparse": all(update.protocol.sparse for update in updates),
            "bits": first.protocol.bits if len(updates) == 1 else None,
        }
    )
    return Update(
        before=first.before,
        after=None if first.after is None else _mean_weights(updates),
        gradient=None if first.gradient is None else _mean_gradient(updates),
        num_examples=sum(update.num_examples for update in updates),
        protocol=protocol,
    )


def _mean_weights(updates: Sequence[Update]) -> State:
    mean = average(updates)
    for name, start in updates[0].before.items():
        # What no client moved must not move by rounding: attacks infer from it what was frozen.
        moved = [u.after[name] != start for u in updates if u.after is not None]
        mean[name] = torch.where(torch.stack(moved).any(0), mean[name], start)
    return mean


def _mean_gradient(updates: Sequence[Update]) -> State:
    total = sum(update.num_examples for update in updates)
    mean: State = {}
    gradients = [update.gradient or {} for update in updates]
    for name, first in gradients[0].items():
        weighted = torch.zeros(first.shape, dtype=torch.float64, device=first.device)
        for update, gradient in zip(updates, gradients, strict=True):
            weighted += gradient[name].double() * (update.num_examples / total)
        mean[name] = weighted.to(first)
    return mean


def _check_alike(updates: Sequence[Update]) -> None:
    if not updates:
        raise LeakmeterError("updates is empty: there is nothing to add up")
    first = updates[0]
    for number, update in enumerate(updates):
        if (update.gradient is None) != (first.gradient is None):
            raise LeakmeterError(
                f"update {number} and the first one: one has weights, one gradients"
            )
        if update.before.keys() != first.before.keys() or any(
            not torch.equal(update.before[name], tensor) for name, tensor in first.before.items()
        ):
            raise LeakmeterError(
                f"update {number} began from other weights than the first: "
                "only clients that received the same network can be added up"
            )
        if (update.gradient or {}).keys() != (first.gradient or {}).keys():
            raise LeakmeterError(f"update {number} trains other parameters than the first")
        if _training(update) != _training(first):
            raise LeakmeterError(
                f"update {number} has another protocol than the first: clients that are added up "
                "must train in the same way"
            )


def _training(update: Update) -> dict[str, Any]:
    """The protocol without what may differ from update to update."""
    return update.protocol.model_dump(exclude={"sparse", "bits"})


def sent_bytes(update: Update) -> int:
    """Return the bytes that ``update`` takes on the wire, by its protocol and tensors alone.

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
