"""Compiles the step of an attack, when that pays.

A compiled step takes about a third less time than the same operations one by one, but compiling
takes as long as hundreds of them. So the first iterations are measured, and the rest decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar

import torch

Compiling = Literal["auto", "always", "never"]
"""Whether to compile: when the time it saves exceeds the time it takes, or as told."""

MEASURED = 3
"""Iterations that run one operation at a time before anything is decided."""

SAVING = 0.3
"""Share of an iteration that compiling saves (``benchmarks/speed.py``)."""

COST = 40.0
"""Seconds it takes; a tenth of it when the same step was compiled on this machine before."""

# Every attack has a step of its own: without isolation the ninth would be one too many.
_SETTINGS: dict[str, Any] = {"fullgraph": True, "dynamic": False, "isolate_recompiles": True}

P = ParamSpec("P")
T = TypeVar("T")


def pays(seconds: float, remaining: int) -> bool:
    """Whether to compile a step that takes ``seconds`` and will be run ``remaining`` times."""
    return SAVING * seconds * remaining > COST


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """``function`` as one compiled graph; as it is, with one line in the log, if that fails.

    Whatever is wrong with the function itself has been raised before, in the iterations measured.
    """
    chosen: Callable[P, T] | None = None

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        nonlocal chosen
        if chosen is not None:
            return chosen(*args, **kwargs)
        try:
            fast: Callable[P, T] = torch.compile(function, **_SETTINGS)
            result = fast(*args, **kwargs)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            logging.getLogger("leakscope").warning("the step is not compiled: %s", reason)
            chosen = function
            return function(*args, **kwargs)
        chosen = fast
        return result

    return run
