"""Runs a scenario: simulate, attack, measure. Everything finished is on disk and not done again."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from leakscope import data
from leakscope.attack.solver import Progress
from leakscope.audit.evidence import Configuration, Evidence, Provenance, count_parameters
from leakscope.audit.scenario import Protection, Scenario
from leakscope.audit.stage import Stage, Watch
from leakscope.audit.utility import check_utility, configuration, measured_utility
from leakscope.errors import LeakscopeError
from leakscope.measure import Lpips


def unwatched(work: str) -> AbstractContextManager[Progress | None]:
    """Follows nothing."""
    return nullcontext()


def run(
    scenario: Scenario, out: Path, watch: Watch = unwatched, command: str = ""
) -> tuple[list[Evidence], Provenance]:
    """Run all attacks on all clients of ``scenario`` and leave everything in ``out``.

    What an earlier run of the same scenario finished is read back; an attack that was cut off
    goes on from its last checkpoint.

    Args:
        scenario: what to do.
        out: folder for the results.
        watch: follows the work.
        command: for the report.
    """
    return run_settings(scenario, scenario.settings(), out, watch, command)


def run_settings(
    scenario: Scenario,
    settings: Sequence[tuple[str, Scenario]],
    out: Path,
    watch: Watch = unwatched,
    command: str = "",
) -> tuple[list[Evidence], Provenance]:
    """Run all attacks on all clients of all ``settings``, each with its defences.

    Args:
        scenario: what they derive from, for the record.
        settings: scenarios with nothing left to vary, each with what it is called.
        out: folder for the results.
        watch: follows the work.
        command: for the report.
    """
    lpips = None if scenario.lpips is None else Lpips.load(scenario.lpips)
    load = functools.cache(data.load)  # settings that differ otherwise share their images
    stages = [Stage.of(setting, single, out, watch, lpips, load) for setting, single in settings]
    for stage in stages:
        if stage.scenario.utility is not None:
            check_utility(stage, stage.scenario.utility)
    prepare_folder(out)
    (out / "scenario.yaml").write_text(scenario.dump(), encoding="utf-8")
    pairs = [(stage, protection) for stage in stages for protection in stage.scenario.defences]
    evidence: list[Evidence] = []
    configurations = []
    for stage, protection in pairs:
        found, row = _configured(stage, protection, straight=len(pairs) == 1)
        evidence += found
        configurations.append(row)
    names = {stage.dataset.class_names for stage in stages}
    return evidence, Provenance(
        title=scenario.name,
        command=command,
        model=_each(stage.scenario.model.name for stage in stages),
        parameters=count_parameters(stages[0].network),
        scenario=scenario.dump(),
        data=_each(stage.scenario.data.source for stage in stages),
        class_names=names.pop() if len(names) == 1 else (),
        configurations=tuple(configurations),
    )


def _configured(
    stage: Stage, protection: Protection, straight: bool
) -> tuple[list[Evidence], Configuration]:
    """All attacks on all clients of one configuration."""
    part = stage.scenario.utility
    utility = None if part is None else measured_utility(stage, protection, part)
    evidence, row = [], None
    for victims in stage.victims(stage.network, protection):
        update = stage.update(victims, protection)
        if row is None:
            client = victims.clients[0]
            own = update if len(victims.clients) == 1 else stage.sent(client)
            row = configuration(stage, protection, client, own, utility)
        path = stage.straightness(victims, protection) if straight else None
        for attack in stage.scenario.attacks:
            trial = stage.trial(attack, victims, update, row.label)
            evidence.append(replace(trial, straightness=path))
    assert row is not None
    return evidence, row


def prepare_folder(out: Path) -> None:
    """Make ``out`` and check that it can be written to, before any work starts."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise LeakscopeError(f"cannot write to {out}: {error.strerror}") from None


def _each(names: Iterable[str]) -> str:
    """All different names, in order."""
    return ", ".join(dict.fromkeys(names))
