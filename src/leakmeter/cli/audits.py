"""Commands that run audits, and those that look at what audits left behind."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakmeter.cli.options import (
    BUDGET,
    FAIL_ABOVE,
    FINISHED,
    OPTIONS,
    PLACE,
    PROCESSES,
    RAY,
    SCENARIO,
    THREADS,
    command_line,
)
from leakmeter.errors import LeakmeterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leakmeter.audits import RecordedAudit, Resources
    from leakmeter.judge import Evidence, Provenance, Results

LEAKED = 1
"""Exit code of an audit that found more leakage than it was told to accept."""

INCOMPLETE = 3
"""Exit code of an audit in which some attacks failed."""


class Format(StrEnum):
    """How trials are listed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def audit(
    subject: Annotated[
        Path, typer.Argument(help="A scenario file (YAML), or a folder of recorded updates.")
    ],
    out: PLACE,
    model: Annotated[
        str | None, typer.Option(help="Network of the records: a name or package.module:factory.")
    ] = None,
    attack: Annotated[str, typer.Option(help="The attack on recorded updates.")] = "auto",
    option: OPTIONS = None,
    truth: Annotated[
        Path | None, typer.Option(help="Folder of the recorded clients' data: client-3.npz, ...")
    ] = None,
    distractors: Annotated[
        str | None, typer.Option(help="Data set for line-ups; by default, other clients' images.")
    ] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(help="A setting that the records lack, such as epochs=5; repeatable."),
    ] = None,
    fail_above: FAIL_ABOVE = None,
    processes: PROCESSES = None,
    threads: THREADS = None,
    ray: RAY = None,
    budget: BUDGET = None,
) -> None:
    """Simulate clients, attack their updates, measure what came out, and write a report.

    Given a folder of recorded updates, attack those instead. Run the command again to resume after
    an interruption: finished work is kept. Two audits that use the same folder share the work.
    """
    from leakmeter.audits import Scenario, run, run_recorded

    resources = _resources(processes, threads, ray, budget)
    if not subject.exists():
        raise LeakmeterError(f"cannot read {subject}: No such file or folder")
    if subject.is_dir():
        asked = _recorded(subject, model, attack, option, truth, distractors, known)
        _conclude(*run_recorded(asked, out, resources, command_line()), out, fail_above)
        return
    if model or option or truth or distractors or known or attack != "auto":
        raise LeakmeterError(f"{subject} is a scenario, which says all of that itself")
    _conclude(*run(Scenario.load(subject), out, resources, command_line()), out, fail_above)


def _recorded(
    folder: Path,
    model: str | None,
    attack: str,
    options: list[str] | None,
    truth: Path | None,
    distractors: str | None,
    known: list[str] | None,
) -> RecordedAudit:
    """Describe the audit of recorded updates."""
    from pydantic import ValidationError

    from leakmeter.audits.captured import named_values
    from leakmeter.audits.parts import AttackPart
    from leakmeter.audits.recorded import RecordedAudit
    from leakmeter.errors import validation_errors

    if model is None:
        raise LeakmeterError(
            f"{folder} holds recorded updates: name their network by --model, a built-in one or "
            "package.module:factory"
        )
    try:
        part = AttackPart(name=attack, options=named_values("option", options or ()))
    except ValidationError as error:
        raise LeakmeterError("\n".join(validation_errors(error, AttackPart))) from None
    return RecordedAudit(
        folder=folder,
        model=model,
        attack=part,
        truth=truth,
        distractors=distractors,
        known=named_values("known", known or ()),
    )


def advise(
    scenario: SCENARIO,
    out: PLACE,
    processes: PROCESSES = None,
    threads: THREADS = None,
    ray: RAY = None,
    budget: BUDGET = None,
) -> None:
    """Change the cheap settings of a scenario one by one: what stops the leak at the least cost?

    These are local epochs, batch size, local data size, clipping with noise, and sparse updates.
    Run the command again to resume after an interruption.
    """
    from leakmeter.audits import Scenario, knobs, run
    from leakmeter.execution.store import Store

    resources = _resources(processes, threads, ray, budget)
    resolved = Scenario.load(scenario)
    Store(out).prepare()
    settings = knobs(resolved)
    _conclude(*run(settings[0][1], out, resources, command_line(), settings), out)


