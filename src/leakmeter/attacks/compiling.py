"""Compiles the step of an attack when that saves time.

A compiled step takes about a third less time than the same operations one by one, but compiling
takes as long as hundreds of steps. So the first iterations are timed, and the number of remaining
iterations decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar

import torch

Compiling = Literal["auto", "always", "never"]
"""Whether to compile: when the time it saves exceeds the time it takes, or as told."""

MEASURED = 3
"""Iterations that run uncompiled before the decision."""

SAVING = 0.3
"""Share of an iteration that compiling saves (``benchmarks/speed.py``)."""

COST = 25.0
"""Seconds compiling takes on an idle machine; less if the step was compiled there before."""

# Every attack has a step of its own: without isolation the ninth would be one too many.
_SETTINGS: dict[str, Any] = {"fullgraph": True, "dynamic": False, "isolate_recompiles": True}

P = ParamSpec("P")
T = TypeVar("T")


def pays(seconds: float) -> bool:
    """Return whether to compile a step whose iterations would take another ``seconds`` in all."""
    return SAVING * seconds > COST


def compiled(step: Callable[P, T]) -> Callable[P, T]:
    """Return ``step`` as one graph, compiled on its first call, which may fail in many ways."""
    fast: Callable[P, T] = torch.compile(step, **_SETTINGS)
    return fast


def log_failure(error: Exception) -> None:
    """Log one line about a step that runs uncompiled."""
    reason = " ".join(str(error).split())[:200]
    logging.getLogger("leakmeter").warning("the step is not compiled: %s", reason)
