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

COST = 25.0
"""Seconds it takes on an idle machine; less when the same step was compiled there before."""

# Every attack has a step of its own: without isolation the ninth would be one too many.
_SETTINGS: dict[str, Any] = {"fullgraph": True, "dynamic": False, "isolate_recompiles": True}

P = ParamSpec("P")
T = TypeVar("T")


def pays(seconds: float) -> bool:
    """Whether to compile a step that would otherwise run for another ``seconds``, many times."""
    return SAVING * seconds > COST


def compiled(step: Callable[P, T]) -> Callable[P, T]:
    """``step`` as one graph; compiled when it is first called, which may fail in many ways."""
    fast: Callable[P, T] = torch.compile(step, **_SETTINGS)
    return fast


def log_failure(error: Exception) -> None:
    """One line for a step that runs uncompiled."""
    reason = " ".join(str(error).split())[:200]
    logging.getLogger("leakmeter").warning("the step is not compiled: %s", reason)
