"""Plans what an audit has to do and describes that in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from leakmeter.audits.parts import AttackPart, Protection, UtilityPart
from leakmeter.audits.scenario import Scenario
from leakmeter.audits.setting import Defenses, Setting, Stage, stage
from leakmeter.audits.trials import AttackClient, AttackNoise, MeasurePath, MeasureUtility
from leakmeter.audits.utility import check_utility
from leakmeter.errors import LeakmeterError
from leakmeter.execution import Trial
from leakmeter.execution.executors import Cache
from leakmeter.execution.store import Store
from leakmeter.federated import Client
from leakmeter.federated.local import behavior
from leakmeter.judge import Configuration
from leakmeter.judge.evidence import count_parameters
from leakmeter.state import file_digest

Settings = Sequence[tuple[str, Scenario]]
"""Scenarios with nothing left to vary, each with what it is called."""

FILE = "plan.json"


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class PlannedAttack(_Stored):
    """One attack on one client.

    Attributes:
        configuration: label of the configuration in which the client trains and sends.
        attack: what the report calls the attack.
        recipe: the name of its recipe.
        client: number of the client.
        shares: ``weights`` or ``gradient``: what the client sends.
        trial: id of the attack's trial.
        baseline: id of the same attack on noise.
        again: ids of further attempts from other starts.
        path: id of the measurement of the client's path, if there is one.
    """

    configuration: str
    attack: str
    recipe: str
    client: int
    shares: Literal["weights", "gradient"]
    trial: str
    baseline: str
    again: tuple[str, ...] = ()
    path: str | None = None

    @property
    def attempts(self) -> tuple[str, ...]:
        """Return the ids of all trials that must be finished for this attack to count."""
        return (self.trial, *self.again, self.baseline)


class PlannedConfiguration(_Stored):
    """One way in which clients train and send.

    Attributes:
        configuration: everything known about it before it is tried.
        utility: id of the utility measurement, if there is one.
    """

    configuration: Configuration
    utility: str | None = None


class Plan(_Stored):
    """Everything besides the trials that is needed to read an audit without its data or model.

    Attributes:
        format: the file's format; the first one was ``plan.jsonl`` (see ``audits/legacy.py``).
        title: the title of the report.
        command: the command that made the folder.
        model: name of the network.
        parameters: how many numbers it holds; 0 if unknown.
        data: name of the data.
        class_names: names of the classes; may be empty.
        scenario: the resolved scenario as YAML, or empty.
        configurations: all configurations, in order.
        attacks: all attacks, in order.
    """

    format: Literal[2] = 2
    title: str
    command: str
    model: str
    parameters: int
    data: str
    class_names: tuple[str, ...] = ()
    scenario: str = ""
    configurations: tuple[PlannedConfiguration, ...]
    attacks: tuple[PlannedAttack, ...]

    @property
    def trials(self) -> list[str]:
        """Return the ids of all trials, each once."""
        found: list[str | None] = [each.utility for each in self.configurations]
        for attack in self.attacks:
            found += [attack.path, *attack.attempts]
        return list(dict.fromkeys(name for name in found if name is not None))

    def save(self, store: Store) -> None:
        """Write it."""
        store.write(FILE, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, store: Store) -> Self:
        """Read it; :class:`FileNotFoundError` if there is none."""
        try:
            content = json.loads(store.text(FILE))
            return cls.model_validate(content)
        except (ValueError, ValidationError) as error:
            raise LeakmeterError(f"{store.name}/{FILE} cannot be read: {error}") from None


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan and its trials.

    Attributes:
        plan: the plan, as stored in the folder.
        trials: all trials, each once.
    """

    plan: Plan
    trials: list[Trial]


def plan(scenario: Scenario, settings: Settings, cache: Cache, command: str = "") -> Planned:
    """Plan the work for all ``settings``; refuse what cannot be done.

    Args:
        scenario: the scenario that the settings derive from, for the record.
        settings: scenarios with nothing left to vary, each with its name.
        cache: holds what is made along the way.
        command: the command line, for the record.
    """
    several = sum(len(each.defenses) for _, each in settings) > 1
    configurations: list[PlannedConfiguration] = []
    attacks: list[PlannedAttack] = []
    trials: dict[str, Trial] = {}
    names, parameters = set(), 0
    for told, each in settings:
        setting = Setting.of(each)
        on = cache.get(stage, setting)
        names.add(on.dataset.class_names)
        parameters = parameters or count_parameters(on.fresh_network)
        for protection in each.defenses:
            row = _Row(told, each, setting, protection, on, not several)
            row.check()
            configurations.append(row.configuration())
            attacks += row.attacks()
            trials = {trial.id: trial for trial in row.trials} | trials
    found = Plan(
        title=scenario.name,
        command=command,
        model=_each(each.model.name for _, each in settings),
        parameters=parameters,
        data=_each(each.data.source for _, each in settings),
        class_names=names.pop() if len(names) == 1 else (),
        scenario=scenario.dump(),
        configurations=tuple(configurations),
        attacks=tuple(attacks),
    )
    return Planned(found, [trials[name] for name in found.trials])


def _each(names: Iterable[str]) -> str:
    """List all distinct names, in order."""
    return ", ".join(dict.fromkeys(names))


