"""Everything an audit has to do: each trial with all that its result depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import leakscope
from leakscope.audit.scenario import AttackPart, Protection, Scenario
from leakscope.audit.simulated import Simulated
from leakscope.audit.stage import Stage
from leakscope.audit.trial import Kind, Trial
from leakscope.audit.utility import check_utility
from leakscope.federated.local import behaviour

Settings = Sequence[tuple[str, Scenario]]
"""Scenarios with nothing left to vary, each with what it is called."""


@dataclass(frozen=True, eq=False)
class Row:
    """One configuration: its clients are attacked in the same way.

    Attributes:
        setting: what its varied values are called.
        scenario: of the setting.
        protection: what its clients do against leakage.
        pairs: every attack on every client with its baseline.
        paths: of the clients, if they are measured.
        utility: the measurement of what can be learned, if there is one.
    """

    setting: str
    scenario: Scenario
    protection: Protection
    pairs: tuple[tuple[Simulated, Simulated], ...]
    paths: tuple[Simulated, ...]
    utility: Simulated | None

    @property
    def trials(self) -> list[Trial]:
        """All of them, the order telling nothing."""
        alone = [] if self.utility is None else [self.utility]
        return [*alone, *self.paths, *(trial for pair in self.pairs for trial in pair)]


def plan(settings: Settings) -> list[Row]:
    """What must be done for all ``settings``; what cannot be done is refused.

    Only one setting at a time is held in memory.
    """
    several = sum(len(scenario.defences) for _, scenario in settings) > 1
    rows = []
    for setting, scenario in settings:
        stage = Stage.of(scenario)
        stage.check()
        if scenario.utility is not None:
            check_utility(stage, scenario.utility)
        rows += [_row(stage, setting, each, several) for each in scenario.defences]
    return rows


def distinct(rows: Sequence[Row]) -> list[Trial]:
    """All trials; what several configurations share comes once."""
    found: dict[str, Trial] = {}
    for row in rows:
        for trial in row.trials:
            found.setdefault(trial.id, trial)
    return list(found.values())


def written(rows: Sequence[Row]) -> str:
    """The plan as text, a line of JSON per attack on a client, for those who have no data."""
    lines = []
    for row in rows:
        for attack, baseline in row.pairs:
            assert attack.attack is not None
            entry = {
                "trial": attack.id,
                "baseline": baseline.id,
                "setting": row.setting,
                "defence": row.protection.label,
                "attack": attack.attack.label,
                "client": attack.client,
            }
            lines.append(json.dumps(entry))
        others = [*row.paths, *([] if row.utility is None else [row.utility])]
        lines += [json.dumps({"trial": other.id}) for other in others]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, eq=False)
class _Identity:
    """What the trials of one configuration depend on."""

    stage: Stage
    setting: str
    protection: Protection
    common: dict[str, Any]
    plain: dict[str, Any]

    def trial(
        self, kind: Kind, client: int, part: AttackPart | None = None, **more: Any
    ) -> Simulated:
        # A baseline knows of no defence, but of the network that a defence has changed.
        defences = [part.model_dump(mode="json") for part in self.protection.parts]
        own = self.plain if kind == "baseline" else {"defences": defences}
        spec = {"kind": kind, "number": client, **self.common, **own, **more}
        scenario = self.stage.scenario
        return Simulated(kind, spec, client, scenario, self.protection, part, self.setting)


def _row(stage: Stage, setting: str, protection: Protection, several: bool) -> Row:
    scenario, identity = stage.scenario, _identity(stage, setting, protection)
    numbers = range(scenario.client.count)
    pairs = []
    for client in numbers:
        for part in scenario.attacks:
            told = part.model_dump(mode="json", exclude={"label"})
            blind = part.model_dump(mode="json", exclude={"label", "aware"})
            pairs.append(
                (
                    identity.trial("attack", client, part, attack=told),
                    identity.trial("baseline", client, part, attack=blind),
                )
            )
    straight = not several and scenario.client.shares == "weights"
    paths = [identity.trial("path", client) for client in numbers] if straight else []
    utility = None
    if scenario.utility is not None:
        utility = identity.trial("utility", 0, utility=scenario.utility.model_dump(mode="json"))
    return Row(setting, scenario, protection, tuple(pairs), tuple(paths), utility)


def _identity(stage: Stage, setting: str, protection: Protection) -> _Identity:
    scenario = stage.scenario
    victims = stage.victims(stage.fresh_network, protection, 0)
    weights = None
    if scenario.lpips is not None:
        weights = hashlib.sha256(scenario.lpips.read_bytes()).hexdigest()
    common = {
        "leakscope": leakscope.__version__,
        "images": stage.dataset.fingerprint,
        "network": behaviour(victims.clients[0].model, stage.dataset.shape),
        "lpips": weights,
        **scenario.model_dump(
            mode="json", include={"seed", "device", "compiling", "client", "federation"}
        ),
    }
    return _Identity(stage, setting, protection, common, {"clients": len(victims.clients)})
