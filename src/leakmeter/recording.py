"""Record updates during training, or make them from two files of weights.

Recording only observes. It does not change the training, and when it fails (a full disk, weights
that are not finite), it logs a warning and does not stop the training.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from leakmeter.data import normalization
from leakmeter.errors import LeakmeterError, require, validation_errors
from leakmeter.federated.client import resolve_normalization
from leakmeter.federated.local import snapshot
from leakmeter.state import State, read_safetensors
from leakmeter.update import Protocol, Update

LOG = logging.getLogger("leakmeter")


@contextmanager
def record(
    model: nn.Module, path: str | Path, *, num_examples: int, **protocol: Any
) -> Iterator[None]:
    """Record what the ``with`` block's training does to ``model`` as an update at ``path``.

    A block that raises is not recorded.

    Args:
        model: the model that the block trains, as the client received it.
        path: the safetensors file to write; its folder is created.
        num_examples: how many examples the block trains on.
        protocol: fields of :class:`~leakmeter.update.Protocol`. Omitted fields stay unknown
            to the attacker. ``normalize`` may be the name of a data set, or ``none``.
    """
    require("num_examples", num_examples, least=1)
    known = told(protocol)
    before = snapshot(model)
    _check_unwrapped(before)
    yield
    try:
        update = Update(
            before=before, after=snapshot(model), num_examples=num_examples, protocol=known
        )
        _write(update, Path(path))
    except Exception as problem:
        LOG.warning("%s is not recorded: %s", path, problem)


def update_from_files(
    before: str | Path, after: str | Path, *, num_examples: int, **protocol: Any
) -> Update:
    """Make an update from two files that each hold a ``state_dict``.

    Args:
        before: the weights that the client received: a ``.safetensors`` file, or one written by
            ``torch.save``. Only tensors are read from the latter; a file with anything else is
            refused.
        after: the weights that the client sent back.
        num_examples: how many examples the client trained on.
        protocol: fields of :class:`~leakmeter.update.Protocol`, as in :func:`record`.
    """
    return Update(
        before=_read_state(Path(before)),
        after=_read_state(Path(after)),
        num_examples=num_examples,
        protocol=told(protocol),
    )


class Recorder:
    """Writes the updates of a federated run as ``FOLDER/round-0001/client-NAME.safetensors``.

    Args:
        folder: the folder for the records. Give every run a folder of its own.
        every: the interval in rounds; 5 records rounds 5, 10, 15 and so on.
        clients: which clients to record, or all of them.
        per_round: the most clients to record per round, or all of them.
        protocol: fields of :class:`~leakmeter.update.Protocol`, as in :func:`record`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every: int = 1,
        clients: Collection[int | str] | None = None,
        per_round: int | None = None,
        **protocol: Any,
    ) -> None:
        require("every", every, least=1)
        if per_round is not None:
            require("per_round", per_round, least=1)
        told(protocol)
        self.folder = Path(folder).absolute()
        self.every = every
        self.clients = None if clients is None else frozenset(clients)
        self.per_round = per_round
        self.protocol = protocol
        self._kept: Counter[int] = Counter()
        self._complained = False

    def wants(self, turn: int, client: int | str) -> bool:
        """Return whether to record ``client`` in round ``turn``."""
        return (
            turn % self.every == 0
            and (self.clients is None or client in self.clients)
            and (self.per_round is None or self._kept[turn] < self.per_round)
        )

    def keep(self, turn: int, client: int | str, make: Callable[[], Update]) -> None:
        """Write the update that ``make`` returns, if it is to be recorded. Never raises."""
        if not self.wants(turn, client):
            return
        try:
            name = f"client-{client}.safetensors"
            _write(make(), self.folder / f"round-{turn:04}" / name)
            self._kept[turn] += 1
        except Exception as problem:
            self.complain(f"round {turn}, client {client} is not recorded: {problem}")

    def complain(self, words: str) -> None:
        """Log a warning once, so that a full disk is not reported for every client."""
        if self._complained:
            LOG.debug(words)
            return
        self._complained = True
        LOG.warning("%s (the run continues; further problems are logged at level DEBUG)", words)


def told(fields: dict[str, Any]) -> Protocol:
    """Build a protocol from ``fields``; ``normalize`` may be a data set's name, or ``none``."""
    name = fields.get("normalize")
    if name == "none":
        if not fields.get("input_shape"):
            raise LeakmeterError("normalize is none: give input_shape, for the channels")
        fields = fields | {"normalize": resolve_normalization(None, fields["input_shape"][0])}
    elif isinstance(name, str):
        fields = fields | {"normalize": normalization(name)}
    try:
        return Protocol(**fields)
    except ValidationError as error:
        raise LeakmeterError(validation_errors(error, Protocol)[0]) from None


def same_precision(before: State, after: State) -> tuple[State, State]:
    """Return both states in the data types that the client computed with.

    A server's average may have wider types than the weights it was made of (a mean of integer
    counters is not an integer); the client casts it back. A client may also send lower precision
    than it computed with.
    """
    before, after = dict(before), dict(after)
    for name in before.keys() & after.keys():
        if after[name].is_floating_point() and after[name].itemsize < 4:
            after[name] = after[name].to(before[name].dtype)
        else:
            before[name] = before[name].to(after[name].dtype)
    return before, after


def _check_unwrapped(state: State) -> None:
    """Refuse a network wrapped by Opacus, torch.compile or DataParallel: wrapping changes names."""
    for inner in ("_module", "_orig_mod", "module"):
        if state and all(name.startswith(f"{inner}.") for name in state):
            raise LeakmeterError(
                f"model is wrapped, and the server does not know its names: record model.{inner}, "
                "which shares its weights"
            )


def _write(update: Update, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    update.save(path)


def _read_state(path: Path) -> State:
    state = read_safetensors(path)[0] if path.suffix == ".safetensors" else _unpickle(path)
    if not isinstance(state, dict) or not all(_is_plain(value) for value in state.values()):
        raise LeakmeterError(f"{path} is no state dict: write model.state_dict() alone")
    return {str(name): tensor.detach() for name, tensor in state.items()}


def _is_plain(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and not value.is_quantized
        and not value.is_meta
    )


def _unpickle(path: Path) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise LeakmeterError(f"cannot read {path}: {error.strerror}") from None
    except Exception:
        # A hostile or damaged pickle may fail in any way. Torch's message is not repeated because
        # it suggests opening the file without protection.
        raise LeakmeterError(
            f"{path} holds more than tensors, or is damaged, and was not opened: "
            "write it with torch.save(model.state_dict(), path) or as safetensors"
        ) from None