class _Row:
    """One configuration: its clients are attacked in the same way."""

    def __init__(
        self,
        told: str,
        scenario: Scenario,
        setting: Setting,
        protection: Protection,
        on: Stage,
        alone: bool,
    ) -> None:
        self.told, self.scenario, self.setting, self.on = told, scenario, setting, on
        self.protection, self.defenses = protection, protection.build()
        self.victims = on.victims(on.fresh_network, self.defenses, 0).clients
        self.label = Configuration(setting=told, defense=protection.label).label
        self.walked = alone and setting.client.shares == "weights"
        self.common = self._common()
        numbers = range(setting.client.count)
        self.paths = [self._path(n) for n in numbers] if self.walked else []
        self.pairs = [
            (part, self._attack(n, part), self._baseline(n, part))
            for n in numbers
            for part in scenario.attacks
        ]
        self.utility = None if scenario.utility is None else self._utility(scenario.utility)

    @property
    def trials(self) -> list[Trial]:
        """All of them."""
        alone = [] if self.utility is None else [self.utility]
        return [*alone, *self.paths, *(trial for pair in self.pairs for trial in pair[1:])]

    def check(self) -> None:
        """Refuse what cannot be done."""
        self.on.check(self.defenses)
        if self.scenario.utility is not None:
            check_utility(self.on, self.scenario.utility)

    def configuration(self) -> PlannedConfiguration:
        """Return the configuration, for the folder."""
        utility = self.scenario.utility
        found = described(
            self.told,
            self.protection,
            aware=any(attack.aware for attack in self.scenario.attacks),
            client=self.victims[0],
            rounds=1 if utility is None else utility.rounds,
        )
        return PlannedConfiguration(
            configuration=found, utility=None if self.utility is None else self.utility.id
        )

    def attacks(self) -> list[PlannedAttack]:
        """Return the planned attacks, for the folder."""
        paths = {path.repeat: path.id for path in self.paths}
        return [
            PlannedAttack(
                configuration=self.label,
                attack=part.label,
                recipe=part.name,
                client=attack.repeat,
                shares=self.setting.client.shares,
                trial=attack.id,
                baseline=baseline.id,
                path=paths.get(attack.repeat),
            )
            for part, attack, baseline in self.pairs
        ]

    def _common(self) -> dict[str, Any]:
        """Return what all results depend on."""
        setting, weights = self.setting, self.setting.lpips
        return {
            "images": self.on.dataset.fingerprint,
            "network": behavior(self.victims[0].model, self.on.dataset.shape),
            "lpips": None if weights is None else file_digest(weights),
            "seed": setting.seed,
            "device": setting.device,
            "training": setting.client.model_dump(mode="json"),
            "federation": setting.federation and setting.federation.model_dump(mode="json"),
        }

    def _attack(self, client: int, part: AttackPart) -> Trial:
        work = AttackClient(*self._whose(client), part, self.scenario.compiling)
        told = part.model_dump(mode="json", exclude={"label"})
        own = {"kind": "attack", "compiling": self.scenario.compiling, "attack": told}
        return self._trial(work, part.name, f"{part.label}, client {client}", own)

    def _baseline(self, client: int, part: AttackPart) -> Trial:
        """Make a baseline trial; it knows no defense, so several configurations share it."""
        work = AttackNoise(*self._whose(client), part, self.scenario.compiling)
        told = part.model_dump(mode="json", exclude={"label", "aware"})
        own: dict[str, Any] = {"kind": "baseline", "clients": len(self.victims), "defenses": None}
        own |= {"compiling": self.scenario.compiling, "attack": told}
        name, words = f"{part.name}-baseline", f"{part.label}, client {client}, baseline"
        return self._trial(work, name, words, own)

    def _utility(self, part: UtilityPart) -> Trial:
        own = {"kind": "utility", "utility": part.model_dump(mode="json")}
        return self._trial(MeasureUtility(*self._whose(0), part), "utility", "accuracy", own)

    def _path(self, client: int) -> Trial:
        work = MeasurePath(*self._whose(client))
        return self._trial(work, "path", f"path, client {client}", {"kind": "path"})

    def _whose(self, client: int) -> tuple[Setting, str, Defenses, int, bool]:
        return self.setting, self.common["images"], self.defenses, client, self.walked

    def _trial(self, work: Any, name: str, words: str, own: dict[str, Any]) -> Trial:
        defenses = [part.model_dump(mode="json") for part in self.protection.parts]
        shared = {**self.common, "defenses": defenses, **own}
        places = [text for text in (self.told, self.protection.label) if text not in ("", "none")]
        # Neither the client nor the initial weights change the cost.
        cost = {key: shared[key] for key in shared.keys() - {"network", "seed"}}
        return Trial(
            work=work,
            spec={"client": work.client, **shared},
            name=name,
            words=f"{'; '.join(places)}: {words}" if places else words,
            repeat=work.client,
            alike=json.dumps([self.setting.model.name, cost], sort_keys=True),
        )


def described(
    told: str, protection: Protection, *, aware: bool, client: Client | None, rounds: int
) -> Configuration:
    """Describe one configuration, as far as it is known before any work starts.

    Args:
        told: the description of the varied values.
        protection: what clients do against leakage.
        aware: whether any attack uses what it knows about that.
        client: one of the clients, to compute guarantees; ``None`` if none is available anymore.
        rounds: the number of rounds that a guarantee is to cover.
    """
    defenses, names = protection.build(), [part.name for part in protection.parts]
    proven = []
    if client is not None:
        proven = [d.guarantee(client.protocol, len(client.images), rounds) for d in defenses]
    return Configuration(
        setting=told,
        defense=protection.label,
        parts=tuple(names),
        known=tuple(defense.known for defense in defenses),
        adaptive=tuple(each.adaptive for each in defenses if each.adaptive and aware),
        ignored=tuple(
            name
            for name, each in zip(names, defenses, strict=True)
            if not (each.adaptive and aware)
        ),
        guarantee=next((each for each in proven if each is not None), None),
        rounds=rounds,
    )
