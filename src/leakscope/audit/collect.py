"""Reads back what an audit has found so far."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from leakscope.attack.reconstruction import Reconstruction
from leakscope.audit.evidence import Configuration, Evidence, Provenance, count_parameters
from leakscope.audit.plan import Row, distinct
from leakscope.audit.scenario import Scenario
from leakscope.audit.stage import Stage
from leakscope.audit.store import Store
from leakscope.audit.trial import FOUND, Result, Trial, load_result
from leakscope.audit.utility import configuration
from leakscope.errors import LeakscopeError
from leakscope.measure import Finding, Straightness


def collect(
    rows: Sequence[Row], store: Store, scenario: Scenario, command: str
) -> tuple[list[Evidence], Provenance]:
    """Everything that is finished and whole; the provenance says what is not.

    Args:
        rows: the plan.
        store: where the trials are.
        scenario: what the plan derives from, for the record.
        command: for the report.
    """
    evidence: list[Evidence] = []
    configurations = []
    for row in rows:
        found, configured = _row(row, store)
        evidence += found
        configurations += configured
    planned, failures = sum(len(row.pairs) for row in rows), failed(distinct(rows), store)
    if not evidence:
        raise nothing_yet(distinct(rows), failures, store)
    stage = Stage.of(rows[0].scenario)
    names = {Stage.of(row.scenario).dataset.class_names for row in rows}
    return evidence, Provenance(
        title=scenario.name,
        command=command,
        model=_each(row.scenario.model.name for row in rows),
        parameters=count_parameters(stage.fresh_network),
        scenario=scenario.dump(),
        data=_each(row.scenario.data.source for row in rows),
        class_names=names.pop() if len(names) == 1 else (),
        configurations=tuple(configurations),
        planned=planned if len(evidence) < planned else None,
        failures=failures,
    )


def nothing_yet(trials: Iterable[Trial], failures: Iterable[str], store: Store) -> LeakscopeError:
    """Why there is no evidence."""
    there = set(store.finished())
    if there.isdisjoint(trial.id for trial in trials) and there and not failures:
        return LeakscopeError(
            f"{store.name} has {len(there)} finished trials, but none of what this audit is now: "
            "the images, the network or leakscope have changed since: run it again"
        )
    return LeakscopeError("\n".join(dict.fromkeys(failures)) or "no attack is finished yet")


def failed(trials: Iterable[Trial], store: Store) -> tuple[str, ...]:
    """Why some of them failed, a line for each reason."""
    known, reasons = store.failures(), dict[str, list[str]]()
    for trial in trials:
        if trial.id in known:
            reasons.setdefault(known[trial.id]["error"], []).append(trial.words)
    return tuple(
        f"{words[0]}: {error}"
        if len(words) == 1
        else f"{len(words)} trials, such as {words[0]}: {error}"
        for error, words in reasons.items()
    )


def _row(row: Row, store: Store) -> tuple[list[Evidence], list[Configuration]]:
    """The evidence of one configuration, and the configuration if there is any."""
    stage = Stage.of(row.scenario)
    label = Configuration(setting=row.setting, defence=row.protection.label).label
    paths = {trial.client: _path(trial, store) for trial in row.paths}
    evidence, sizes = [], []
    for attack, baseline in row.pairs:
        one, other = result(attack, store), result(baseline, store)
        if one is None or other is None:
            continue
        assert one.scores is not None
        assert other.scores is not None
        assert one.chance is not None
        assert one.protocol is not None
        assert attack.attack is not None
        victims = stage.victims(stage.fresh_network, row.protection, attack.client)
        sizes.append(one.bytes_sent or 0)
        evidence.append(
            Evidence(
                attack.attack.label,
                attack.client,
                one.protocol,
                row.scenario.client.shares,
                found(store, attack.id),
                victims.truth,
                Finding(scores=one.scores, baseline=other.scores, chance=one.chance),
                straightness=paths.get(attack.client),
                configuration=label,
                recipe=attack.attack.name,
            )
        )
    if not evidence:
        return [], []
    learned = None if row.utility is None else result(row.utility, store)
    client = stage.victims(stage.fresh_network, row.protection, 0).clients[0]
    utility = None if learned is None else learned.utility
    return evidence, [configuration(stage, row.setting, row.protection, client, sizes[0], utility)]


def _path(trial: Trial, store: Store) -> Straightness | None:
    measured = result(trial, store)
    return None if measured is None else measured.path


def result(trial: Trial, store: Store) -> Result | None:
    """The numbers of a trial that is finished and whole."""
    return load_result(store, trial.id) if store.sound(trial.id) else None


def found(store: Store, trial: str) -> Reconstruction:
    """What the attack of a finished trial found."""
    if store.folder is not None:
        return Reconstruction.load(store.folder / "trials" / trial / FOUND)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FOUND).write_bytes(store.read(trial, FOUND))
        return Reconstruction.load(Path(folder) / FOUND)


def _each(names: Iterable[str]) -> str:
    """All different names, in order."""
    return ", ".join(dict.fromkeys(names))
