"""Calls a model factory reproducibly and with the arguments it asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

# Values for a user's factory that requires these arguments when the caller gave none.
_FALLBACK = {"channels": 3, "size": 32}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch with ``seed`` inside the block and restores its random state afterward."""
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


_SAME = {
    "classes": ("classes", "num_classes", "num_labels"),
    "channels": ("channels", "in_channels", "in_chans", "num_channels"),
    "size": ("size", "image_size", "img_size"),
}
"""The names that factories use for their arguments."""


def arguments(
    factory: Callable[..., object], *, classes: int, channels: int | None, size: int | None
) -> dict[str, int]:
    """The arguments that ``factory`` accepts by name, under whichever usual names it uses.

    An argument that is None is left to the factory's own default, if there is one.
    """
    parameters = inspect.signature(factory).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    chosen = {}
    for ours, value in {"classes": classes, "channels": channels, "size": size}.items():
        named = next((name for name in _SAME[ours] if name in parameters), None)
        if value is not None and (named is not None or takes_any):
            chosen[named or ours] = value
        elif named is not None and parameters[named].default is inspect.Parameter.empty:
            chosen[named] = _FALLBACK[ours]
    return chosen
