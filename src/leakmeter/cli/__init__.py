"""The command line. Heavy imports happen inside commands, so that ``--help`` answers at once."""

from __future__ import annotations

import contextlib
import os
import sys

import click
import typer

from leakmeter.cli import audits, captured, catalog
from leakmeter.errors import LeakmeterError

app = typer.Typer(
    help="Find out how much private training data can be read out of a federated-learning update.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(audits.audit)
app.command()(audits.advise)
app.command()(audits.report)
app.command()(audits.status)
app.command()(audits.results)
app.command()(audits.compare)
app.command()(captured.attack)
app.command(name="list")(catalog.list_)
app.command()(catalog.show)
app.command()(catalog.bench)

INTERRUPTED = 130
"""The code that typer returns after Ctrl-C, and the shell's code for it."""


def main() -> None:
    """Run the command line: bad input ends in one clear line each and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except LeakmeterError as error:
        for line in str(error).splitlines():
            typer.secho(f"error: {line}", fg="red", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    if code == INTERRUPTED:
        typer.secho("stopped: run the same command again to go on", err=True)
        with contextlib.suppress(OSError):  # nobody is listening anymore
            sys.stdout.flush()
        os._exit(code)  # do not make whoever pressed Ctrl-C wait while torch shuts down
    sys.exit(code or 0)
