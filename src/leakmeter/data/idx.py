"""MNIST and Fashion-MNIST: the idx format, plain or gzipped, training split."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leakmeter.data.constants import normalization
from leakmeter.data.dataset import Dataset
from leakmeter.data.files import class_labels, missing, read_at_most, reading
from leakmeter.data.image import resized
from leakmeter.errors import LeakmeterError
from leakmeter.pixels import as_images

_MNIST_SOURCE = "https://yann.lecun.com/exdb/mnist/"
_FASHION_SOURCE = "https://github.com/zalandoresearch/fashion-mnist#get-the-data"
_DIGITS = tuple("0123456789")
_GARMENTS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def mnist(folder: Path, size: int | None) -> Dataset:
    """MNIST's training digits [N, 1, 28, 28], white on black."""
    return _read("mnist", folder, size, _DIGITS, _MNIST_SOURCE)


def fashion_mnist(folder: Path, size: int | None) -> Dataset:
    """Fashion-MNIST's training garments [N, 1, 28, 28], white on black."""
    return _read("fashion-mnist", folder, size, _GARMENTS, _FASHION_SOURCE)


def _read(
    name: str, folder: Path, size: int | None, class_names: tuple[str, ...], source: str
) -> Dataset:
    images_path = _find(folder / "train-images-idx3-ubyte", source)
    labels_path = _find(folder / "train-labels-idx1-ubyte", source)
    images = _array(images_path, dimensions=3)
    labels = _array(labels_path, dimensions=1)
    return Dataset(
        name=name,
        images=resized(as_images(images), size),
        labels=class_labels(labels_path, "labels", labels, len(images), len(class_names)),
        class_names=class_names,
        normalization=normalization(name),
    )


def _find(path: Path, source: str) -> Path:
    zipped = path.with_name(path.name + ".gz")
    for candidate in (path, zipped):
        if candidate.is_file():
            return candidate
    raise missing(zipped, source)


def _array(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """One idx file: type code 0x08 (bytes), number of dimensions, their sizes, then the values."""
    opened = gzip.open if path.suffix == ".gz" else open
    with reading(path, "idx file"), opened(path, "rb") as file:
        (magic,) = struct.unpack(">I", file.read(4))
        if magic != 0x0800 + dimensions:
            raise LeakmeterError(
                f"{path}: magic number is {magic:#010x}, not {0x0800 + dimensions:#010x}"
            )
        shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
        announced = math.prod(shape)
        data = read_at_most(file, announced + 1)
    held = len(data)
    if announced != held:
        holds = "more" if held > announced else str(held)
        raise LeakmeterError(
            f"{path}: holds {holds} values, but its header announces {announced} (shape {shape})"
        )
    if held == 0:
        raise LeakmeterError(f"{path}: is empty (shape {shape})")
    return np.frombuffer(data, np.uint8).reshape(shape)
