"""What a person sees: estimate and progress on stderr, results on stdout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Grid
from rich.text import Text

from leakscope.audit.crew import Follow
from leakscope.audit.progress import duration
from leakscope.bench.estimate import Estimate
from leakscope.bench.results import COLUMNS, METRICS, Result, lines, metrics_of, remarks
from leakscope.bench.table import Row, Table
from leakscope.bench.trial import Job, Outcome


class Screen:
    """Writes for a person; bars only where there is a terminal."""

    def __init__(self) -> None:
        self._err = _console(stderr=True)
        self._out = _console(stderr=False)

    def cannot_run(self, obstacles: Mapping[str, str]) -> None:
        """Name the rows that are passed over, by reason."""
        for reason in dict.fromkeys(obstacles.values()):
            names = [name for name, why in obstacles.items() if why == reason]
            self._err.print(
                f"cannot run {len(names)} rows, {reason}: {', '.join(names)}", style="yellow"
            )

    def plan(
        self,
        estimates: Mapping[str, tuple[Row, Estimate | None]],
        jobs: Sequence[Job],
        plan: Sequence[Job],
        processes: int,
    ) -> None:
        """How long trials take, and which of them will be done."""
        grid = Grid(
            "row", "iterations", "s / iteration", "time / trial", "repeats", title="estimate"
        )
        total = 0.0
        for name, (row, found) in estimates.items():
            repeats = sum(job.row.name == name for job in plan)
            if found is None:
                grid.add_row(name, str(row.iterations), "?", "?", str(repeats))
                continue
            total += repeats * found.seconds(row)
            sign = "> " if found.at_least else ""
            time = f"{sign}{duration(found.seconds(row))}"
            each = f"{sign}{found.iteration:.3f}"
            grid.add_row(name, str(row.iterations), each, time, str(repeats))
        self._err.print(grid)
        time = duration(total / processes)
        self._err.print(f"{len(plan)} trials, {processes} at a time: about {time}")
        left = dict.fromkeys(job.row.name for job in jobs)
        missing = [name for name in left if all(job.row.name != name for job in plan)]
        if missing:
            self._err.print(
                f"do not fit the budget even once: {', '.join(missing)}", style="yellow"
            )

    def out_of_time(self) -> None:
        """The budget is used up before the plan is."""
        self._err.print("the budget is used up: no further trial is started", style="yellow")

    @contextmanager
    def bar(
        self, jobs: Sequence[Job], seconds: Mapping[str, float]
    ) -> Iterator[tuple[Follow[Job], Callable[[Job, Outcome], None]]]:
        """A bar over all jobs: a function that follows one and a function that ends one.

        Args:
            jobs: to be done.
            seconds: that each is expected to take, by the row's name.
        """
        bars = Progress(
            TextColumn("{task.fields[done]}/{task.fields[jobs]} trials"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:.0f} %"),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[row]}"),
            console=self._err,
            disable=not self._err.is_terminal,
            transient=True,
        )
        shares: dict[tuple[str, int], float] = {}
        weight = {name: max(time, 1e-3) for name, time in seconds.items()}
        ended = 0
        total = sum(weight[job.row.name] for job in jobs)
        task = bars.add_task("", total=total, done=0, jobs=len(jobs), row="")

        def follow(job: Job, share: float, match: float | None = None) -> None:
            shares[job.row.name, job.repeat] = share
            completed = sum(weight[name] * part for (name, _), part in shares.items())
            bars.update(task, completed=completed, done=ended, row=job.row.name)

        def finish(job: Job, outcome: Outcome) -> None:
            nonlocal ended
            ended += 1
            follow(job, 1.0)
            if outcome.error:
                self._err.print(
                    f"{job.row.name}, repeat {job.repeat}: {outcome.error}", style="red"
                )

        with bars:
            yield follow, finish

    def results(self, table: Table, results: Sequence[Result]) -> None:
        """One grid per metric that the paper prints, then what must be known besides."""
        for metric in metrics_of(table):
            grid = Grid(*COLUMNS, title=Text(f"{table.id}: {METRICS[metric][0]}"))
            for column in grid.columns[2:]:
                column.justify = "right"
                column.no_wrap = True
            for cells in lines(results, metric):
                grid.add_row(*cells)
            self._out.print(grid)
        for remark in remarks(table, results):
            self._out.print(remark, soft_wrap=True)


def _console(stderr: bool) -> Console:
    """As wide as the terminal; a file takes lines of any length."""
    console = Console(stderr=stderr, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 140
    return console
