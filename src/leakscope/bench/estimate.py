"""How long trials will take, tried out on their first iterations."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import pairwise

from torch import Tensor

from leakscope.attack.attack import Attack
from leakscope.attack.solver import Progress
from leakscope.bench.table import Row
from leakscope.bench.trial import KINDS, Job, build

ITERATIONS = 8
"""Enough for an attack that costs more towards its end, as Retrace does."""

SECONDS_ENOUGH = 10.0
"""A probe that has taken so long is not continued after its second iteration."""

SECONDS_AT_MOST = 300.0
"""A probe whose iteration (or round of training) takes longer is given up."""


@dataclass(frozen=True)
class Estimate:
    """What a trial takes.

    Attributes:
        setup: seconds for everything but the attack's iterations.
        iteration: seconds for each of the recipe's iterations, all restarts together.
        at_least: the probe was given up: it takes longer than this.
    """

    setup: float
    iteration: float
    at_least: bool = False

    def seconds(self, row: Row) -> float:
        """For one trial of ``row``."""
        return self.setup + self.iteration * row.iterations


class _EnoughError(Exception):
    """Ends a probe early."""


def alike(row: Row) -> str:
    """The same text for rows whose trials take equally long per iteration."""
    if row.victim is None:
        return f"{row.kind} {row.recipe} {row.settings}"
    attack = build(row)
    replays = isinstance(attack, Attack) and attack.trajectory.replays
    steps = (row.victim.steps, row.victim.settings) if replays else 1
    shape = (row.victim.data, row.victim.model, row.victim.examples, row.victim.shares, steps)
    return f"{row.kind} {row.recipe} {row.labels_known} {dict(row.settings)} {shape}"


def probe(job: Job, on_progress: Progress) -> Estimate | None:
    """Time the first iterations of a trial; ``None`` if it fails (the trial will say why)."""
    marks: list[tuple[float, int]] = []
    total, began = ITERATIONS, time.perf_counter()

    def follow(done: int, of: int, match: Tensor | None) -> None:
        nonlocal began, total
        on_progress(done, of, match)
        if done == 0:  # training comes first and is done once
            began = time.perf_counter()
            return
        marks.append((time.perf_counter(), done))
        total = of
        if len(marks) > 2 and marks[-1][0] - began > SECONDS_ENOUGH:
            raise _EnoughError

    row = replace(job.row, override=ITERATIONS)
    try:
        KINDS[row.kind](row, job.data, job.repeat, follow, job.checkpoint.with_suffix(".probe"))
    except _EnoughError:
        pass
    except Exception:
        return None
    finally:
        for left in job.checkpoint.parent.glob(f"{job.checkpoint.stem}.probe*"):
            left.unlink(missing_ok=True)  # one per restart
    # The first iteration allocates; with restarts there are more than asked for, and auto counts
    # in thousandths of its work.
    pauses = [(b - a, after - before) for (a, before), (b, after) in pairwise(marks)]
    pauses = [(seconds, done) for seconds, done in pauses if done > 0]
    if not pauses:
        return None
    took = time.perf_counter() - began
    spent, done = (sum(column) for column in zip(*pauses, strict=True))
    return Estimate(max(0.0, took - spent), spent / done * total / ITERATIONS)
