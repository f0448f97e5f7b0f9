"""CIFAR-10 and CIFAR-100: the official "python version", training split.

The files are pickles, and a pickle can run any program when it is loaded. Here nothing in them
runs: the few numpy names these files need become inert records, and every other name is refused.
"""

from __future__ import annotations

import io
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakmeter.data.constants import normalization
from leakmeter.data.dataset import Dataset
from leakmeter.data.files import class_labels, missing, reading
from leakmeter.data.image import resized
from leakmeter.errors import LeakmeterError
from leakmeter.pixels import as_images

_SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html (python version, unpacked)"
_SHAPE = (3, 32, 32)
_ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


@dataclass(frozen=True)
class _Layout:
    """The file and field names that differ between the two sets."""

    name: str
    batches: tuple[str, ...]
    labels: str
    meta: str
    class_names: str


_CIFAR10 = _Layout(
    name="cifar10",
    batches=tuple(f"data_batch_{i}" for i in range(1, 6)),
    labels="labels",
    meta="batches.meta",
    class_names="label_names",
)
_CIFAR100 = _Layout(
    name="cifar100",
    batches=("train",),
    labels="fine_labels",
    meta="meta",
    class_names="fine_label_names",
)


def cifar10(folder: Path, size: int | None) -> Dataset:
    """CIFAR-10's training images [N, 3, 32, 32] from ``cifar-10-batches-py``."""
    return _read(_CIFAR10, folder, size)


def cifar100(folder: Path, size: int | None) -> Dataset:
    """CIFAR-100's training images [N, 3, 32, 32], 100 fine classes, from ``cifar-100-python``."""
    return _read(_CIFAR100, folder, size)


def _read(layout: _Layout, folder: Path, size: int | None) -> Dataset:
    class_names = _names(folder / layout.meta, layout.class_names)
    batches = [_batch(folder / file, layout.labels, len(class_names)) for file in layout.batches]
    pixels = np.concatenate([images for images, _ in batches])
    return Dataset(
        name=layout.name,
        images=resized(as_images(pixels), size),
        labels=torch.cat([labels for _, labels in batches]),
        class_names=class_names,
        normalization=normalization(layout.name),
    )


def _names(path: Path, field: str) -> tuple[str, ...]:
    values = _field(path, _unpickle(path), field)
    if not isinstance(values, list) or not all(isinstance(value, bytes) for value in values):
        raise LeakmeterError(f"{path}: {field!r} must be a list of names")
    with reading(path, f"list of names in {field!r}"):
        return tuple(value.decode() for value in values)


def _batch(path: Path, labels_field: str, classes: int) -> tuple[NDArray[np.uint8], Tensor]:
    """One batch file: pixels uint8 [n, 32, 32, 3] and labels int64 [n]."""
    content = _unpickle(path)
    rows = _pixels(path, _field(path, content, "data"))
    labels = _field(path, content, labels_field)
    # Checked here because numpy would expand lists that contain themselves.
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise LeakmeterError(f"{path}: {labels_field!r} must be a list of integers")
    images = rows.reshape(-1, *_SHAPE).transpose(0, 2, 3, 1)
    return images, class_labels(path, labels_field, labels, len(images), classes)


def _field(path: Path, content: dict[Any, Any], field: str) -> Any:
    key = field.encode()  # Python 2 wrote these files, so their strings are bytes
    if key not in content:
        raise LeakmeterError(f"{path}: field {field!r} is missing")
    return content[key]


class _Record:
    """Stands in for numpy's array and dtype: keeps what the pickle says and does nothing else."""

    def __init__(self, *args: object) -> None:
        self.args = args
        self.state: object = None

    def __call__(self, *args: object) -> _Record:
        return _Record(*args)

    def __setstate__(self, state: object) -> None:
        self.state = state


# Uses the Python implementation: the C one allocates for any index in a hostile LONG_BINPUT.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> _Record:
        if (module, name) not in _ADMITTED:
            raise LeakmeterError(f"refused: it asks for {module}.{name}, which no CIFAR file does")
        return _Record()


def _unpickle(path: Path) -> dict[Any, Any]:
    if not path.is_file():
        raise missing(path, _SOURCE)
    with reading(path, "CIFAR pickle"):
        try:
            content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        except LeakmeterError as error:
            raise LeakmeterError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise LeakmeterError(f"{path}: not a CIFAR file: holds no dictionary")
    return content


def _pixels(path: Path, value: object) -> NDArray[np.uint8]:
    """The uint8 array [n, 3072] that a numpy pickle describes.

    A pickled array's state is (version, shape, dtype, whether in Fortran order, bytes).
    """
    match value:
        case _Record(
            state=(_, (int(n), 3072), _Record(args=(b"u1" | "u1", *_)), order, bytes(raw))
        ):
            shape = (n, math.prod(_SHAPE))
        case _:
            raise LeakmeterError(f"{path}: 'data' must be an array of bytes with 3072 columns")
    if n < 1 or len(raw) != math.prod(shape):
        raise LeakmeterError(f"{path}: 'data' announces shape {shape} but holds {len(raw)} bytes")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if order else "C")
