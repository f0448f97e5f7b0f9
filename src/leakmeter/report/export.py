"""The numbers of an audit as tables: on a terminal, or as files for other programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from leakmeter.audits.folder import COLUMNS, Status
from leakmeter.errors import LeakmeterError
from leakmeter.execution.progress import duration
from leakmeter.execution.store import write_whole
from leakmeter.judge.results import FILE, TABLE, Results
from leakmeter.measure import Finding, Scores

SHOWN = ("setting", "defense", "attack", "client", "recognized", "images", "psnr", "baseline_psnr")
"""Columns that fit a terminal."""

Rows = Iterable[dict[str, Any]]


def show(rows: Rows) -> None:
    """Print the columns that people want to see."""
    grid = Table(*(name.replace("_", " ") for name in SHOWN))
    for row in rows:
        cells = [row[name] for name in SHOWN]
        grid.add_row(*map(_shown, cells))
    Console(highlight=False, markup=False).print(grid)


def _shown(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:.1f}" if isinstance(cell, float) else str(cell)


def as_csv(rows: Rows) -> str:
    """Return a CSV file with one line per trial below the column names."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def as_json(rows: Rows) -> str:
    """Return a JSON list of objects."""
    return json.dumps(list(rows), indent=1) + "\n"


def write_parquet(rows: Rows, path: Path) -> None:
    """Write a Parquet file with typed columns."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise LeakmeterError(
            "--format parquet needs the package pyarrow: pip install 'pyarrow>=15'"
        ) from None
    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    try:
        parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema), path)
    except OSError as error:
        raise LeakmeterError(f"cannot write {path}: {error.strerror or error}") from None


def write(rows: Rows, kind: str, path: Path) -> None:
    """Write a file of the given format."""
    if kind == "parquet":
        write_parquet(rows, path)
    else:
        write_whole(path, as_json(rows) if kind == "json" else as_csv(rows))


def told(status: Status) -> list[str]:
    """Describe the progress of an audit in a few lines."""
    words = [f"{status.done} of {status.planned} trials done", f"{len(status.running)} running"]
    words += [f"{len(status.failed)} failed"] if status.failed else []
    if status.left:
        words.append(f"{status.left} to do")
    if status.seconds_left is not None:
        words.append(f"about {duration(status.seconds_left)} left")
    lines = [", ".join(words)]
    lines += [f"running: {name}" for name in status.running]
    return lines + [f"failed: {name}: {error}" for name, error in status.failed.items()]


_SCORES = ("psnr", "ssim", "mse", "lpips", "reidentified", "recognized")

PER_IMAGE = (
    *("configuration", "setting", "defense", "attack", "client", "image"),
    *_SCORES,
    *(f"baseline_{name}" for name in _SCORES),
)
"""Columns of ``results.csv``, which has one row per image."""


def write_results(results: Results, out: str | Path) -> None:
    """Write ``results.json`` and ``results.csv`` to a folder or URL, each whole or not at all."""
    write_whole(f"{out}/{FILE}", results.model_dump_json(indent=1) + "\n")
    write_whole(f"{out}/{TABLE}", table(results))


def table(results: Results) -> str:
    """The CSV file with one row per image."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(PER_IMAGE)
    for configuration in results.configurations:
        for attack in configuration.attacks:
            first = (configuration.label, configuration.setting, configuration.defense)
            for client in attack.clients:
                for image, values in enumerate(_per_image(client.finding)):
                    writer.writerow([*first, attack.attack, client.client, image, *values])
    return file.getvalue()


def _per_image(finding: Finding | None) -> Iterator[list[Any]]:
    """Yield what the CSV file says about each image, in the order of its columns."""
    if finding is None:
        return
    sides = [_columns(finding.scores), _columns(finding.baseline)]
    for values in zip(*sides[0], *sides[1], strict=True):
        yield [str(v).lower() if isinstance(v, bool) else v for v in values]


def _columns(scores: Scores) -> list[Sequence[Any]]:
    blank = [""] * len(scores.psnr)
    found = [getattr(scores, name) for name in _SCORES]
    return [blank if column is None else column for column in found]
