"""Estimates the cost of trials from their first iterations, and orders them within a budget."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import SupportsFloat

from leakmeter.errors import LeakmeterError
from leakmeter.execution.executors import Worker
from leakmeter.execution.kept import Pause
from leakmeter.execution.memory import peak_memory
from leakmeter.execution.trial import Job, Outcome, Trial, perform

PROBE = 1.0
"""Seconds after which a probe may stop, once it has seen some iterations."""

PROBE_AT_MOST = 10.0
"""Seconds after which two iterations are enough."""

_UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Cost:
    """The cost of a trial.

    Attributes:
        seconds: time on one of the executor's processes.
        memory: peak memory of its process, in bytes.
    """

    seconds: float
    memory: int


def probe(job: Job, worker: Worker) -> Cost | Outcome:
    """Start a trial, time its first iterations and pause; it may already finish by then."""
    began, marks = time.perf_counter(), list[tuple[float, int]]()
    whole = 1

    def follow(done: int, total: int, figure: SupportsFloat | None = None) -> None:
        nonlocal whole
        worker.progress(done, total, figure)
        if done == 0:  # what comes first is done once
            marks.clear()
            return
        whole = total
        marks.append((time.perf_counter(), done))

    def enough() -> bool:
        if len(marks) < 2 or marks[-1][1] >= whole:
            return False
        spent = marks[-1][0] - marks[0][0]
        return (len(marks) >= 4 and spent > PROBE) or spent > PROBE_AT_MOST

    try:
        return perform(job, replace(worker, progress=follow, paused=enough))
    except Pause:
        if worker.paused():
            raise
        (first, start), (last, end) = marks[0], marks[-1]
        each = (last - first) / max(1, end - start)
        return Cost(first - began + each * whole, peak_memory())


def parse_budget(text: str) -> float:
    """Parse a duration such as ``90s``, ``20m`` or ``1.5h`` into seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if match is None or float(match[1]) == 0:
        raise LeakmeterError(f"--budget {text!r}: write it as 90s, 20m or 2h")
    return float(match[1]) * _UNITS[match[2]]


def ordered(
    trials: Sequence[Trial], costs: Mapping[str, Cost], budget: float | None
) -> list[Trial]:
    """Return the trials to be done, the longest first, so that none runs alone at the end.

    With a budget, return those that fit it, by repetition: fewer repetitions of all trials rather
    than none of some. Where not even one repetition fits, choose single trials, the cheapest first.
    A trial of unknown cost fits no budget.

    Args:
        trials: the trials left to do.
        costs: costs by the key that trials of equal cost share; without a budget, trials of
            unknown cost come first.
        budget: seconds of all processes together; an early end then leaves whole repetitions.
    """

    def seconds(trial: Trial) -> float:
        cost = costs.get(trial.alike)
        return math.inf if cost is None else cost.seconds

    if budget is None:
        return sorted(trials, key=seconds, reverse=True)
    chosen: list[Trial] = []
    spent = 0.0
    for repeat in sorted({trial.repeat for trial in trials}):
        whole = [trial for trial in trials if trial.repeat == repeat]
        spent += sum(map(seconds, whole))
        if spent > budget:
            break
        chosen += whole
    return sorted(
        chosen or _cheapest(trials, seconds, budget),
        key=lambda trial: (trial.repeat, -seconds(trial)),
    )


def _cheapest(
    trials: Sequence[Trial], seconds: Callable[[Trial], float], budget: float
) -> list[Trial]:
    chosen = []
    for trial in sorted(trials, key=lambda trial: (trial.repeat, seconds(trial))):
        budget -= seconds(trial)
        if budget < 0:
            break
        chosen.append(trial)
    return chosen
