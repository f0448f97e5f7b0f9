"""The user's own model, given by import path or file: ``package.module:factory``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from leakmeter.errors import LeakmeterError
from leakmeter.models.factory import arguments, seeded


def build(
    name: str, *, classes: int, channels: int | None, size: int | None, seed: int
) -> nn.Module:
    """Import what ``name`` points to and call it; see :func:`leakmeter.models.build`."""
    source, _, attribute = name.rpartition(":")
    if not source or not attribute:
        raise LeakmeterError(
            f"model {name!r}: write it as package.module:factory or path/to/file.py:factory"
        )
    folder = Path(source).expanduser().resolve().parent if source.endswith(".py") else Path.cwd()
    with _importable(folder), seeded(seed):
        factory = _factory(name, source, attribute)
        torch.manual_seed(seed)  # seed again: only a first import may draw numbers
        model = _call(name, factory, classes=classes, channels=channels, size=size)
    if not isinstance(model, nn.Module):
        raise LeakmeterError(
            f"model {name!r}: {attribute} returned {type(model).__name__}, "
            "it must return a torch.nn.Module"
        )
    return model


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Makes imports look in ``folder`` first, as in ``python -m`` and ``python file.py``."""
    before = sys.path.copy()
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _factory(name: str, source: str, attribute: str) -> Callable[..., object]:
    try:
        module = _load(source)
    except (Exception, SystemExit) as problem:
        raise LeakmeterError(
            f"model {name!r}: cannot import {source!r} ({type(problem).__name__}: {problem}): "
            "check the spelling, the current directory, and that it imports in Python by itself"
        ) from problem
    if not hasattr(module, attribute):
        raise LeakmeterError(
            f"model {name!r}: {source!r} has no {attribute!r}: "
            "name a function or class that it defines"
        )
    factory = getattr(module, attribute)
    if not callable(factory):
        raise LeakmeterError(
            f"model {name!r}: {attribute} is {type(factory).__name__}, not callable: "
            "name a function or class that returns a torch.nn.Module"
        )
    return factory  # type: ignore[no-any-return]


def _call(
    name: str,
    factory: Callable[..., object],
    *,
    classes: int,
    channels: int | None,
    size: int | None,
) -> object:
    try:
        return factory(**arguments(factory, classes=classes, channels=channels, size=size))
    except (Exception, SystemExit) as problem:
        raise LeakmeterError(
            f"model {name!r}: the factory raised {type(problem).__name__}: {problem}: it must be "
            "callable with those of classes, channels and size that its signature names"
        ) from problem


def _load(source: str) -> ModuleType:
    if not source.endswith(".py"):
        return importlib.import_module(source)
    path = Path(source).expanduser()
    spec = importlib.util.spec_from_file_location(f"leakmeter_user_{path.stem}", path)
    assert spec is not None  # always found by its suffix .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in the file look up their module here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module
