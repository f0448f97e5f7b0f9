"""Turns pydantic's errors into lines that name the field and the nearest valid name."""

from __future__ import annotations

import typing
from typing import Any

from pydantic import BaseModel, ValidationError

from leakscope.errors import unknown


def complaints(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """One line per mistake, each with the path of its field.

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
    """The model that the field at ``path`` holds."""
    for step in path:
        if model is None or isinstance(step, int):
            continue
        field = model.model_fields.get(str(step))
        model = None if field is None else _model_in(field.annotation)
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, typing.get_args(annotation))), None)
