"""Arguments and options that several commands take."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

OUT = Annotated[Path, typer.Option(help="Folder for everything the command leaves behind.")]
PLACE = Annotated[
    str, typer.Option("--out", help="Folder, or fsspec URL, for everything that is left behind.")
]
OPTIONS = Annotated[
    list[str] | None, typer.Option(help="A setting of the attack, as tv=0.001; repeatable.")
]
FINISHED = Annotated[str, typer.Argument(help="Folder or URL of an audit.")]
PROCESSES = Annotated[
    int | None, typer.Option(help="Trials at a time; by default one per core.", min=1)
]
THREADS = Annotated[
    int | None, typer.Option(help="Of each trial; by default as cores are left.", min=1)
]
RAY = Annotated[
    str | None, typer.Option(help="Address of a Ray cluster, or 'local': trials run there.")
]
BUDGET = Annotated[
    str | None, typer.Option(help="Time after which no trial is begun: 90s, 20m, 2h.")
]

SCENARIO = Annotated[Path, typer.Argument(help="A scenario file (YAML).")]
FAIL_ABOVE = Annotated[
    float | None,
    typer.Option(
        help="Exit with 1 if in any configuration a larger share of images leaks, as 0.1.",
        min=0,
        max=1,
    ),
]


def command_line() -> str:
    """What the user typed, for the report."""
    return shlex.join(["leakmeter", *sys.argv[1:]])
