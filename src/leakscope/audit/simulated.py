"""Trials on clients that a scenario describes: trained here, attacked, and measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from leakscope.attack.solver import Progress
from leakscope.audit.scenario import AttackPart, Protection, Scenario
from leakscope.audit.stage import Stage, Victims, load, without_match
from leakscope.audit.trial import FOUND, Done, Kind, Result, Trial
from leakscope.audit.utility import measured_utility
from leakscope.errors import LeakscopeError
from leakscope.federated import sent_bytes
from leakscope.measure import score, signal_free, straightness
from leakscope.update import Update

UNAWARE: dict[str, Any] = {"sparse": False, "bits": None, "distorted": ()}
"""What the protocol says to an attack that does not know how updates are sent."""


@dataclass(frozen=True, eq=False)
class Simulated(Trial):
    """A trial of a scenario.

    Attributes:
        scenario: of its setting, with nothing left to vary.
        protection: what the clients do against leakage.
        attack: which, if it is one.
        setting: what the varied values are called.
    """

    scenario: Scenario
    protection: Protection
    attack: AttackPart | None = None
    setting: str = ""

    @property
    def name(self) -> str:
        """The attack, or what else is done."""
        if self.attack is None:
            return self.kind
        return f"{self.attack.name}-baseline" if self.kind == "baseline" else self.attack.name

    @property
    def words(self) -> str:
        """What a person would call it."""
        what = "accuracy" if self.attack is None else self.attack.label
        what = "path" if self.kind == "path" else what
        where = [text for text in (self.setting, self.protection.label) if text not in ("", "none")]
        who = f"{what}, client {self.client}" if self.kind != "utility" else what
        text = f"{'; '.join(where)}: {who}" if where else who
        return f"{text}, baseline" if self.kind == "baseline" else text

    @cached_property
    def alike(self) -> str:
        """Neither the client nor the initial weights change what it costs."""
        spec = {key: self.spec[key] for key in self.spec.keys() - {"number", "network", "seed"}}
        return json.dumps([self.scenario.model.name, spec], sort_keys=True)

    def do(self, scratch: Path, progress: Progress) -> Done:
        """Attack, train or measure."""
        return KINDS[self.kind](self, scratch, progress)


def _attack(trial: Simulated, scratch: Path, progress: Progress) -> Done:
    """Attack what the client sent, or noise of the same size, and measure what comes out."""
    assert trial.attack is not None
    stage, part = _stage(trial), trial.attack
    victims, update, size = _sent(trial)
    if trial.kind == "baseline":
        plain = stage.update(victims.undefended())
        target = signal_free(plain, trial.scenario.seed)
    elif part.aware:
        target = update
    else:
        target = replace(update, protocol=update.protocol.model_copy(update=UNAWARE))
    found = part.build().run(
        victims.clients[0].model,
        target,
        labels=victims.truth.labels if part.labels == "known" else None,
        seed=trial.scenario.seed,
        on_progress=progress,
        checkpoint=scratch / "attack.checkpoint",
        compiling=trial.scenario.compiling,
    )
    truth, pool = victims.truth, victims.line_ups
    scores, chance = score(found, truth.images, truth.labels, pool.images, pool.labels, stage.lpips)
    found.save(scratch / FOUND)
    result = Result(
        scores=scores,
        chance=chance,
        protocol=target.protocol,
        bytes_sent=None if trial.kind == "baseline" else size,
        seconds=found.seconds,
    )
    return result, {FOUND: scratch / FOUND}


def _utility(trial: Simulated, scratch: Path, progress: Progress) -> Done:
    """What a network learns from such clients."""
    assert trial.scenario.utility is not None
    follow, part = without_match(progress), trial.scenario.utility
    return Result(utility=measured_utility(_stage(trial), trial.protection, part, follow)), {}


def _path(trial: Simulated, scratch: Path, progress: Progress) -> Done:
    """How straight the client's path was."""
    victims, _, _ = _sent(trial)
    return Result(path=straightness(victims.clients[0], without_match(progress))), {}


KINDS: dict[Kind, Callable[[Simulated, Path, Progress], Done]] = {
    "attack": _attack,
    "baseline": _attack,
    "utility": _utility,
    "path": _path,
}
"""How a trial of each kind is done."""


def _stage(trial: Simulated) -> Stage:
    """Its setting, which other trials share."""
    stage = _read_stage(trial.scenario.model_dump_json())
    if stage.dataset.fingerprint != trial.spec["images"]:
        raise LeakscopeError("data.source: the images have changed meanwhile: run the audit again")
    return stage


def _sent(trial: Simulated) -> tuple[Victims, Update, int]:
    """Clients, what the server sees of them, and how many bytes one of them sends."""
    scenario, protection = trial.scenario.model_dump_json(), trial.protection.model_dump_json()
    return _trained(scenario, protection, trial.client)


@lru_cache(maxsize=2)
def _read_stage(scenario: str) -> Stage:
    return Stage.of(Scenario.model_validate_json(scenario))


@lru_cache(maxsize=4)
def _trained(scenario: str, protection: str, client: int) -> tuple[Victims, Update, int]:
    stage = _read_stage(scenario)
    victims = stage.victims(stage.network(), Protection.model_validate_json(protection), client)
    update = stage.update(victims)
    own = update if len(victims.clients) == 1 else stage.sent(victims.clients[0])
    return victims, update, sent_bytes(own)


def forget() -> None:
    """Read everything anew: files may have changed since the last audit in this process."""
    load.cache_clear()
    _read_stage.cache_clear()
    _trained.cache_clear()
