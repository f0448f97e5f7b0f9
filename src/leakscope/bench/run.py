"""Runs a table: what is finished is not done again, what fails stops nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from leakscope.audit.crew import Crew, Here, Lost, Pool, cores
from leakscope.audit.schedule import fit
from leakscope.audit.store import Store as Folder
from leakscope.bench import sources
from leakscope.bench.estimate import SECONDS_AT_MOST, Estimate, alike, probe
from leakscope.bench.results import Result, collect
from leakscope.bench.screen import Screen
from leakscope.bench.store import Store
from leakscope.bench.table import Row, Table
from leakscope.bench.trial import OWN_PROCESS, Job, Outcome, obstacle, perform
from leakscope.bench.victim import MOST_REPEATS
from leakscope.errors import LeakscopeError

REPEATS = 3


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        table: which.
        rows: patterns of the rows' names; all rows if empty.
        repeats: of every row; by default 3, or as many as fit a budget.
        iterations: instead of the papers'.
        budget: seconds that all of it may take.
        processes: trials at a time; by default one per core.
        data: folder of the data files.
        out: folder for the outcomes; the table gets one of its own there.
    """

    table: Table
    data: Path
    out: Path
    rows: Sequence[str] = ()
    repeats: int | None = None
    iterations: int | None = None
    budget: float | None = None
    processes: int | None = None

    @cached_property
    def folder(self) -> Path:
        """Where everything of this table is left."""
        return self.out / self.table.id

    def options(self) -> dict[str, Any]:
        """For the record, without anything that names this machine's folders."""
        return {
            "rows": list(self.rows),
            "repeats": self.repeats,
            "iterations": self.iterations,
            "budget_seconds": self.budget,
            "processes": self.processes,
        }


def run(request: Request, screen: Screen) -> list[Result]:
    """Do what is asked for and return the results of all rows there are outcomes for."""
    chosen = request.table.select(request.rows, request.iterations)
    obstacles = {row.name: reason for row in chosen if (reason := obstacle(row))}
    able = [row for row in chosen if row.name not in obstacles]
    screen.cannot_run(obstacles)
    if not able:
        raise LeakscopeError(f"{request.table.id}: none of the rows asked for can run yet")
    for row in able:
        if row.victim is not None:
            sources.locate(request.data, row.victim.data)
    Folder(request.folder).prepare()
    store = Store(request.folder, request.data)
    jobs = _pending(store, able, request)
    if jobs:
        _do(store, jobs, request, screen)
    return _results(store, request, chosen, obstacles)


def _pending(store: Store, rows: list[Row], request: Request) -> list[Job]:
    """The trials still to be done, repeat by repeat, so that an early end leaves coverage."""
    default = REPEATS if request.budget is None else MOST_REPEATS
    repeats = default if request.repeats is None else request.repeats
    finished = {row.name: store.finished(row) for row in rows}
    return [
        store.job(row, repeat)
        for repeat in range(repeats)
        for row in rows
        if repeat not in finished[row.name]
    ]


def _do(store: Store, jobs: list[Job], request: Request, screen: Screen) -> None:
    """Estimate, choose what fits, and do it."""
    began = monotonic()
    with _crew(request, jobs) as crew:
        estimates = _estimate(store, jobs, crew, screen)
        seconds = {
            name: 0.0 if found is None else found.seconds(row)
            for name, (row, found) in estimates.items()
        }
        plan = jobs
        if request.budget is not None:
            left = request.budget - (monotonic() - began)
            plan = fit(
                jobs,
                left * crew.processes,
                lambda job: seconds[job.row.name],
                lambda job: job.repeat,
            )
        screen.plan(estimates, jobs, plan, crew.processes)

        def in_time() -> Iterator[Job]:
            for job in plan:
                if request.budget is not None and monotonic() - began > request.budget:
                    screen.out_of_time()
                    return
                yield job

        alone = any(job.row.kind in OWN_PROCESS for job in jobs)
        with screen.bar(plan, seconds) as (follow, finish):
            for job, result in crew.do(perform, in_time(), follow, alone=alone):
                outcome = Outcome({}, result.reason) if isinstance(result, Lost) else result
                store.save(job, outcome)
                finish(job, outcome)


def _estimate(
    store: Store, jobs: list[Job], crew: Crew, screen: Screen
) -> dict[str, tuple[Row, Estimate | None]]:
    """By the row's name; rows that take equally long are tried out once."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(alike(job.row), []).append(job)
    known = {key: _known(store, group) for key, group in groups.items()}
    probes = [group[0] for key, group in groups.items() if known[key] is None]
    even = dict.fromkeys((job.row.name for job in probes), 1.0)
    with screen.bar(probes, even) as (follow, finish):
        for job, result in crew.do(probe, probes, follow, limit=SECONDS_AT_MOST):
            if isinstance(result, Lost):
                result = Estimate(0.0, SECONDS_AT_MOST, at_least=True)
            known[alike(job.row)] = result
            finish(job, Outcome({}))
    return {job.row.name: (job.row, known[alike(job.row)]) for job in jobs}


def _known(store: Store, group: list[Job]) -> Estimate | None:
    """From a finished trial of a row that takes equally long."""
    for row in {job.row.name: job.row for job in group}.values():
        for outcome in store.finished(row).values():
            metrics = outcome.metrics
            if row.kind == "attack":
                return Estimate(0.0, metrics["seconds"] / metrics["iterations"])
    return None


def _results(
    store: Store, request: Request, chosen: list[Row], obstacles: dict[str, str]
) -> list[Result]:
    """Of the rows asked for, and of those that an earlier command has outcomes of."""
    names = {row.name for row in chosen}
    outcomes = {}
    for row in request.table.select((), request.iterations):
        if row.name in obstacles or obstacle(row):
            trials: dict[int, Outcome] = {}
        elif row.victim and not (request.data / sources.SOURCES[row.victim.data].file).is_file():
            continue
        else:
            trials = store.outcomes(row)
        if trials or row.name in names:
            outcomes[row.name] = (row, trials)
    return collect(outcomes, obstacles)


@contextmanager
def _crew(request: Request, jobs: list[Job]) -> Iterator[Crew]:
    """One process per core, unless asked otherwise; one in all where costs are measured."""
    measured = any(job.row.kind in OWN_PROCESS for job in jobs)
    processes = request.processes or (1 if measured else min(cores(), len(jobs)))
    if processes == 1 and not measured:
        yield Here()
        return
    with Pool(processes, threads=1 if processes > 1 else torch.get_num_threads()) as pool:
        yield pool
