"""A user's own images in an ``.npz`` archive, as written by ``numpy.savez``."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from leakmeter.data.dataset import Dataset
from leakmeter.data.files import class_labels, integers, reading
from leakmeter.data.image import resized
from leakmeter.errors import LeakmeterError
from leakmeter.pixels import as_images

_FIELDS = "'images' (uint8 NHW or NHWC) and 'labels' (integers)"
_MOST_CLASSES = 100_000  # so that one stray label does not create a name for every smaller number
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read(path: Path, size: int | None) -> Dataset:
    """The set in an archive with `images`, `labels`, and optionally `writer` and `class_names`.

    `images` is uint8 [N, H, W] or [N, H, W, C] with C = 1 or 3; `labels` and `writer` are
    integers [N]; `class_names` are strings [classes]. Without them, the classes are all numbers up
    to the largest label.
    """
    if not path.is_file():
        raise LeakmeterError(f"{path}: file not found: name an .npz archive with {_FIELDS}")
    with reading(path, "npz archive"), zipfile.ZipFile(path) as archive:
        fields = {
            name: _array(path, archive, name)
            for name in ("images", "labels", "writer", "class_names")
            if f"{name}.npy" in archive.namelist()
        }
    for name in ("images", "labels"):
        if name not in fields:
            raise LeakmeterError(f"{path}: field {name!r} is missing: it needs {_FIELDS}")
    images = _checked_images(path, fields["images"])
    labels = integers(path, "labels", fields["labels"], len(images))
    names = _class_names(path, fields.get("class_names"), int(labels.max()))
    writer = fields.get("writer")
    return Dataset(
        name=path.stem,
        images=resized(as_images(images), size),
        labels=class_labels(path, "labels", labels, len(images), len(names)),
        class_names=names,
        writer=(
            None
            if writer is None
            else torch.from_numpy(integers(path, "writer", writer, len(images)))
        ),
    )


def _array(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """One member, read only if the size in its header matches its actual size."""
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        version = npy.read_magic(file)
        if version not in _HEADERS:
            raise LeakmeterError(f"{path}: {name!r} has the unknown npy version {version}")
        shape, fortran, dtype = _HEADERS[version](file)
        if dtype.hasobject:
            raise LeakmeterError(f"{path}: {name!r} holds Python objects, which are never loaded")
        claimed, real = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
        if claimed != real:
            raise LeakmeterError(f"{path}: {name!r} claims {claimed} bytes but has {real}")
        data = file.read()
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _checked_images(path: Path, images: NDArray[Any]) -> NDArray[np.uint8]:
    channels = images.shape[3:] or (1,)
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or channels[0] not in (1, 3):
        raise LeakmeterError(
            f"{path}: 'images' must be uint8 NHW or NHWC with 1 or 3 channels, "
            f"not {images.dtype} of shape {images.shape}"
        )
    if images.size == 0:
        raise LeakmeterError(f"{path}: 'images' is empty (shape {images.shape})")
    return images


def _class_names(path: Path, names: NDArray[Any] | None, largest: int) -> tuple[str, ...]:
    if names is None:
        if largest >= _MOST_CLASSES:
            raise LeakmeterError(
                f"{path}: 'labels' go up to {largest}: number the classes from 0, "
                f"at most {_MOST_CLASSES} of them"
            )
        return tuple(str(label) for label in range(largest + 1))
    if names.ndim != 1 or names.dtype.kind != "U":
        raise LeakmeterError(
            f"{path}: 'class_names' must be a vector of strings, "
            f"not {names.dtype} of shape {names.shape}"
        )
    return tuple(names.tolist())
