"""FEMNIST as LEAF writes it: JSON files that hold each writer's images."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakmeter.data.constants import normalization
from leakmeter.data.dataset import Dataset
from leakmeter.data.files import class_labels, missing, reading
from leakmeter.data.image import resized
from leakmeter.errors import LeakmeterError

_SOURCE = "https://github.com/TalwalkarLab/leaf (data/femnist/preprocess.sh writes it)"
_CLASS_NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_SIDE = 28


def femnist(folder: Path, size: int | None) -> Dataset:
    """FEMNIST's characters [N, 1, 28, 28], black on white, from a folder's ``all_data_*.json``.

    `writer` numbers the users in the order in which the files name them.
    """
    # LEAF numbers its files without leading zeros, so shorter names come first.
    files = sorted(folder.glob("all_data_*.json"), key=lambda file: (len(file.name), file.name))
    if not files:
        raise missing(folder / "all_data_*.json", _SOURCE)
    images, labels, writers = [], [], []
    numbers: dict[str, int] = {}
    for file in files:
        for user, x, y in _users(file):
            images.append(x)
            labels.append(y)
            writers.append(torch.full_like(y, numbers.setdefault(user, len(numbers))))
    return Dataset(
        name="femnist",
        images=resized(torch.cat(images), size),
        labels=torch.cat(labels),
        class_names=_CLASS_NAMES,
        writer=torch.cat(writers),
        normalization=normalization("femnist"),
    )


def _users(path: Path) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each user in one file, with their images [n, 1, 28, 28] and labels [n]."""
    with reading(path, "LEAF json"):
        content = json.loads(path.read_bytes())
    match content:
        case {"users": [_, *_] as users, "user_data": dict(user_data)}:
            pass
        case _:
            raise LeakmeterError(f"{path}: needs 'users' (a list of names) and 'user_data'")
    for user in users:
        if not isinstance(user, str) or user not in user_data:
            raise LeakmeterError(f"{path}: 'users' names {user!r}, who is not in 'user_data'")
        yield user, *_examples(path, f"user_data.{user}", user_data[user])


def _examples(path: Path, field: str, entry: object) -> tuple[Tensor, Tensor]:
    """One user's images [n, 1, 28, 28] and labels [n]."""
    match entry:
        case {"x": [_, *_] as x, "y": [_, *_] as y}:
            pass
        case _:
            raise LeakmeterError(f"{path}: {field!r} needs lists 'x' and 'y', not empty")
    with reading(path, f"list of numbers in '{field}.x'"):
        rows = np.asarray(x, dtype=np.float32)
    if rows.shape != (len(x), _SIDE**2) or not ((rows >= 0) & (rows <= 1)).all():
        raise LeakmeterError(f"{path}: '{field}.x' must be rows of {_SIDE**2} numbers in 0 .. 1")
    images = torch.from_numpy(rows).view(-1, 1, _SIDE, _SIDE)
    return images, class_labels(path, f"{field}.y", y, len(x), len(_CLASS_NAMES))
