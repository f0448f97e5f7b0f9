"""Keeps work on disk, so that it survives Ctrl-C and kill -9; finished work is read back."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, SupportsFloat, TypeVar

import torch
from filelock import FileLock
from torch import Tensor

from leakmeter.errors import LeakmeterError, StorageError
from leakmeter.execution.identity import identity
from leakmeter.state import State, read_safetensors, write_safetensors

Progress = Callable[[int, int, SupportsFloat | None], None]
"""Called after every step with the steps done, the total, and a figure of merit, if there is one.
Reading the figure may cost a device synchronization, so the callee decides how often to do it."""

Paused = Callable[[], bool]
"""Called after every step to ask whether the work is to pause."""


class Pause(BaseException):
    """Work stopped on request where it can resume. It is not an error, so nothing handles it so."""


class Saves(Protocol):
    """Something that can be written to a file."""

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        ...


Result = TypeVar("Result", bound=Saves)


def kept(
    work: Callable[[Path | None], Result],
    folder: Path | None,
    *,
    name: str,
    of: object,
    load: Callable[[Path], Result],
) -> Result:
    """Do ``work``, or read its result back if it was finished in ``folder`` before.

    Args:
        work: called with its own folder for intermediate results, or ``None``.
        folder: where results are kept; with ``None`` nothing is kept.
        name: the start of the file names.
        of: everything that the result depends on; see :func:`identity`.
        load: reads a result from its file.
    """
    if folder is None:
        return work(None)
    place = folder / f"{name}-{identity(of)[:16]}"
    finished = place.with_name(f"{place.name}.safetensors")
    with contextlib.suppress(LeakmeterError):  # not there, or damaged
        return load(finished)
    _make(place)
    result = work(place)
    result.save(finished)
    shutil.rmtree(place, ignore_errors=True)
    return result


class Checkpoint:
    """One file with named tensors and a few numbers of unfinished work.

    Args:
        folder: where the file is.
        name: the start of its name.
        of: what it belongs to; another description gets another file.
    """

    every = 10.0
    """Minimum seconds between two writes."""

    busy = 0.05
    """Share of the time that may be spent on writing."""

    def __init__(self, folder: Path, name: str, of: object = None) -> None:
        self.path = folder / f"{name}-{identity(of)[:16]}.safetensors"
        self._next = time.monotonic() + self.every

    def due(self) -> bool:
        """Return whether it is time to write again."""
        return time.monotonic() >= self._next

    def save(self, tensors: State, numbers: Mapping[str, Any] | None = None) -> None:
        """Replace the file, whole or not at all."""
        began = time.monotonic()
        _make(self.path.parent)
        metadata = {
            "numbers": json.dumps(dict(numbers or {})),
            # The last bits of sums depend on the memory layout, which the file does not record.
            "channels_last": json.dumps([n for n, t in tensors.items() if _is_channels_last(t)]),
        }
        write_safetensors(tensors, metadata, self.path)
        now = time.monotonic()
        self._next = now + max(self.every, (now - began) / self.busy)

    def load(self) -> tuple[State, dict[str, Any]] | None:
        """Return what was saved, or ``None`` if there is nothing readable."""
        if not self.path.exists():
            return None
        try:
            tensors, metadata = read_safetensors(self.path)
            numbers, turned = (json.loads(metadata[key]) for key in ("numbers", "channels_last"))
        except (LeakmeterError, KeyError, ValueError):
            return None
        for name in turned:
            tensors[name] = tensors[name].contiguous(memory_format=torch.channels_last)
        return tensors, numbers

    def remove(self) -> None:
        """Delete the file: the work is finished."""
        self.path.unlink(missing_ok=True)


def cache_folder(given: str | Path | None = None) -> Path:
    """Return ``given``, else ``$LEAKMETER_CACHE``, else ``~/.cache/leakmeter``."""
    return Path(given or os.environ.get("LEAKMETER_CACHE") or Path.home() / ".cache/leakmeter")


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Let only one process on this machine at a time do the work ``name``; others wait."""
    _make(cache_folder())
    with FileLock(cache_folder() / f"{name}.lock"):
        yield


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot make the folder {folder} ({error.strerror}): choose another one (for the "
            "cache by LEAKMETER_CACHE)"
        ) from None


def _is_channels_last(tensor: Tensor) -> bool:
    return (
        tensor.ndim == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )
