"""Federated averaging (McMahan et al. 2017): a network as clients find it at round R."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import leakscope
from leakscope.errors import LeakscopeError
from leakscope.federated.client import Client
from leakscope.federated.defence import defended
from leakscope.federated.local import behaviour, snapshot
from leakscope.state import State, digest, read_safetensors, write_safetensors
from leakscope.update import Update


def average(updates: Sequence[Update]) -> State:
    """Mean of the states sent back, weighted by the number of examples."""
    if not updates:
        raise LeakscopeError("updates is empty: the server needs at least one to average")
    total = sum(update.num_examples for update in updates)
    mean: State = {}
    for name, start in updates[0].before.items():
        weighted = torch.zeros(start.shape, dtype=torch.float64)
        for update in updates:
            if update.after is None:
                raise LeakscopeError("updates must carry after: gradients cannot be averaged here")
            weighted += update.after[name].cpu().double() * (update.num_examples / total)
        whole = not start.is_floating_point()
        mean[name] = (weighted.round() if whole else weighted).to(start)
    return mean


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
    """A copy of ``model`` after ``rounds`` rounds of federated averaging.

    Defences that change the network change the copy: it is the network those clients train.

    Args:
        model: the network at round 0; not changed.
        parts: (images [n, C, H, W] in [0, 1], labels [n]) of each client.
        rounds: how many.
        participation: probability that a client takes part in a round; at least one always does.
        seed: decides who takes part and in which order examples come.
        cache: folder for finished rounds; a later call with the same inputs goes on from there.
            By default ``~/.cache/leakscope``, or ``$LEAKSCOPE_CACHE``.
        on_round: called with (done, total) after every round.
        training: passed on to :class:`~leakscope.federated.client.Client`.
    """
    if not 0 < participation <= 1:
        raise LeakscopeError(f"participation is {participation}: use a probability above 0")
    if not parts:
        raise LeakscopeError("parts is empty: a federation needs at least one client")
    # Copied even if no defence changes it: every round loads new weights into it.
    model = copy.deepcopy(defended(model, training.get("defences", ())))
    folder = cache_folder(cache) / _key(model, parts, participation, seed, training)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LeakscopeError(
            f"cannot make the cache folder {folder} ({error.strerror}): "
            "set LEAKSCOPE_CACHE to one that can be written to"
        ) from None
    done = _resume(model, folder, rounds)
    for number in range(done, rounds):
        updates = _one_round(model, parts, participation, (seed, number), training)
        model.load_state_dict(average(updates))
        write_safetensors(snapshot(model), {}, _file(folder, number + 1))
        if number > done:
            _file(folder, number).unlink(missing_ok=True)
        if on_round is not None:
            on_round(number + 1, rounds)
    return model


def cache_folder(given: str | Path | None = None) -> Path:
    """``given``, else ``$LEAKSCOPE_CACHE``, else ``~/.cache/leakscope``."""
    return Path(given or os.environ.get("LEAKSCOPE_CACHE") or Path.home() / ".cache/leakscope")


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


def _file(folder: Path, number: int) -> Path:
    return folder / f"round-{number:05d}.safetensors"


def _resume(model: nn.Module, folder: Path, rounds: int) -> int:
    """Load the latest stored round up to ``rounds`` and say which it is."""
    for number in range(rounds, 0, -1):
        if _file(folder, number).exists():
            model.load_state_dict(read_safetensors(_file(folder, number))[0])
            return number
    return 0


def _key(model: nn.Module, parts: Sequence[tuple[Tensor, Tensor]], *settings: Any) -> str:
    tensors: State = {}
    for index, (images, labels) in enumerate(parts):
        tensors |= {f"images/{index}": images, f"labels/{index}": labels}
    network = behaviour(model, tuple(parts[0][0].shape[1:]))
    return digest(tensors, f"{leakscope.__version__} {network} {settings!r}")[:32]
