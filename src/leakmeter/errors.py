"""The one error type that crosses leakmeter's boundary."""

from __future__ import annotations

import difflib
import math
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


class LeakmeterError(ValueError):
    """Bad input: the message names the offending field and says what to do.

    The command line prints the message in one line and exits with code 2.
    """


class StorageError(LeakmeterError):
    """Results cannot be written; other work would fail the same way until that is fixed."""


def require(
    name: str, value: float, *, above: float | None = None, least: float = 0, most: float = math.inf
) -> None:
    """Refuse a number that is not finite or out of range.

    Args:
        name: the name of the field.
        value: the value it was set to.
        above: the bound that the value must exceed.
        least: the smallest value allowed if ``above`` is not given.
        most: the largest value allowed.
    """
    low = value >= least if above is None else value > above
    if low and value <= most and math.isfinite(value):
        return
    words = f"{least:g} or more" if above is None else f"a number above {above:g}"
    words += f" and at most {most:g}" if most < math.inf else ""
    words += "" if math.isfinite(value) else ", finite"
    raise LeakmeterError(f"{name} is {value}: use {words}")


def unknown(kind: str, name: str, known: Iterable[str]) -> LeakmeterError:
    """Make the error for a name that does not exist, suggesting the nearest valid one.

    Args:
        kind: what the name stands for, e.g. ``"model"``.
        name: what was asked for.
        known: all valid names.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return LeakmeterError(f"unknown {kind} {name!r}: {hint}valid: {', '.join(names)}")


def validation_errors(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """Turn pydantic's errors into lines that give the field's path and the nearest valid name.

    Args:
        error: what pydantic found.
        root: the model that was validated.
    """
    lines = []
    for detail in error.errors():
        path = ".".join(str(step) for step in detail["loc"])
        lines.append(f"{path}: {_reason(detail, root)}" if path else _reason(detail, root))
    return lines


def _reason(detail: Any, root: type[BaseModel]) -> str:
    if detail["type"] == "extra_forbidden":
        *parents, field = detail["loc"]
        owner = _model_at(root, parents)
        return str(unknown("field", str(field), owner.model_fields if owner else []))
    if detail["type"] == "literal_error":
        choices = [choice.strip("'") for choice in detail["ctx"]["expected"].split(", ")]
        choices[-1:] = [choice.strip("'") for choice in choices[-1].split(" or ")]
        return str(unknown("value", str(detail["input"]), choices))
    message = str(detail["msg"]).removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def _model_at(model: type[BaseModel] | None, path: list[Any]) -> type[BaseModel] | None:
    """Return the model that the field at ``path`` holds."""
    for step in path:
        if model is None or isinstance(step, int):
            continue
        field = model.model_fields.get(str(step))
        model = None if field is None else _model_in(field.annotation)
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        return annotation
    return next(filter(None, map(_model_in, typing.get_args(annotation))), None)
