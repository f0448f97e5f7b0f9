"""What all readers share: turning a bad file into one clear error, and checking labels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from gzip import GzipFile
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from leakmeter.errors import LeakmeterError


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turns whatever a parser raises on a bad file into an error that names the file.

    Given hostile bytes, parsers raise nearly anything (zlib.error, struct.error, RecursionError,
    MemoryError, ...), so everything is caught: put only the parser's call in the block.

    Args:
        path: the file being parsed.
        what: what it should be, e.g. ``"npz archive"``.
    """
    try:
        yield
    except LeakmeterError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise LeakmeterError(f"{path}: not a readable {what}: {reason}") from error


def missing(path: Path, source: str) -> LeakmeterError:
    """An error for a missing file that says where to get it and where to put it."""
    return LeakmeterError(
        f"{path}: file not found: download it from {source} and put it in {path.parent}"
    )


def integers(path: Path, field: str, values: ArrayLike, count: int) -> NDArray[np.int64]:
    """`values` as int64 [count]; an error unless it is a vector of `count` integers."""
    with reading(path, f"list of integers in {field!r}"):
        array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise LeakmeterError(
            f"{path}: {field!r} must be a vector of integers, "
            f"not {array.dtype} of shape {array.shape}"
        )
    if len(array) != count:
        raise LeakmeterError(f"{path}: {field!r} has {len(array)} entries for {count} images")
    return array.astype(np.int64)


def class_labels(path: Path, field: str, values: ArrayLike, count: int, classes: int) -> Tensor:
    """`values` as an int64 tensor [count]; an error unless all are in 0 .. classes - 1."""
    array = integers(path, field, values, count)
    if array.min() < 0 or array.max() >= classes:
        raise LeakmeterError(
            f"{path}: {field!r} must be in 0 .. {classes - 1}, not {array.min()} .. {array.max()}"
        )
    return torch.from_numpy(array)


def read_at_most(file: IO[bytes] | GzipFile, count: int) -> bytes:
    """Up to ``count`` bytes, read in pieces so that a false header cannot allocate terabytes."""
    pieces = []
    while count > 0 and (piece := file.read(min(count, 1 << 20))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
