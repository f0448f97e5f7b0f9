"""Decides whether two pieces of work are the same, by a canonical encoding of the request."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from torch import Tensor

from leakmeter.errors import LeakmeterError
from leakmeter.state import digest

ENCODING = 1
"""Increased when the same description would give another result; work is then done again."""


def identity(description: object) -> str:
    """Return the SHA-256 of a description, the same on every machine and in every version.

    Args:
        description: numbers, texts, tensors, paths, functions and classes, and dataclasses,
            pydantic models, lists and mappings of them.

    Example:
        >>> identity({"lr": 0.1, "epochs": 2}) == identity({"epochs": 2, "lr": 0.1})
        True
    """
    text = json.dumps([ENCODING, _encoded(description)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _encoded(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, Tensor):
        return {"tensor": digest({"": value}, "")}
    if isinstance(value, BaseModel):
        return {name: _encoded(getattr(value, name)) for name in type(value).model_fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: _encoded(getattr(value, each.name)) for each in _fields(value)}
        return {type(value).__name__: fields}
    if isinstance(value, Mapping):
        return {str(name): _encoded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(_encoded(each) for each in value)
    # A lambda, in contrast, is created anew in every call.
    if callable(value) and "<" not in getattr(value, "__qualname__", "<"):
        return f"{value.__module__}.{value.__qualname__}"
    raise LeakmeterError(
        f"a {type(value).__name__} cannot be recognized again: describe the work by numbers, "
        "texts, tensors and dataclasses of them"
    )


def _fields(value: Any) -> list[dataclasses.Field[Any]]:
    return [each for each in dataclasses.fields(value) if each.init]
