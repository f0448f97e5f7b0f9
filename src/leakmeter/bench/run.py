"""Runs a table: finished trials are not repeated, and a failure does not stop the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from leakmeter.bench import sources
from leakmeter.bench.results import RowResult, Tried, collect
from leakmeter.bench.table import Row, Table
from leakmeter.bench.trial import Metrics, obstacle, slug, trial
from leakmeter.bench.victim import MOST_REPEATS
from leakmeter.errors import LeakmeterError
from leakmeter.execution import Trial
from leakmeter.execution.executors import cores
from leakmeter.execution.progress import Screen
from leakmeter.execution.store import Store
from leakmeter.execution.sweep import Resources, sweep
from leakmeter.execution.trial import Record

REPEATS = 3


@dataclass(frozen=True)
class TableRun:
    """What the command line asks for.

    Attributes:
        table: the table to run.
        rows: patterns for the rows' names; all rows if empty.
        repeats: number of repeats of each row; by default 3, or as many as fit the budget.
        iterations: number of iterations, replacing the papers' numbers.
        budget: total time allowed, in seconds.
        processes: number of trials to run at a time; by default one per core.
        data: folder with the data files.
        out: folder for the outcomes; the table gets its own subfolder there.
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
        """The folder for all of this table's output."""
        return self.out / self.table.id

    def options(self) -> dict[str, Any]:
        """The options to record, leaving out anything that names this machine's folders."""
        return {
            "rows": list(self.rows),
            "repeats": self.repeats,
            "iterations": self.iterations,
            "budget_seconds": self.budget,
            "processes": self.processes,
        }


def run(asked: TableRun) -> list[RowResult]:
    """Run the requested trials and return the results of all rows that have outcomes."""
    chosen = asked.table.select(asked.rows, asked.iterations)
    obstacles = {row.name: reason for row in chosen if (reason := obstacle(row))}
    able = [row for row in chosen if row.name not in obstacles]
    with Screen(lambda low, high: f"{low:.1f} to {high:.1f} dB") as screen:
        for reason in dict.fromkeys(obstacles.values()):
            names = [name for name, why in obstacles.items() if why == reason]
            screen.say(f"cannot run {len(names)} rows, {reason}: {', '.join(names)}")
        if not able:
            raise LeakmeterError(f"{asked.table.id}: none of the rows asked for can run yet")
        for row in able:
            if row.victim is not None:
                sources.locate(asked.data, row.victim.data)
        store = Store(asked.folder)
        store.prepare()
        trials = _planned(store, able, asked)
        if trials:
            sweep(store, trials, _resources(asked, trials), screen)
    return _results(store, asked, chosen, obstacles)


def _planned(store: Store, rows: Sequence[Row], asked: TableRun) -> list[Trial]:
    """The requested trials, repeat by repeat, so that an early stop still covers every row."""
    default = REPEATS if asked.budget is None else MOST_REPEATS
    repeats = default if asked.repeats is None else asked.repeats
    before = {row.name: _of_old(store, row) for row in rows}
    return [
        trial(row, repeat, asked.data)
        for repeat in range(repeats)
        for row in rows
        if repeat not in before[row.name]
    ]


def _resources(asked: TableRun, trials: Sequence[Trial]) -> Resources:
    """One process per core unless asked otherwise; a single process if costs are measured."""
    measured = any(each.own_process for each in trials)
    processes = asked.processes or (1 if measured else min(cores(), len(trials)))
    threads = 1 if processes > 1 else cores()
    return Resources(processes=processes, threads=threads, budget=asked.budget)


def _results(
    store: Store, asked: TableRun, chosen: Sequence[Row], obstacles: dict[str, str]
) -> list[RowResult]:
    """Results of the requested rows, and of rows with outcomes from an earlier command."""
    names = {row.name for row in chosen}
    there, failures = store.finished(), store.failures()
    outcomes = {}
    for row in asked.table.select((), asked.iterations):
        if row.name in obstacles or obstacle(row):
            tried: dict[int, Tried] = {}
        elif row.victim and not (asked.data / sources.SOURCES[row.victim.data].file).is_file():
            continue
        else:
            tried = _of_old(store, row)
            for name in [*failures, *there]:
                if (repeat := _repeat(row, name)) is None:
                    continue
                if trial(row, repeat, asked.data).id != name:
                    continue  # a trial with other settings
                if name in failures:
                    tried[repeat] = Tried({}, failures[name]["error"])
                elif store.sound(name):
                    record = Record.load(store, name)
                    tried[repeat] = Tried(Metrics.model_validate(record.result).metrics)
        if tried or row.name in names:
            outcomes[row.name] = (row, dict(sorted(tried.items())))
    return collect(outcomes, obstacles)


def _repeat(row: Row, name: str) -> int | None:
    """The repeat of ``row`` that a trial could be, judging by its id."""
    own, repeat, _ = name.rsplit("-", 2)
    return int(repeat) if own == slug(row) and repeat.isdecimal() else None


def _of_old(store: Store, row: Row) -> dict[int, Tried]:
    """A row's outcomes from version 0.1.0: one file per repeat, without a folder of its own."""
    found = {}
    if store.folder is not None:
        for path in sorted(store.folder.glob(f"{slug(row)}.r*.json")):
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["iterations"] == row.iterations and not record["error"]:
                found[record["repeat"]] = Tried(record["metrics"])
    return found
