"""Shows progress while work runs: bars on a terminal, nothing elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Self, SupportsFloat

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from leakmeter.execution.kept import Progress as OnProgress
from leakmeter.execution.trial import Job, Outcome

SECONDS_BETWEEN_LINES = 0.1

Watch = Callable[[str], AbstractContextManager[OnProgress]]
"""Announces a piece of work by its name and returns the callback for its progress."""


@contextmanager
def watching(quiet: bool = False) -> Iterator[Watch]:
    """Provide a :data:`Watch` for one thing at a time; it shows nothing if ``quiet``."""
    bars = _bars(TextColumn("{task.completed:.0f}/{task.total:.0f}"), quiet=quiet)

    @contextmanager
    def watch(work: str) -> Iterator[OnProgress]:
        task = bars.add_task(work, total=1, figure="")
        shown = 0.0

        def follow(done: int, total: int, figure: SupportsFloat | None = None) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown >= SECONDS_BETWEEN_LINES or done == total:
                shown = now
                bars.update(task, completed=done, total=total, figure=_shown(figure))

        yield follow

    with bars:
        yield watch


class Screen:
    """Shows the progress of many trials: how many are done, what is running, the time left.

    Args:
        told: describes the lowest and the highest figure of the finished trials.
    """

    def __init__(self, told: Callable[[float, float], str] | None = None) -> None:
        self._told = told
        self._bars = _bars(TextColumn("{task.percentage:3.0f} %"), transient=True)
        self._running: dict[str, TaskID] = {}
        self._done = self._failed = self._before = self._count = 0
        self._left: float | None = None
        self._figures: list[float] = []
        self._began = time.monotonic()
        self._whole: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def expect(self, count: int, finished: int) -> None:
        """Set the number of trials, and how many of them are finished."""
        self._count, self._before, self._began = count, finished, time.monotonic()
        self._whole = self._bars.add_task("", total=count, completed=finished, figure="")
        self._show()

    def estimate(self, seconds: float | None) -> None:
        """Set the estimated time left."""
        self._left = None if seconds is None else time.monotonic() + seconds

    def follow(self, job: Job, share: float, figure: float | None) -> None:
        """Show the progress of a running trial."""
        name = job.trial.id
        if name not in self._running:
            self._running[name] = self._bars.add_task(f"  {job.trial.words}", total=1, figure="")
            self._show()
        self._bars.update(self._running[name], completed=share, figure=_shown(figure))

    def pause(self, job: Job) -> None:
        """Remove a trial that is no longer running."""
        task = self._running.pop(job.trial.id, None)
        if task is not None:
            self._bars.remove_task(task)

    def finish(self, job: Job, outcome: Outcome) -> None:
        """Count a trial as over."""
        self.pause(job)
        self._done += outcome.state in ("done", "found")
        self._failed += outcome.state == "failed"
        if outcome.figures:
            known = [*self._figures, *outcome.figures]
            self._figures = [min(known), max(known)]
        self._show()

    def say(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._bars.console.print(text, style="yellow", highlight=False, markup=False)

    def _show(self) -> None:
        if self._whole is None:
            return
        minutes = (time.monotonic() - self._began) / 60
        over = self._before + self._done + self._failed
        words = [f"{self._before + self._done}/{self._count} done", f"{len(self._running)} running"]
        words += [f"{self._failed} failed"] if self._failed else []
        words += [f"{self._done / minutes:.1f} a minute"] if self._done else []
        if self._left is not None:
            words.append(f"{duration(max(0.0, self._left - time.monotonic()))} left")
        if self._figures and self._told is not None:
            words.append(self._told(*self._figures))
        self._bars.update(self._whole, completed=over, description=", ".join(words))


def _shown(figure: SupportsFloat | None) -> str:
    return "" if figure is None else f"match {float(figure):.4f}"


def duration(seconds: float) -> str:
    """Format a duration such as ``40 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _bars(share: TextColumn, transient: bool = False, quiet: bool = False) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),  # names of the user's own
        BarColumn(bar_width=14),
        share,
        TextColumn("{task.fields[figure]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        disable=quiet or not (console.is_terminal or console.is_jupyter),
        transient=transient,
    )
