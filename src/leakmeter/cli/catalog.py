"""Commands that list what is available, and how well it does on the papers' own tables."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakmeter.cli.options import BUDGET, OUT, PROCESSES, SCENARIO

if TYPE_CHECKING:
    from leakmeter.federated.defenses.base import Defense


class Kind(StrEnum):
    """What can be listed."""

    ATTACKS = "attacks"
    DEFENSES = "defenses"
    MODELS = "models"
    DATASETS = "datasets"


def list_(
    what: Annotated[Kind | None, typer.Argument(help="Everything by default.")] = None,
) -> None:
    """List attacks, defenses, models and datasets."""
    from leakmeter import data, models
    from leakmeter.attacks.papers import ABLATIONS, RECIPES
    from leakmeter.federated.defenses import DEFENSES

    catalog = {
        Kind.ATTACKS: {
            name: f"{(recipe.__doc__ or '').splitlines()[0]}\nNeeds {recipe().needs}."
            for name, recipe in RECIPES.items()
        },
        Kind.DEFENSES: {name: _told(defense) for name, defense in DEFENSES.items()},
        Kind.MODELS: {name: models.describe(name) for name in models.names()},
        Kind.DATASETS: {name: data.describe(name) for name in data.names()},
    }
    for kind, entries in catalog.items():
        if what in (None, kind):
            typer.secho(kind, bold=True)
            width = max(map(len, entries))
            for name, about in entries.items():
                if name == ABLATIONS[0]:
                    typer.secho("  ablations, which show what a part of an attack is good for:")
                first, *more = about.splitlines()
                typer.echo(f"  {name:{width}}  {first}")
                for line in more:
                    typer.secho(f"  {'':{width}}  {line}", dim=True)


def _told(defense: type[Defense]) -> str:
    """Describe a defense in a few lines: what it is, its options, what the attacker knows."""
    options = ", ".join(
        field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default}"
        for field in dataclasses.fields(defense)  # type: ignore[arg-type]
    )
    about = (defense.__doc__ or "").splitlines()[0]
    return f"{about}\nOptions: {options or 'none'}. {defense.known}"


def show(scenario: SCENARIO) -> None:
    """Print the scenario with every default filled in."""
    from leakmeter.audits import Scenario

    typer.echo(Scenario.load(scenario).dump(), nl=False)


def bench(
    table: Annotated[str, typer.Argument(help="E.g. sme-2; 'list' shows all of them.")] = "list",
    rows: Annotated[
        list[str] | None, typer.Option(help="Only rows whose names match, such as 'femnist*N=10*'.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="For each row: 3, or what fits the budget.", min=1, max=100)
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of cifar100.npz etc.; else $LEAKMETER_DATA or data.")
    ] = None,
    out: OUT = Path("out/bench"),
    budget: BUDGET = None,
    iterations: Annotated[int | None, typer.Option(help="Override the papers'.", min=1)] = None,
    processes: PROCESSES = None,
) -> None:
    """Run a published table and compare our numbers with the paper's.

    Run the command again to resume after an interruption: finished trials are kept.
    """
    from leakmeter.bench.tables import TABLES, find

    if table == "list":
        width = max(map(len, TABLES))
        for entry in TABLES.values():
            typer.echo(f"{entry.id:{width}}  {entry.title} ({len(entry.rows)} rows)")
        return
    chosen = find(table)

    from leakmeter.bench import results
    from leakmeter.bench.run import TableRun, run
    from leakmeter.bench.sources import default_folder
    from leakmeter.execution.budget import parse_budget

    asked = TableRun(
        table=chosen,
        data=default_folder() if data is None else data,
        out=out,
        rows=rows or (),
        repeats=repeats,
        iterations=iterations,
        budget=None if budget is None else parse_budget(budget),
        processes=processes,
    )
    found = run(asked)
    results.show(chosen, found)
    results.write(chosen, found, asked.folder, asked.options())
    typer.echo(f"results: {(asked.folder / 'results.md').resolve()}")