def report(out: FINISHED, fail_above: FAIL_ABOVE = None) -> None:
    """Write the report of an audit from what is finished, even while it runs."""
    from leakmeter.audits import Folder

    evidence, provenance = Folder(out).read()
    _conclude(evidence, provenance, out, fail_above)


def status(out: FINISHED) -> None:
    """Show the progress of an audit: done, running, failed, and the time left."""
    from leakmeter.audits import Folder
    from leakmeter.report import export

    for line in export.told(Folder(out).status()):
        typer.echo(line)


def results(
    out: FINISHED,
    format: Annotated[Format, typer.Option(help="For a person or for a program.")] = Format.TABLE,
    to: Annotated[Path | None, typer.Option(help="File to write; needed for parquet.")] = None,
) -> None:
    """List every finished attack of an audit, even while it runs."""
    from leakmeter.audits import Folder
    from leakmeter.report import export

    rows = Folder(out).rows()
    if to is not None and format is Format.TABLE:
        raise LeakmeterError("--to: a file is csv, json or parquet: choose one with --format")
    if to is not None:
        export.write(rows, format, to)
    elif format is Format.TABLE:
        export.show(rows)
    elif format is Format.PARQUET:
        raise LeakmeterError("--format parquet is a binary format: name a file with --to")
    else:
        text = export.as_csv(rows) if format is Format.CSV else export.as_json(rows)
        typer.echo(text, nl=False)


def _resources(
    processes: int | None, threads: int | None, ray: str | None, budget: str | None
) -> Resources:
    """Use one process per core unless asked otherwise."""
    from leakmeter.audits import Resources
    from leakmeter.execution.budget import parse_budget
    from leakmeter.execution.executors import cores

    if ray is not None and processes is not None:
        raise LeakmeterError("--processes: with --ray the cluster decides how many: drop one")
    return Resources(
        processes=processes or cores(),
        threads=threads,
        ray=ray,
        budget=None if budget is None else parse_budget(budget),
    )


def _conclude(
    evidence: Sequence[Evidence],
    provenance: Provenance,
    out: str,
    fail_above: float | None = None,
) -> None:
    """Write the report, print its conclusion, and fail if more leaked than is accepted."""
    from leakmeter.front import concluded

    found = concluded(evidence, provenance, out)
    results, page = found.results, found.path
    for text in filter(None, (results.sentence, results.advice)):
        typer.echo(text)
    typer.echo(f"report: {page}")
    for line in provenance.failures:
        typer.secho(f"failed: {line}", fg="red", err=True)
    if provenance.planned is not None:
        typer.secho(
            f"{len(evidence)} of {provenance.planned} attacks are finished: run the same audit "
            "again for the others",
            fg="yellow",
            err=True,
        )
    leaking = [] if fail_above is None else results.above(fail_above)
    for label, share in leaking:
        typer.secho(f"{label}: {share:.0%} of the images leak", fg="red", err=True)
    if leaking:
        raise typer.Exit(LEAKED)
    if provenance.failures:
        raise typer.Exit(INCOMPLETE)


def compare(
    before: Annotated[Path, typer.Argument(help="The folder of an audit, or its results.json.")],
    after: Annotated[Path, typer.Argument(help="The folder or results.json of another audit.")],
) -> None:
    """Compare two audits: did leakage rise, fall, or is the difference unclear?"""
    from leakmeter import report

    report.show_comparison(_judged(before), _judged(after))


def _judged(path: Path) -> Results:
    """Load what an audit found, from its folder if there is one, else from its numbers."""
    from leakmeter.audits import Folder
    from leakmeter.judge import Results, judge

    if (path / "plan.json").is_file():
        return judge(*Folder(path).read())
    return Results.load(path)
