"""Arguments and options that several commands take."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

OUT = Annotated[Path, typer.Option(help="Folder for all results.")]
PLACE = Annotated[str, typer.Option("--out", help="Folder or fsspec URL for all results.")]
OPTIONS = Annotated[
    list[str] | None, typer.Option(help="An option of the attack, such as tv=0.001; repeatable.")
]
FINISHED = Annotated[str, typer.Argument(help="Folder or URL of an audit.")]
PROCESSES = Annotated[
    int | None, typer.Option(help="How many trials run at a time; by default one per core.", min=1)
]
THREADS = Annotated[
    int | None, typer.Option(help="Threads per trial; by default the cores are shared out.", min=1)
]
RAY = Annotated[
    str | None, typer.Option(help="Run trials on the Ray cluster at this address, or 'local'.")
]
BUDGET = Annotated[
    str | None, typer.Option(help="Time after which no new trial starts: 90s, 20m, 2h.")
]

SCENARIO = Annotated[Path, typer.Argument(help="A scenario file (YAML).")]
FAIL_ABOVE = Annotated[
    float | None,
    typer.Option(
        help="Exit with 1 if a larger share of images leaks in any configuration, such as 0.1.",
        min=0,
        max=1,
    ),
]


def command_line() -> str:
    """Return what the user typed, for the report."""
    return shlex.join(["leakmeter", *sys.argv[1:]])
