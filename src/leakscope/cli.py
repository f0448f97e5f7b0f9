"""The command line. Heavy imports happen inside commands, so that ``--help`` answers at once."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from leakscope.errors import LeakscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leakscope.audit import Evidence, Means, Provenance
    from leakscope.audit.recorded import Request
    from leakscope.federated.defence import Defence

app = typer.Typer(
    help="Find out how much private training data can be read out of a federated-learning update.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

INTERRUPTED = 130
"""What typer returns after Ctrl-C, and the shell's code for it."""

LEAKED = 1
"""Exit code of an audit that found more leakage than it was told to accept."""

INCOMPLETE = 3
"""Exit code of an audit some of whose attacks failed."""

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


class Format(StrEnum):
    """How trials are listed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


class Shelf(StrEnum):
    """What can be listed."""

    ATTACKS = "attacks"
    DEFENCES = "defences"
    MODELS = "models"
    DATASETS = "datasets"


@app.command()
def audit(
    subject: Annotated[
        Path, typer.Argument(help="A scenario file (YAML), or a folder of recorded updates.")
    ],
    out: PLACE,
    model: Annotated[
        str | None, typer.Option(help="Of recorded updates: a name, or package.module:factory.")
    ] = None,
    attack: Annotated[str, typer.Option(help="On recorded updates.")] = "auto",
    option: OPTIONS = None,
    truth: Annotated[
        Path | None, typer.Option(help="Folder of what recorded clients had: client-3.npz, ...")
    ] = None,
    distractors: Annotated[
        str | None, typer.Option(help="Data set for line-ups; else the other clients' images.")
    ] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(help="What recorded updates do not say, as epochs=5; repeatable."),
    ] = None,
    fail_above: FAIL_ABOVE = None,
    processes: PROCESSES = None,
    threads: THREADS = None,
    ray: RAY = None,
    budget: BUDGET = None,
) -> None:
    """Simulate clients, attack their updates, measure what came out, and write a report.

    With a folder of recorded updates, attack those. Run it again to go on after an interruption:
    finished work is kept. Two audits into the same folder share the work.
    """
    from leakscope.audit import Scenario, run, run_recorded

    means = _means(processes, threads, ray, budget)
    if subject.is_dir():
        request = _request(subject, model, attack, option, truth, distractors, known)
        _conclude(*run_recorded(request, out, means, _command()), out, fail_above)
        return
    if model or option or truth or distractors or known or attack != "auto":
        raise LeakscopeError(f"{subject} is a scenario, which says all of that itself")
    _conclude(*run(Scenario.load(subject), out, means, _command()), out, fail_above)


def _request(
    folder: Path,
    model: str | None,
    attack: str,
    options: list[str] | None,
    truth: Path | None,
    distractors: str | None,
    known: list[str] | None,
) -> Request:
    """What to do with recorded updates."""
    from pydantic import ValidationError

    from leakscope.audit.captured import named_values
    from leakscope.audit.complaints import complaints
    from leakscope.audit.recorded import Request
    from leakscope.audit.scenario import AttackPart

    if model is None:
        raise LeakscopeError(
            f"{folder} holds recorded updates: name their network by --model, a built-in one or "
            "package.module:factory"
        )
    try:
        part = AttackPart(name=attack, options=named_values("option", options or ()))
    except ValidationError as error:
        raise LeakscopeError("\n".join(complaints(error, AttackPart))) from None
    return Request(
        folder=folder,
        model=model,
        attack=part,
        truth=truth,
        distractors=distractors,
        known=named_values("known", known or ()),
    )


@app.command()
def advise(
    scenario: SCENARIO,
    out: PLACE,
    processes: PROCESSES = None,
    threads: THREADS = None,
    ray: RAY = None,
    budget: BUDGET = None,
) -> None:
    """Turn the cheap knobs of a scenario one by one: what stops the leak at the least cost?

    Local epochs, batch size, local data size, clipping with noise, sparse updates. Run it again
    to go on after an interruption.
    """
    from leakscope.audit import Scenario, knobs, run_settings
    from leakscope.audit.store import Store

    means = _means(processes, threads, ray, budget)
    resolved = Scenario.load(scenario)
    Store(out).prepare()
    settings = knobs(resolved)
    _conclude(*run_settings(settings[0][1], settings, out, means, _command()), out)


@app.command()
def report(out: FINISHED, fail_above: FAIL_ABOVE = None) -> None:
    """Write the report of an audit from what is finished, also while it runs."""
    from leakscope.audit import read_back

    evidence, provenance = read_back(out)
    _conclude(evidence, provenance, out, fail_above)


@app.command()
def status(out: FINISHED) -> None:
    """Say how far an audit is: done, running, failed, and how long it will take."""
    from leakscope.audit.status import status
    from leakscope.report import listing

    for line in listing.told(status(out)):
        typer.echo(line)


@app.command()
def results(
    out: FINISHED,
    format: Annotated[Format, typer.Option(help="For a person or for a program.")] = Format.TABLE,
    to: Annotated[Path | None, typer.Option(help="File to write; needed for parquet.")] = None,
) -> None:
    """List every finished attack of an audit, also while it runs."""
    from leakscope.audit.status import rows
    from leakscope.report import listing

    if to is not None and format is Format.TABLE:
        raise LeakscopeError("--to: a file is csv, json or parquet: say which by --format")
    if to is not None:
        listing.write(rows(out), format, to)
    elif format is Format.TABLE:
        listing.show(rows(out))
    elif format is Format.PARQUET:
        raise LeakscopeError("--format parquet is not for the eye: name a file by --to")
    else:
        text = listing.as_csv(rows(out)) if format is Format.CSV else listing.as_json(rows(out))
        typer.echo(text, nl=False)


def _command() -> str:
    return shlex.join(["leakscope", *sys.argv[1:]])


def _means(
    processes: int | None, threads: int | None, ray: str | None, budget: str | None
) -> Means:
    """One process per core, unless asked otherwise."""
    from leakscope.audit import Means
    from leakscope.audit.crew import cores
    from leakscope.audit.schedule import parse_budget

    if ray is not None and processes is not None:
        raise LeakscopeError("--processes: with --ray the cluster says how many: take one out")
    return Means(
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
    """Write what was found, say it in a sentence, and fail if it is more than is accepted."""
    from leakscope import report
    from leakscope.audit.store import Store

    place = Store(out).url
    page = f"{place}/report.html"
    report.write(evidence, provenance, page)
    results = report.write_results(evidence, provenance, place)
    summary = report.summary(evidence, provenance)
    for text in filter(None, (summary.sentence, summary.advice)):
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
    leaking = []
    if fail_above is not None:
        leaking = [pair for pair in report.leakage(results) if pair[1] > fail_above]
    for label, share in leaking:
        typer.secho(f"{label}: {share:.0%} of the images leak", fg="red", err=True)
    if leaking:
        raise typer.Exit(LEAKED)
    if provenance.failures:
        raise typer.Exit(INCOMPLETE)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="Folder of an audit, or its results.json.")],
    after: Annotated[Path, typer.Argument(help="Another one.")],
) -> None:
    """Set two audits side by side: did leakage rise, fall, or can nobody tell?"""
    from leakscope import report

    report.show_comparison(report.Results.load(before), report.Results.load(after))


@app.command()
def attack(
    updates: Annotated[
        list[Path],
        typer.Argument(help="A captured update (safetensors), or several of the same examples."),
    ],
    model: Annotated[str, typer.Option(help="A built-in name, or package.module:factory.")],
    out: OUT,
    attack: Annotated[str, typer.Option(help="The recipe: see 'leakscope list attacks'.")] = "auto",
    iterations: Annotated[int | None, typer.Option(help="Instead of the paper's.")] = None,
    option: OPTIONS = None,
    labels: Annotated[
        str | None, typer.Option(help="Labels the attacker knows, as 3,14,15 (an assumption).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random start.", min=0, max=2**63 - 1)] = 0,
    device: Annotated[str | None, typer.Option(help="Such as cuda or mps.")] = None,
    input_shape: Annotated[str | None, typer.Option(help="Of one image, as 3,32,32.")] = None,
    classes: Annotated[int | None, typer.Option(help="Outputs of the network.")] = None,
    normalize: Annotated[
        str | None, typer.Option(help="A data set's name, 'none', or mean,..:std,..")
    ] = None,
    batchnorm: Annotated[str | None, typer.Option(help="Of the client: eval or train.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Of the client.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Of the client.")] = None,
    lr: Annotated[float | None, typer.Option(help="Step size of the client.")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="Of the client: sgd, adam or adamw.")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Of the client's SGD.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of the client.")] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="Of the client's loss.")] = None,
    reduction: Annotated[
        str | None, typer.Option(help="Of the client's loss: mean or sum.")
    ] = None,
    sparse: Annotated[
        bool | None, typer.Option("--sparse", help="Zeros were left out by the client.")
    ] = None,
    bits: Annotated[int | None, typer.Option(help="The update was rounded to so many.")] = None,
) -> None:
    """Attack a captured update. No ground truth is needed.

    What the update's file does not say about the client's training, say by the options. Several
    updates that a client made from the same examples (rounds, epochs) are reconstructed together.
    """
    from leakscope import report
    from leakscope.audit.captured import attack_captured, recipe_options
    from leakscope.audit.progress import watching

    told = {
        "input_shape": input_shape,
        "classes": classes,
        "normalize": normalize,
        "batchnorm": batchnorm,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "optimizer": optimizer,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "label_smoothing": label_smoothing,
        "reduction": reduction,
        "sparse": sparse,
        "bits": bits,
    }
    with watching() as watch:
        evidence, provenance = attack_captured(
            updates,
            model,
            attack,
            out,
            options=recipe_options(option or [], iterations),
            labels=labels,
            seed=seed,
            device=device,
            told={field: value for field, value in told.items() if value is not None},
            command=_command(),
            watch=watch,
        )
    page = out / "report.html"
    report.write([evidence], provenance, page)
    report.write_results([evidence], provenance, out)
    typer.echo(f"report: {page.resolve()}")


@app.command(name="list")
def list_(
    what: Annotated[Shelf | None, typer.Argument(help="All of them if not given.")] = None,
) -> None:
    """List attacks, defences, models and datasets."""
    from leakscope import data, models
    from leakscope.attack.papers import RECIPES
    from leakscope.federated.defences import DEFENCES

    shelves = {
        Shelf.ATTACKS: {
            name: f"{(recipe.__doc__ or '').splitlines()[0]}\nNeeds {recipe().needs}."
            for name, recipe in RECIPES.items()
        },
        Shelf.DEFENCES: {name: _told(defence) for name, defence in DEFENCES.items()},
        Shelf.MODELS: {name: models.describe(name) for name in models.names()},
        Shelf.DATASETS: {name: data.describe(name) for name in data.names()},
    }
    for shelf, entries in shelves.items():
        if what in (None, shelf):
            typer.secho(shelf, bold=True)
            width = max(map(len, entries))
            for name, about in entries.items():
                first, *more = about.splitlines()
                typer.echo(f"  {name:{width}}  {first}")
                for line in more:
                    typer.secho(f"  {'':{width}}  {line}", dim=True)


def _told(defence: type[Defence]) -> str:
    """A defence in some lines: what it is, its options, what the attacker knows."""
    options = ", ".join(
        field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default}"
        for field in dataclasses.fields(defence)  # type: ignore[arg-type]
    )
    about = (defence.__doc__ or "").splitlines()[0]
    return f"{about}\nOptions: {options or 'none'}. {defence.known}"


@app.command()
def show(scenario: SCENARIO) -> None:
    """Print the scenario with every default filled in."""
    from leakscope.audit import Scenario

    typer.echo(Scenario.load(scenario).dump(), nl=False)


@app.command()
def bench(
    table: Annotated[str, typer.Argument(help="Such as sme-2; 'list' names them all.")] = "list",
    rows: Annotated[
        list[str] | None, typer.Option(help="Only rows whose names match, as 'femnist*N=10*'.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Of every row: 3, or what fits the budget.", min=1, max=100)
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of cifar100.npz and so on: $LEAKSCOPE_DATA or data.")
    ] = None,
    out: OUT = Path("out/bench"),
    budget: BUDGET = None,
    iterations: Annotated[int | None, typer.Option(help="Instead of the papers'.", min=1)] = None,
    processes: PROCESSES = None,
) -> None:
    """Run a published table and set our numbers beside the paper's.

    Run it again to go on after an interruption: finished trials are kept.
    """
    from leakscope.bench.tables import TABLES, find

    if table == "list":
        width = max(map(len, TABLES))
        for entry in TABLES.values():
            typer.echo(f"{entry.id:{width}}  {entry.title} ({len(entry.rows)} rows)")
        return
    chosen = find(table)

    from leakscope.audit.schedule import parse_budget
    from leakscope.bench import results
    from leakscope.bench.run import Request, run
    from leakscope.bench.screen import Screen
    from leakscope.bench.sources import default_folder

    request = Request(
        table=chosen,
        data=default_folder() if data is None else data,
        out=out,
        rows=rows or (),
        repeats=repeats,
        iterations=iterations,
        budget=None if budget is None else parse_budget(budget),
        processes=processes,
    )
    screen = Screen()
    found = run(request, screen)
    screen.results(chosen, found)
    results.write(chosen, found, request.folder, request.options())
    typer.echo(f"results: {(request.folder / 'results.md').resolve()}")


def main() -> None:
    """Run the command line: bad input ends in one clear line each and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except LeakscopeError as error:
        for line in str(error).splitlines():
            typer.secho(f"error: {line}", fg="red", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    if code == INTERRUPTED:
        typer.secho("stopped: run the same command again to go on", err=True)
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
