"""A half-finished attack on disk, so that it survives Ctrl-C and kill -9."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from leakscope.errors import LeakscopeError
from leakscope.state import State, read_safetensors, under, write_safetensors


class Saved(NamedTuple):
    """The state of the loop between two iterations.

    Attributes:
        values: of the variables that are learned.
        constants: of the others.
        state: the solver's own.
        track: [iterations, 2], loss and match so far.
        done: how many iterations.
        place: on the schedule; further than ``done`` once a stage was left early.
        begun: iterations done when the present stage began.
        since: iterations done and seconds spent when the step took its present form; if it was
            compiled, it takes another one when the constants become others.
        fast: whether the step is compiled in this form, once that has been decided.
        compiled: whether it was in any.
        seconds: spent.
    """

    values: State
    constants: State
    state: State
    track: Tensor
    done: int = 0
    place: int = 0
    begun: int = 0
    since: tuple[int, float] = (0, 0.0)
    fast: bool | None = None
    compiled: bool = False
    seconds: float = 0.0

    def to(self, device: torch.device) -> Saved:
        """The same on ``device``."""
        values, constants, state = (
            {name: tensor.to(device) for name, tensor in part.items()}
            for part in (self.values, self.constants, self.state)
        )
        track = self.track.to(device)
        return self._replace(values=values, constants=constants, state=state, track=track)


_NUMBERS = ("done", "place", "begun", "since", "fast", "compiled", "seconds")

FORMAT = "5"
"""Of the file; another is ignored."""

BUSY = 0.05
"""Share of the time that may be spent on writing."""


def _is_channels_last(tensor: Tensor) -> bool:
    return (
        tensor.ndim == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )


@dataclass
class Checkpoint:
    """Stores the loop's state in one file, at most every ``every`` seconds.

    Attributes:
        path: the file.
        key: what the state belongs to; a file with another key is ignored and overwritten.
        every: seconds between two writes.
    """

    path: Path
    key: str
    every: float = 10.0
    _next: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._next = time.monotonic() + self.every

    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() >= self._next

    def save(self, loop: Saved) -> None:
        """Replace the file, whole or not at all."""
        began = time.monotonic()
        tensors = {f"values/{name}": tensor for name, tensor in loop.values.items()}
        tensors |= {f"constants/{name}": tensor for name, tensor in loop.constants.items()}
        tensors |= {f"state/{name}": tensor for name, tensor in loop.state.items()}
        tensors["track"] = loop.track
        metadata = {
            "format": FORMAT,
            "key": self.key,
            "loop": json.dumps({name: getattr(loop, name) for name in _NUMBERS}),
            # Sums depend on how tensors lie in memory, to the last bit, and files do not say it.
            "channels_last": json.dumps([n for n, t in tensors.items() if _is_channels_last(t)]),
        }
        write_safetensors(tensors, metadata, self.path)
        now = time.monotonic()
        self._next = now + max(self.every, (now - began) / BUSY)

    def load(self) -> Saved | None:
        """The stored state, or ``None`` if there is none for this key."""
        if not self.path.exists():
            return None
        try:
            tensors, metadata = read_safetensors(self.path)
        except LeakscopeError:
            return None
        if (metadata.get("format"), metadata.get("key")) != (FORMAT, self.key):
            return None
        for name in json.loads(metadata["channels_last"]):
            tensors[name] = tensors[name].contiguous(memory_format=torch.channels_last)
        return Saved(
            values=under(tensors, "values/"),
            constants=under(tensors, "constants/"),
            state=under(tensors, "state/"),
            track=tensors["track"],
            **json.loads(metadata["loop"]),
        )

    def remove(self) -> None:
        """Delete the file: the attack has finished."""
        self.path.unlink(missing_ok=True)
