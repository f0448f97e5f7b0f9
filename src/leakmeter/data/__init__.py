"""Labeled images: two sets that need no download, and readers for the standard file formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from leakmeter.data import cifar, embedded, folder, idx, leaf, npz, text
from leakmeter.data.constants import normalization
from leakmeter.data.dataset import Dataset
from leakmeter.errors import LeakmeterError, unknown

__all__ = ["Dataset", "describe", "load", "names", "normalization", "text"]


@dataclass(frozen=True)
class _Kind:
    """One way to get a dataset.

    Attributes:
        about: one line for the user.
        read: the reader; it takes the path and the side to resize to (None: as stored).
        argument: what PATH must name; empty for an embedded set, which takes no path.
    """

    about: str
    read: Callable[[Path, int | None], Dataset]
    argument: str = "FOLDER"

    def form(self, name: str) -> str:
        """What the user writes to get this dataset."""
        return f"{name}:{self.argument}" if self.argument else name


_KINDS = {
    "photos": _Kind(
        about="128 color crops 32x32 of 8 photographs, labeled by photograph; no download",
        read=embedded.photos,
        argument="",
    ),
    "faces": _Kind(
        about="100 grayscale faces 25x25 and 100 backgrounds of LFW; no download",
        read=embedded.faces,
        argument="",
    ),
    "npz": _Kind(
        about="your own: images (uint8 NHW or NHWC), labels, optional writer and class_names",
        read=npz.read,
        argument="FILE",
    ),
    "folder": _Kind(
        about="your own: one subfolder of pictures (PNG, JPEG, ...) per class",
        read=folder.read,
    ),
    "mnist": _Kind(
        about="MNIST's train-*-ubyte files, plain or .gz",
        read=idx.mnist,
    ),
    "fashion-mnist": _Kind(
        about="Fashion-MNIST's train-*-ubyte files, plain or .gz",
        read=idx.fashion_mnist,
    ),
    "femnist": _Kind(
        about="FEMNIST with its writers: LEAF's all_data_*.json files",
        read=leaf.femnist,
    ),
    "cifar10": _Kind(
        about="CIFAR-10's python version, training batches (cifar-10-batches-py)",
        read=cifar.cifar10,
    ),
    "cifar100": _Kind(
        about="CIFAR-100's python version, training file, fine labels (cifar-100-python)",
        read=cifar.cifar100,
    ),
}


def load(spec: str, *, size: int | None = None) -> Dataset:
    """Loads a dataset; anything wrong with it raises a `LeakmeterError` that names the file.

    Args:
        spec: ``photos``, ``faces`` or ``KIND:PATH`` (`names` and `describe` list them).
        size: side in pixels to resize to, after cropping to the center square; None: as stored.

    Example:
        >>> load("photos", size=32)
        Dataset(photos: 128 images 3x32x32, 8 classes)
    """
    name, _, place = spec.partition(":")
    kind = _kind(name)
    if bool(place) != bool(kind.argument):
        raise LeakmeterError(f"dataset {spec!r}: write it as {kind.form(name)}")
    if size is not None and size < 1:
        raise LeakmeterError(f"size: must be at least 1 pixel, not {size}")
    try:
        path = Path(place).expanduser() if place else embedded.FOLDER
        return kind.read(path, size)
    except (OSError, MemoryError, RuntimeError) as error:  # RuntimeError: an unknown ~user
        raise LeakmeterError(f"dataset {spec!r}: cannot be read: {error}") from error


def names() -> list[str]:
    """All kinds of datasets, as `load` knows them."""
    return list(_KINDS)


def describe(name: str) -> str:
    """One line about a kind of dataset: how to write its spec, and what it holds."""
    kind = _kind(name)
    return f"{kind.form(name)}: {kind.about}"


def _kind(name: str) -> _Kind:
    if name not in _KINDS:
        raise unknown("dataset", name, _KINDS)
    return _KINDS[name]
