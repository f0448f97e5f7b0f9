"""The command line. Heavy imports happen inside commands, so that ``--help`` answers at once."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import click
import typer

from leakscope.errors import LeakscopeError

app = typer.Typer(
    help="Find out how much private training data can be read out of a federated-learning update.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

INTERRUPTED = 130
"""What typer returns after Ctrl-C, and the shell's code for it."""

OUT = Annotated[Path, typer.Option(help="Folder for everything the command leaves behind.")]


class Shelf(StrEnum):
    """What can be listed."""

    ATTACKS = "attacks"
    MODELS = "models"
    DATASETS = "datasets"


@app.command()
def audit(
    scenario: Annotated[Path, typer.Argument(help="A scenario file (YAML).")],
    out: OUT,
) -> None:
    """Simulate clients, attack their updates, measure what came out, and write a report.

    Run it again to go on after an interruption: finished work is kept.
    """
    from leakscope import report
    from leakscope.audit import Scenario, run
    from leakscope.audit.progress import watching

    resolved = Scenario.load(scenario)
    command = shlex.join(["leakscope", "audit", str(scenario), "--out", str(out)])
    with watching() as watch:
        evidence, provenance = run(resolved, out, watch, command)
    page = out / "report.html"
    report.write(evidence, provenance, page)
    typer.echo(report.verdict(evidence).sentence)
    typer.echo(f"report: {page.resolve()}")


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
    option: Annotated[
        list[str] | None, typer.Option(help="A setting of the recipe, as tv=0.001; repeatable.")
    ] = None,
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
            command=shlex.join(["leakscope", *sys.argv[1:]]),
            watch=watch,
        )
    page = out / "report.html"
    report.write([evidence], provenance, page)
    typer.echo(f"report: {page.resolve()}")


@app.command(name="list")
def list_(
    what: Annotated[Shelf | None, typer.Argument(help="All three if not given.")] = None,
) -> None:
    """List attacks, models and datasets."""
    from leakscope import data, models
    from leakscope.attack.papers import RECIPES

    shelves = {
        Shelf.ATTACKS: {
            name: f"{(recipe.__doc__ or '').splitlines()[0]}\nNeeds {recipe().needs}."
            for name, recipe in RECIPES.items()
        },
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


@app.command()
def show(
    scenario: Annotated[Path, typer.Argument(help="A scenario file (YAML).")],
) -> None:
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
    budget: Annotated[str | None, typer.Option(help="Time it may take: 90s, 20m, 2h.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Instead of the papers'.", min=1)] = None,
    processes: Annotated[
        int | None, typer.Option(help="Trials at a time; by default one per core.", min=1)
    ] = None,
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

    from leakscope.bench import results
    from leakscope.bench.estimate import parse_budget
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
        sys.exit(code)


if __name__ == "__main__":
    main()
