"""The data sets used in the tables: each a file in the data folder and how to use it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from leakmeter import data
from leakmeter.data import Dataset
from leakmeter.errors import LeakmeterError
from leakmeter.state import file_digest


@dataclass(frozen=True)
class Source:
    """One data set.

    Attributes:
        file: name of the file in the data folder.
        normalize: the set whose normalization constants networks expect.
        size: side in pixels to resize to; ``None`` keeps the stored size.
        classes: number of classes: of the network if more than in the file, of the images if fewer.
    """

    file: str
    normalize: str
    size: int | None = None
    classes: int | None = None


SOURCES = {
    "femnist": Source("femnist.npz", "femnist"),
    "femnist-digits": Source("femnist.npz", "femnist", classes=10),
    "cifar10": Source("cifar10.npz", "cifar10"),
    "cifar100": Source("cifar100.npz", "cifar100"),
    "lfw": Source("lfw64.npz", "lfw", size=32),
    "imagenet": Source("imagenet224.npz", "imagenet", classes=1000),
}


def default_folder() -> Path:
    """``$LEAKMETER_DATA`` if set, otherwise ``data`` in the current folder."""
    return Path(os.environ.get("LEAKMETER_DATA") or "data")


def locate(folder: Path, name: str) -> Path:
    """The path of the data set called ``name``; the file must exist."""
    path = folder / SOURCES[name].file
    if not path.is_file():
        raise LeakmeterError(
            f"{path}: file not found: give by --data or $LEAKMETER_DATA the folder of an .npz "
            f"archive {path.name} with 'images' (uint8 NHW or NHWC) and 'labels' (integers), "
            "for FEMNIST also 'writer'"
        )
    return path


def locate_text(folder: Path) -> Path:
    """The path of the sentences file, with one sentence per line; the file must exist."""
    path = folder / "text" / "sst2.tsv"
    if not path.is_file():
        raise LeakmeterError(f"{path}: file not found: put a text file there, a sentence a line")
    return path


@lru_cache(maxsize=2)
def load(folder: Path, name: str) -> Dataset:
    """The data set called ``name``."""
    source = SOURCES[name]
    dataset = data.load(f"npz:{locate(folder, name)}", size=source.size)
    if source.classes is None:
        return dataset
    kept = (dataset.labels < source.classes).nonzero().flatten()
    names = tuple(str(label) for label in range(source.classes))
    return replace(dataset.select(kept), class_names=names)


@lru_cache
def fingerprint(path: Path) -> str:
    """SHA-256 of a file."""
    return file_digest(path)
