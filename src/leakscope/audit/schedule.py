"""What trials cost, tried out on their first iterations; which fit a budget; which come first."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from leakscope.attack.solver import Progress
from leakscope.audit.memory import peak_memory
from leakscope.audit.trial import Job, Outcome, Trial, perform
from leakscope.errors import LeakscopeError

PROBE = 1.0
"""Seconds after which a probe has seen enough, once it has seen some iterations."""

PROBE_AT_MOST = 10.0
"""Seconds after which two iterations are enough."""

_UNITS = {"s": 1, "m": 60, "h": 3600}

J = TypeVar("J")


@dataclass(frozen=True)
class Cost:
    """What a trial takes.

    Attributes:
        seconds: on one of the crew's processes.
        memory: the most that its process holds, in bytes.
    """

    seconds: float
    memory: int


class _EnoughError(KeyboardInterrupt):
    """Ends a probe as Ctrl-C would: the attack keeps what it has, and the trial goes on there."""


def probe(job: Job, progress: Progress) -> Cost | Outcome:
    """Begin a trial, time its first iterations and stop; one that is over by then is done."""
    began, marks = time.perf_counter(), list[tuple[float, int]]()
    whole = 1

    def follow(done: int, total: int, match: Tensor | None) -> None:
        nonlocal whole
        progress(done, total, match)
        whole = total
        marks.append((time.perf_counter(), done))
        spent, enough = marks[-1][0] - marks[0][0], 4 if done < total else math.inf
        if (len(marks) >= enough and spent > PROBE) or (len(marks) > 1 and spent > PROBE_AT_MOST):
            raise _EnoughError

    try:
        return perform(job, follow)
    except _EnoughError:
        (first, start), (last, end) = marks[0], marks[-1]
        each = (last - first) / max(1, end - start)
        return Cost(first - began + each * whole, peak_memory())


def parse_budget(text: str) -> float:
    """Seconds of a duration such as ``90s``, ``20m`` or ``1.5h``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if match is None or float(match[1]) == 0:
        raise LeakscopeError(f"--budget {text!r}: write it as 90s, 20m or 2h")
    return float(match[1]) * _UNITS[match[2]]


def fit(
    jobs: Sequence[J],
    budget: float,
    seconds: Callable[[J], float],
    repeat: Callable[[J], int],
) -> list[J]:
    """The jobs that fit ``budget``: fewer repeats of all rather than some not at all.

    Whole repeats if at least one fits; else single jobs, the cheapest first.

    Args:
        jobs: all of them.
        budget: seconds of all processes together.
        seconds: that a job takes.
        repeat: which repeat it belongs to.
    """
    chosen: list[J] = []
    spent = 0.0
    for number in sorted({repeat(job) for job in jobs}):
        whole = [job for job in jobs if repeat(job) == number]
        spent += sum(map(seconds, whole))
        if spent > budget:
            break
        chosen += whole
    if chosen:
        return chosen
    spent = 0.0
    for job in sorted(jobs, key=lambda job: (repeat(job), seconds(job))):
        spent += seconds(job)
        if spent > budget:
            break
        chosen.append(job)
    return chosen


def ordered(
    trials: Sequence[Trial], costs: Mapping[str, Cost], budget: float | None
) -> list[Trial]:
    """The trials to be done, the longest first, so that none is left alone at the end.

    Args:
        trials: what is left to do.
        costs: by what trials that cost the same have in common; what is not known comes first.
        budget: seconds of all processes together; an early end then leaves whole repetitions.
    """

    def seconds(trial: Trial) -> float:
        cost = costs.get(trial.alike)
        return math.inf if cost is None else cost.seconds

    if budget is None:
        return sorted(trials, key=seconds, reverse=True)
    known = fit(trials, budget, lambda trial: min(seconds(trial), 1e9), lambda trial: trial.client)
    return sorted(known, key=lambda trial: (trial.client, -seconds(trial)))
