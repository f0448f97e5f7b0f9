"""The progress bar: what is being done, how far it is, how well it matches, how long it takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from leakscope.attack.solver import Progress as OnProgress
from leakscope.audit.stage import Watch

SECONDS_BETWEEN_LINES = 0.1


@contextmanager
def watching() -> Iterator[Watch]:
    """A :data:`~leakscope.audit.stage.Watch`: bars on a terminal, nothing elsewhere."""
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=14),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[match]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
        disable=not Console(stderr=True).is_terminal,
    )

    @contextmanager
    def watch(work: str) -> Iterator[OnProgress | None]:
        task = bars.add_task(work, total=1, match="")
        shown = 0.0

        def follow(done: int, total: int, match: Tensor | None) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown >= SECONDS_BETWEEN_LINES or done == total:
                shown = now
                text = "" if match is None else f"match {match.item():.4f}"
                bars.update(task, completed=done, total=total, match=text)

        yield follow

    with bars:
        yield watch
