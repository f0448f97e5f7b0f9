"""The papers' networks, and the user's own."""

from __future__ import annotations

from torch import nn

from leakmeter.errors import LeakmeterError, unknown
from leakmeter.models import text, user
from leakmeter.models.factory import arguments, seeded
from leakmeter.models.registry import REGISTRY, Entry

__all__ = ["build", "describe", "names", "text"]


def build(
    name: str,
    *,
    classes: int,
    channels: int | None = None,
    size: int | None = None,
    seed: int = 0,
) -> nn.Module:
    """A freshly initialized network: images [N, channels, size, size] -> logits [N, classes].

    The same call gives the same weights, and torch's global random state is left untouched.

    Args:
        name: one of :func:`names`, or the user's own as ``package.module:factory`` or
            ``path/to/file.py:factory``. A factory is called with whichever of ``classes``,
            ``channels``, and ``size`` its signature names, and returns an ``nn.Module``.
        classes: number of outputs, at least 2.
        channels: channels of the images; by default as in the network's paper.
        size: side of the images in pixels; by default as in the network's paper.
        seed: seed for the initial weights.

    Example:
        >>> sum(p.numel() for p in build("lenet-zhu", classes=10).parameters())
        15826
    """
    _require("classes", classes, 2)
    _require("channels", channels, 1)
    _require("size", size, 1)
    if ":" in name:
        return user.build(name, classes=classes, channels=channels, size=size, seed=seed)
    entry = _entry(name)
    channels = entry.channels if channels is None else channels
    size = entry.size if size is None else size
    _require_size(name, entry, size)
    with seeded(seed):
        return entry.builder(
            **arguments(entry.builder, classes=classes, channels=channels, size=size)
        )


def names() -> list[str]:
    """The names of the built-in models."""
    return list(REGISTRY)


def describe(name: str) -> str:
    """One line about a built-in model: what it is, which paper uses it, and its default input."""
    entry = _entry(name)
    return f"{entry.about} [{entry.channels}x{entry.size}x{entry.size}]"


def _entry(name: str) -> Entry:
    if name.endswith(".py"):
        raise LeakmeterError(f"model {name}: say which function builds it, as {name}:FUNCTION")
    if name not in REGISTRY:
        raise unknown("model", name, REGISTRY)
    return REGISTRY[name]


def _require(field: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise LeakmeterError(f"{field} must be at least {least}, got {value}")


def _require_size(name: str, entry: Entry, size: int) -> None:
    if size < entry.smallest:
        raise LeakmeterError(
            f"size: {name} needs images of at least {entry.smallest} pixels a side, got {size}"
        )
    if size % entry.multiple_of:
        raise LeakmeterError(
            f"size: {name} needs a multiple of {entry.multiple_of} pixels a side, got {size}"
        )
