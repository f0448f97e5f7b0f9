"""Runs an audit. Everything finished is on disk and is not repeated."""

from __future__ import annotations

from pathlib import Path

from leakmeter.audits.folder import Folder
from leakmeter.audits.plan import Plan, Planned, Settings, plan
from leakmeter.audits.recorded import RecordedAudit, plan_recorded
from leakmeter.audits.scenario import Scenario
from leakmeter.audits.setting import Setting, stage
from leakmeter.errors import LeakmeterError
from leakmeter.execution.executors import Cache
from leakmeter.execution.progress import Screen, watching
from leakmeter.execution.store import Store
from leakmeter.execution.sweep import Resources, sweep
from leakmeter.judge import Evidence, Provenance


def run(
    scenario: Scenario,
    out: str | Path,
    resources: Resources | None = None,
    command: str = "",
    settings: Settings | None = None,
) -> tuple[list[Evidence], Provenance]:
    """Run all attacks on all clients of ``scenario`` and write everything to ``out``.

    Work that an earlier run of the same scenario finished is read back; an interrupted attack
    resumes where it stopped. Several processes may work on the same folder.

    Args:
        scenario: what to do.
        out: folder, or URL that fsspec can open, for the results.
        resources: how to do the work; by default in this process.
        command: the command line, for the report.
        settings: scenarios with nothing left to vary, each with its name; by default those of
            ``scenario``.
    """
    cache, store = Cache(), Store(out)
    settings = scenario.settings() if settings is None else settings
    planned = plan(scenario, settings, cache, command)
    store.prepare()
    store.write("scenario.yaml", scenario.dump())
    train(settings, cache)
    return _do(planned, store, resources, cache)


def run_recorded(
    asked: RecordedAudit, out: str | Path, resources: Resources | None = None, command: str = ""
) -> tuple[list[Evidence], Provenance]:
    """Attack every recorded update that is ``asked`` for and write everything to ``out``.

    Args:
        asked: which updates, and how to attack them.
        out: folder or URL for the results.
        resources: how to do the work; by default in this process.
        command: the command line, for the report.
    """
    cache, store = Cache(), Store(out)
    planned = plan_recorded(asked, cache, command)
    store.prepare()
    return _do(planned, store, resources, cache)


def _do(
    planned: Planned, store: Store, resources: Resources | None, cache: Cache
) -> tuple[list[Evidence], Provenance]:
    with Screen(lambda low, high: f"images from {low:.1f} to {high:.1f} dB") as screen:
        if (changed := _changed(planned.plan, store)) is not None:
            screen.say(changed)
        planned.plan.save(store)
        sweep(store, planned.trials, resources or Resources(), screen, cache)
    return Folder(store.url).read()


def _changed(plan: Plan, store: Store) -> str | None:
    """Describe what is kept and what is new if the folder holds another audit."""
    try:
        before = Folder(store.url).plan
    except LeakmeterError:
        return None
    wanted, there = set(plan.trials), set(store.finished())
    if wanted == set(before.trials):
        return None
    kept, left = wanted & there, there - wanted
    return (
        f"{store.name} held another audit: {len(kept)} of its trials are used again, "
        f"{len(wanted - there)} are new, {len(left)} are not part of this one and stay where "
        "they are"
    )


def train(settings: Settings, cache: Cache) -> None:
    """Train networks first, once, before many processes need them."""
    federated = [Setting.of(each) for _, each in settings if each.federation is not None]
    if not federated:
        return
    with watching() as watch:
        for setting in federated:
            with watch("federated rounds") as progress:
                on = cache.get(stage, setting)
                on.network(lambda done, total: progress(done, total, None))
