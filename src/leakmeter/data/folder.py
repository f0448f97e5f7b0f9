"""A user's own pictures: one subfolder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakmeter.data.dataset import Dataset
from leakmeter.data.image import decode, resized
from leakmeter.errors import LeakmeterError
from leakmeter.pixels import as_images

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


def read(folder: Path, size: int | None) -> Dataset:
    """All pictures of a folder [N, C, H, W], classes and files in alphabetical order.

    C is 1 if every picture is grayscale and 3 otherwise. Without `size`, all pictures must
    have the same size. Files without a picture's file extension are ignored.
    """
    if not folder.is_dir():
        raise LeakmeterError(
            f"{folder.absolute()}: folder not found: it must hold one subfolder per class"
        )
    classes = sorted(
        entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    if not classes:
        raise LeakmeterError(f"{folder}: no subfolders: it must hold one per class")
    files = [(label, file) for label, entry in enumerate(classes) for file in _pictures(entry)]
    return Dataset(
        name=folder.resolve().name,
        images=_stacked([file for _, file in files], size),
        labels=torch.tensor([label for label, _ in files]),
        class_names=tuple(entry.name for entry in classes),
    )


def _pictures(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)
    if not files:
        raise LeakmeterError(f"{folder}: no pictures (endings: {', '.join(_SUFFIXES)})")
    return files


def _stacked(files: list[Path], size: int | None) -> Tensor:
    """The pictures as one tensor [N, C, H, W]."""
    images = [resized(as_images(decode(file)[np.newaxis]), size) for file in files]
    expected = images[0].shape[2:]
    for file, image in zip(files, images, strict=True):
        if image.shape[2:] != expected:
            raise LeakmeterError(
                f"{file}: {_measures(image)} pixels, but {files[0]} has {_measures(images[0])}: "
                "pass `size` to resize all"
            )
    channels = max(image.shape[1] for image in images)
    return torch.cat([image.expand(-1, channels, -1, -1) for image in images])


def _measures(image: Tensor) -> str:
    """Width x height, as image viewers show it."""
    return f"{image.shape[3]}x{image.shape[2]}"
