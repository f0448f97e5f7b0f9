"""Federated averaging (McMahan et al. 2017): the network that clients receive at round R."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leakmeter.errors import LeakmeterError
from leakmeter.execution import Checkpoint, cache_folder
from leakmeter.federated.client import Client
from leakmeter.federated.defenses.base import defended
from leakmeter.federated.local import behavior, snapshot
from leakmeter.federated.server import average
from leakmeter.state import State, digest
from leakmeter.update import Update


def federate(
    model: nn.Module,
    parts: Sequence[tuple[Tensor, Tensor]],
    *,
    rounds: int,
    participation: float = 1.0,
    seed: int = 0,
    cache: str | Path | None = None,
    on_round: Callable[[int, int], None] | None = None,
    **training: Any,
) -> nn.Module:
    """Return a copy of ``model`` after ``rounds`` rounds of federated averaging.

    Defenses that change the network change the copy, since those clients train that network.

    Args:
        model: the network at round 0; not changed.
        parts: (images [n, C, H, W] in [0, 1], labels [n]) of each client.
        rounds: how many.
        participation: probability that a client takes part in a round; at least one always does.
        seed: decides who takes part and in which order examples come.
        cache: folder for finished rounds; a later call with the same inputs resumes from there.
            By default ``~/.cache/leakmeter``, or ``$LEAKMETER_CACHE``.
        on_round: called with (done, total) after every round.
        training: passed on to :class:`~leakmeter.federated.client.Client`.
    """
    if not 0 < participation <= 1:
        raise LeakmeterError(f"participation is {participation}: use a probability above 0")
    if not parts:
        raise LeakmeterError("parts is empty: a federation needs at least one client")
    # Copied even if no defense changes it: every round loads new weights into it.
    model = copy.deepcopy(defended(model, training.get("defenses", ())))
    network = behavior(model, tuple(parts[0][0].shape[1:]))
    of = [network, _digest(parts), participation, seed, training]
    kept = [Checkpoint(cache_folder(cache), "round", [*of, number + 1]) for number in range(rounds)]
    done = _resume(model, kept)
    for number in range(done, rounds):
        updates = _one_round(model, parts, participation, (seed, number), training)
        model.load_state_dict(average(updates))
        kept[number].save(snapshot(model))
        if number > done:
            kept[number - 1].remove()
        if on_round is not None:
            on_round(number + 1, rounds)
    return model


def _one_round(
    model: nn.Module,
    parts: Sequence[tuple[Tensor, Tensor]],
    participation: float,
    draw: tuple[int, int],
    training: dict[str, Any],
) -> list[Update]:
    state = int(np.random.SeedSequence(draw).generate_state(1)[0])
    generator = torch.Generator().manual_seed(state)
    present = torch.rand(len(parts), generator=generator) < participation
    if not present.any():
        present[torch.randint(len(parts), (1,), generator=generator)] = True
    seeds = torch.randint(2**31, (len(parts),), generator=generator).tolist()
    return [
        Client(model, *parts[index], seed=seeds[index], **training).train()
        for index in present.nonzero().flatten().tolist()
    ]


def _resume(model: nn.Module, kept: Sequence[Checkpoint]) -> int:
    """Load the latest saved round and return its number."""
    for number in range(len(kept), 0, -1):
        saved = kept[number - 1].load()
        if saved is not None:
            model.load_state_dict(saved[0])
            return number
    return 0


def _digest(parts: Sequence[tuple[Tensor, Tensor]]) -> str:
    tensors: State = {}
    for index, (images, labels) in enumerate(parts):
        tensors |= {f"images/{index}": images, f"labels/{index}": labels}
    return digest(tensors, "")
