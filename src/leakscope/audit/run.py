"""Runs a scenario: simulate, attack, measure. Everything finished is on disk and not done again."""

from __future__ import annotations

import json
from pathlib import Path

from leakscope.audit import recorded, simulated
from leakscope.audit.collect import collect
from leakscope.audit.evidence import Evidence, Provenance
from leakscope.audit.plan import Settings, distinct, plan, written
from leakscope.audit.progress import Board, watching
from leakscope.audit.recorded import Request
from leakscope.audit.scenario import Scenario
from leakscope.audit.stage import Stage
from leakscope.audit.store import Store
from leakscope.audit.sweep import Means, sweep
from leakscope.errors import LeakscopeError

RUN, PLAN = "run.json", "plan.jsonl"
"""What an audit leaves beside its trials: what was asked for, and which trials that takes."""


def run(
    scenario: Scenario,
    out: str | Path,
    means: Means | None = None,
    command: str = "",
) -> tuple[list[Evidence], Provenance]:
    """Run all attacks on all clients of ``scenario`` and leave everything in ``out``.

    What an earlier run of the same scenario finished is read back; an attack that was cut off
    goes on from its last checkpoint. Several processes may work on the same folder.

    Args:
        scenario: what to do.
        out: folder, or URL that fsspec can open, for the results.
        means: how; in this process by default.
        command: for the report.
    """
    return run_settings(scenario, scenario.settings(), out, means, command)


def run_settings(
    scenario: Scenario,
    settings: Settings,
    out: str | Path,
    means: Means | None = None,
    command: str = "",
) -> tuple[list[Evidence], Provenance]:
    """Run all attacks on all clients of all ``settings``, each with its defences.

    Args:
        scenario: what they derive from, for the record.
        settings: scenarios with nothing left to vary, each with what it is called.
        out: folder or URL for the results.
        means: how; in this process by default.
        command: for the report.
    """
    simulated.forget()
    rows, store = plan(settings), Store(out)
    store.prepare()
    content = {
        "scenario": scenario.model_dump(mode="json"),
        "settings": [[name, each.model_dump(mode="json")] for name, each in settings],
        "command": command,
    }
    store.write(RUN, json.dumps(content))
    store.write(PLAN, written(rows))
    store.write("scenario.yaml", scenario.dump())
    _train(settings)
    trials = distinct(rows)
    with Board() as board:
        sweep(store, trials, means or Means(), board)
    store.tidy([trial.id for trial in trials])
    return collect(rows, store, scenario, command)


def run_recorded(
    request: Request, out: str | Path, means: Means | None = None, command: str = ""
) -> tuple[list[Evidence], Provenance]:
    """Attack every recorded update of ``request`` and leave everything in ``out``.

    Args:
        request: the updates, and how to attack them.
        out: folder or URL for the results.
        means: how; in this process by default.
        command: for the report.
    """
    recorded.forget()
    records, store = request.records(), Store(out)
    store.prepare()
    content = {"recorded": request.model_dump(mode="json"), "command": command}
    store.write(RUN, json.dumps(content))
    store.write(PLAN, recorded.written(records))
    trials = list({trial.id: trial for each in records for trial in each.trials}.values())
    with Board() as board:
        sweep(store, trials, means or Means(), board)
    store.tidy([trial.id for trial in trials])
    return recorded.collect(request, records, store, command)


def read_back(out: str | Path) -> tuple[list[Evidence], Provenance]:
    """What an audit has found so far, whether or not it still runs."""
    simulated.forget()
    recorded.forget()
    store = Store(out)
    try:
        content = json.loads(store.text(RUN))
        command = str(content["command"])
        if "recorded" in content:
            request = Request.model_validate(content["recorded"])
        else:
            scenario = Scenario.model_validate(content["scenario"])
            settings = [(name, Scenario.model_validate(each)) for name, each in content["settings"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise LeakscopeError(f"{out} has no {RUN}: give the folder of an audit") from None
    if "recorded" in content:
        return recorded.collect(request, request.records(), store, command)
    return collect(plan(settings), store, scenario, command)


def _train(settings: Settings) -> None:
    """Networks that are trained first: once, before many processes want them."""
    trained = [scenario for _, scenario in settings if scenario.federation is not None]
    if not trained:
        return
    with watching() as watch:
        for scenario in trained:
            with watch("federated rounds") as progress:
                Stage.of(scenario).network(progress)
