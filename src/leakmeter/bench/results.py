"""Our results next to the paper's: in the terminal, as Markdown, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from leakmeter.bench.table import Row, Table
from leakmeter.execution.store import write_whole
from leakmeter.execution.trial import now, versions
from leakmeter.measure import Interval, interval

METRICS = {
    # name: title, decimals
    "psnr": ("PSNR [dB]", 2),
    "l_sim": ("L_sim", 4),
    "ssim": ("SSIM", 3),
    "seconds": ("seconds per attack", 1),
    "memory": ("memory [GB]", 2),
    "time_ratio": ("seconds, times those of IG", 1),
    "memory_ratio": ("memory, times that of IG", 1),
    "matching_rate": ("share of images matched", 3),
    "words": ("share of words recovered", 3),
}
"""Every metric the papers print, in display order."""

_RATIOS = {"time_ratio": "seconds", "memory_ratio": "memory"}

COLUMNS = ("row", "attack", "ours", "95 %", "paper", "difference", "repeats", "iterations", "s")


@dataclass(frozen=True)
class Tried:
    """The outcome of one repeat.

    Attributes:
        metrics: values by metric name; ``seconds`` and ``iterations`` are the attack's own.
        error: why there are no metrics.
    """

    metrics: Mapping[str, float]
    error: str = ""


@dataclass(frozen=True)
class RowResult:
    """All repeats of a row.

    Attributes:
        row: the row, with the requested number of iterations.
        values: for each metric, one value per finished repeat.
        errors: errors of the repeats that failed, or why the row cannot run.
    """

    row: Row
    values: Mapping[str, list[float]]
    errors: list[str]

    @property
    def repeats(self) -> int:
        """The number of finished repeats."""
        return max(map(len, self.values.values()), default=0)

    def mean(self, metric: str) -> float | None:
        """The mean over repeats, or ``None`` if there are none."""
        values = self.values.get(metric)
        return sum(values) / len(values) if values else None


def collect(
    outcomes: Mapping[str, tuple[Row, Mapping[int, Tried]]], obstacles: Mapping[str, str]
) -> list[RowResult]:
    """One result per row.

    Args:
        outcomes: for each row's name, the row and its outcomes by repeat.
        obstacles: why rows cannot run, by row name.
    """
    results = []
    for name, (row, trials) in outcomes.items():
        unit = outcomes.get(f"{row.setting} {row.relative_to}")
        values: dict[str, list[float]] = {}
        for repeat, outcome in trials.items():
            metrics = dict(outcome.metrics)
            if metrics and unit is not None and repeat in unit[1]:
                metrics |= _ratios(metrics, unit[1][repeat].metrics)
            for metric, value in metrics.items():
                values.setdefault(metric, []).append(value)
        errors = [obstacles[name]] if name in obstacles else []
        errors += [outcome.error for outcome in trials.values() if outcome.error]
        results.append(RowResult(row, values, errors))
    return results


def _ratios(metrics: Mapping[str, float], unit: Mapping[str, float]) -> dict[str, float]:
    return {
        ratio: metrics[cost] / unit[cost]
        for ratio, cost in _RATIOS.items()
        if cost in metrics and unit.get(cost)
    }


def lines(results: Sequence[RowResult], metric: str) -> list[tuple[str, ...]]:
    """The cells of :data:`COLUMNS` for every row that has ``metric``, here or in the paper."""
    _, decimals = METRICS[metric]
    shown: list[tuple[str, ...]] = []
    for result in results:
        paper = result.row.paper.get(metric)
        values = result.values.get(metric, [])
        if paper is None and (not values or metric in _RATIOS):
            continue
        spread = _interval(values)
        bounded = spread is not None and not math.isnan(spread.low)
        shown.append(
            (
                result.row.setting,
                result.row.attack,
                "-" if spread is None else f"{spread.mean:.{decimals}f}",
                f"{spread.low:.{decimals}f} .. {spread.high:.{decimals}f}"
                if spread is not None and bounded
                else "-",
                "-" if paper is None else f"{paper:.{decimals}f}",
                "-" if spread is None or paper is None else f"{spread.mean - paper:+.{decimals}f}",
                str(result.repeats),
                f"{result.mean('iterations') or result.row.iterations:.0f}",
                "-" if (seconds := result.mean("seconds")) is None else f"{seconds:.0f}",
            )
        )
    return shown


def metrics_of(table: Table) -> list[str]:
    """The metrics the paper prints in ``table``, or PSNR if there is no paper."""
    printed = [metric for metric in METRICS if any(metric in row.paper for row in table.rows)]
    return printed or ["psnr"]


def remarks(table: Table, results: Sequence[RowResult]) -> list[str]:
    """What a reader needs to know besides the numbers."""
    said = [table.note] if table.note else []
    fewer = sorted({result.row.override for result in results if result.row.override})
    said += [f"Run with --iterations {number} instead of the paper's." for number in fewer]
    said += [f"{result.row.name}: {result.row.note}." for result in results if result.row.note]
    for result in results:
        said += [f"{result.row.name}: {error}" for error in dict.fromkeys(result.errors)]
    return said


def markdown(table: Table, results: Sequence[RowResult]) -> str:
    """The tables as Markdown, one per metric."""
    text = [f"# {table.id}: {table.title}", "", table.reference, ""]
    for metric in metrics_of(table):
        rows = [COLUMNS, ("---",) * len(COLUMNS), *lines(results, metric)]
        text += [f"## {METRICS[metric][0]}", ""]
        text += [f"| {' | '.join(cells)} |" for cells in rows]
        text.append("")
    text += [f"- {remark}" for remark in remarks(table, results)]
    machine = _machine()
    text += ["", f"leakmeter {machine['leakmeter']}, torch {machine['torch']}, "]
    text[-1] += f"{machine['cores']} cores, {machine['date'][:10]}"
    return "\n".join(text) + "\n"


def write(table: Table, results: Sequence[RowResult], folder: Path, run: Mapping[str, Any]) -> None:
    """Write ``results.json`` and ``results.md`` to ``folder``.

    The JSON holds ``table``, ``title``, ``reference``, ``note``, ``run`` (the requested options),
    ``machine``, and ``rows``. Each row has ``row``, ``attack``, ``recipe``, ``victim``,
    ``labels_known``, ``kind``, ``note``, ``iterations``, ``repeats``, ``errors``, and ``metrics``
    with ``mean``, ``low`` and ``high`` (95 % interval, null for one repeat), ``values`` (one per
    repeat), ``paper``, and ``difference``.

    Args:
        table: the table that was run.
        results: the results of its rows.
        folder: where to write; must exist.
        run: the options of the command.
    """
    content = {
        "table": table.id,
        "title": table.title,
        "reference": table.reference,
        "note": table.note,
        "run": dict(run),
        "machine": _machine(),
        "rows": [_record(result) for result in results],
    }
    write_whole(folder / "results.json", json.dumps(content, indent=2, allow_nan=False) + "\n")
    write_whole(folder / "results.md", markdown(table, results))


def _record(result: RowResult) -> dict[str, Any]:
    row = result.row
    return {
        "row": row.setting,
        "attack": row.attack,
        "recipe": dataclasses.asdict(row.recipe),
        "victim": None if row.victim is None else dataclasses.asdict(row.victim),
        "labels_known": row.labels_known,
        "kind": row.kind,
        "note": row.note,
        "iterations": row.iterations,
        "repeats": result.repeats,
        "errors": result.errors,
        "metrics": {
            metric: _metric(result.values.get(metric, []), row.paper.get(metric))
            for metric in dict.fromkeys((*row.paper, *result.values))
        },
    }


def _metric(values: list[float], paper: float | None) -> dict[str, Any]:
    spread = _interval(values)
    mean, low, high = (None, None, None) if spread is None else map(_finite, spread)
    difference = None if mean is None or paper is None else mean - paper
    return {
        "mean": mean,
        "low": low,
        "high": high,
        "values": [_finite(value) for value in values],
        "paper": paper,
        "difference": difference,
    }


def _interval(values: list[float]) -> Interval | None:
    return interval(torch.tensor(values, dtype=torch.float64)) if values else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def show(table: Table, results: Sequence[RowResult]) -> None:
    """Print one grid for each metric in the paper, followed by the remarks."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 140  # a file can hold lines of any length
    for metric in metrics_of(table):
        grid = Grid(*COLUMNS, title=Text(f"{table.id}: {METRICS[metric][0]}"))
        for column in grid.columns[2:]:
            column.justify = "right"
            column.no_wrap = True
        for cells in lines(results, metric):
            grid.add_row(*cells)
        console.print(grid)
    for remark in remarks(table, results):
        console.print(remark, soft_wrap=True)


def _machine() -> dict[str, Any]:
    return {**versions(), "cores": os.cpu_count(), "date": now()}
