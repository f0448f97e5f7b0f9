"""Named tensors: their algebra, their digest, and the safetensors files that hold them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from leakmeter.errors import LeakmeterError, StorageError

State = dict[str, Tensor]
"""Tensors by their name in ``model.state_dict()``."""

TINY = 1e-30
"""Lower bound for a product of norms that serves as a divisor."""


def dot(a: State, b: State) -> Tensor:
    """Return the inner product over all tensors of ``b`` together, a scalar."""
    return torch.stack([(a[name] * b[name]).sum() for name in b]).sum()


def norm(a: State) -> Tensor:
    """Euclidean norm of all tensors together, a scalar."""
    return torch.stack([tensor.square().sum() for tensor in a.values()]).sum().sqrt()


def cosine(a: State, b: State) -> Tensor:
    """Cosine of the angle between ``a`` and ``b``, a scalar; 0 if one of them is zero."""
    return dot(a, b) / (norm(a) * norm(b)).clamp_min(TINY)


def lerp(start: State, end: State, share: float | Tensor) -> State:
    """``(1 - share) start + share end``, tensor by tensor."""
    return {name: tensor.lerp(end[name], share) for name, tensor in start.items()}


def mean(states: Sequence[State]) -> State:
    """Mean of all ``states``, tensor by tensor."""
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def under(tensors: State, prefix: str) -> State:
    """Return the tensors whose names start with ``prefix``, with the prefix removed."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def digest(tensors: State, text: str) -> str:
    """SHA-256 over ``text`` and the names, types, shapes and bits of ``tensors``."""
    total = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def named(metadata: Mapping[str, str], what: str) -> str | None:
    """Return a header of a safetensors file; older files store it under the project's old name."""
    return metadata.get(f"leakmeter.{what}") or metadata.get(f"leakscope.{what}")


def write_safetensors(tensors: State, metadata: dict[str, str], path: Path) -> None:
    """Write a safetensors file beside ``path``, then move it there, so it is never seen partial."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    try:
        save_file(stored, partial, metadata=metadata)
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot write {path}: {error}") from None
    finally:
        partial.unlink(missing_ok=True)


def read_safetensors(path: Path) -> tuple[State, dict[str, str]]:
    """Read tensors and metadata of a safetensors file; pickles and broken files are refused."""
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise LeakmeterError(f"cannot read {path}: {error.strerror}") from None
    # A safetensors file is 8 bytes of length and then a JSON object.
    if start[8:] != b"{" and (start.startswith(b"PK\x03\x04") or start.startswith(b"\x80")):
        raise LeakmeterError(
            f"{path} is a pickle (torch.save), which can run code and is never opened: "
            "write it with Update.save or safetensors.torch.save_file, or make an update of two "
            "such files of weights by update_from_files"
        )
    try:
        with safe_open(path, framework="pt") as file:
            # Copy: if the file is truncated, reading a memory-mapped tensor crashes the process.
            tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    # An empty tensor may claim sizes that the library accepts but torch cannot represent.
    except (SafetensorError, TypeError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise LeakmeterError(
            f"{path} is not a whole safetensors file ({reason}): was it cut off in transfer?"
        ) from None
