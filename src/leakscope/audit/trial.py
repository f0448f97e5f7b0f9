"""One trial: a piece of work that depends on no other, known by everything it depends on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict

from leakscope.attack.solver import Progress
from leakscope.audit.evidence import Utility, now, versions
from leakscope.audit.memory import at_most, fresh_peak, is_shortage, peak_memory
from leakscope.audit.scenario import AttackPart, Protection, Scenario
from leakscope.audit.stage import Stage, Victims, load, without_match
from leakscope.audit.store import Store
from leakscope.audit.utility import measured_utility
from leakscope.errors import LeakscopeError, StorageError
from leakscope.federated import sent_bytes
from leakscope.measure import Scores, Straightness, score, signal_free, straightness
from leakscope.update import Protocol, Update

Kind = Literal["attack", "baseline", "utility", "path"]

SPEC, RESULT, FOUND = "spec.json", "result.json", "reconstruction.safetensors"
"""The files of a trial: what was asked for, the numbers, and what an attack found."""

UNAWARE: dict[str, Any] = {"sparse": False, "bits": None, "distorted": ()}
"""What the protocol says to an attack that does not know how updates are sent."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One attack on one client, its no-update baseline, or a measurement that comes with them.

    Attributes:
        kind: what is done.
        scenario: of its setting, with nothing left to vary.
        protection: what the clients do against leakage.
        spec: everything that the result depends on, with every default filled in.
        attack: which, if it is one.
        client: number of the client under attack.
        setting: what the varied values are called.
    """

    kind: Kind
    scenario: Scenario
    protection: Protection
    spec: dict[str, Any]
    attack: AttackPart | None = None
    client: int = 0
    setting: str = ""

    @property
    def id(self) -> str:
        """Name of its folder: two trials have the same one exactly if they do the same."""
        text = json.dumps(self.spec, sort_keys=True)
        words = [self.kind] if self.attack is None else [self.attack.name]
        words += [] if self.kind != "baseline" else [self.kind]
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        return "-".join([*words, f"{self.client:03d}", key])

    @property
    def words(self) -> str:
        """What a person would call it."""
        what = "accuracy" if self.attack is None else self.attack.label
        what = "path" if self.kind == "path" else what
        where = [text for text in (self.setting, self.protection.label) if text not in ("", "none")]
        who = f"{what}, client {self.client}" if self.kind != "utility" else what
        text = f"{'; '.join(where)}: {who}" if where else who
        return f"{text}, baseline" if self.kind == "baseline" else text


class Result(BaseModel):
    """The numbers of a finished trial.

    Attributes:
        scores: of an attack or a baseline.
        chance: re-identification rate of a blind guess.
        protocol: what the attack was told about the client.
        bytes_sent: by one client.
        utility: what can be learned from such clients.
        path: how straight a client's was.
        seconds: that the trial took, with all attempts that led to it.
        memory: the most that its process held, in bytes.
        environment: what the last bits depend on besides the spec, when and where.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    scores: Scores | None = None
    chance: float | None = None
    protocol: Protocol | None = None
    bytes_sent: int | None = None
    utility: Utility | None = None
    path: Straightness | None = None
    seconds: float = 0.0
    memory: int = 0
    environment: dict[str, str] = {}


@dataclass(frozen=True)
class Job:
    """A trial to be done, in whatever process.

    Attributes:
        trial: what to do.
        out: where the result goes.
        folder: that relative paths in the scenario start from.
        memory: bytes that its process may hold, or ``None`` for all there are.
        estimate: seconds that it is expected to take, or ``None``.
    """

    trial: Trial
    out: str
    folder: str = field(default_factory=os.getcwd)
    memory: int | None = None
    estimate: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a job; the result itself is in the store.

    Attributes:
        state: ``found`` in the store, where another process left it; ``short`` of memory; ``taken``
            by another process; ``unwritable`` is a store that takes nothing more.
        error: why it is not done.
        psnr: of every image, if there are any [dB].
        seconds: that it took.
        memory: the most that its process held, in bytes.
    """

    state: Literal["done", "found", "failed", "short", "taken", "unwritable"]
    error: str = ""
    psnr: tuple[float, ...] = ()
    seconds: float = 0.0
    memory: int = 0


def perform(job: Job, progress: Progress) -> Outcome:
    """Do a trial and store it; whatever goes wrong in it is its outcome and stops no other."""
    store, trial = Store(job.out), job.trial
    try:
        with contextlib.chdir(job.folder), store.claim(trial.id) as ours, at_most(job.memory):
            if not ours:
                return Outcome("taken")
            if store.sound(trial.id):  # somebody else has done it meanwhile
                return replace(_outcome(load_result(store, trial.id)), state="found")
            return _outcome(_done(store, trial, progress))
    except StorageError as error:
        return Outcome("unwritable", str(error))
    except Exception as error:
        return _failed(store, trial, error)


def _done(store: Store, trial: Trial, progress: Progress) -> Result:
    """Do a trial and store it."""
    scratch = store.scratch(trial.id)
    began, _ = time.perf_counter(), fresh_peak()
    result, files = KINDS[trial.kind](trial, scratch, progress)
    result = result.model_copy(
        update={
            "seconds": result.seconds or time.perf_counter() - began,
            "memory": peak_memory(),
            "environment": versions()
            | {"threads": str(torch.get_num_threads()), "host": platform.node(), "date": now()},
        }
    )
    texts = {SPEC: json.dumps(trial.spec, indent=2), RESULT: result.model_dump_json(indent=2)}
    for name, text in texts.items():
        files[name] = scratch / name
        try:
            files[name].write_text(text, encoding="utf-8")
        except OSError as error:
            raise StorageError(f"cannot write {files[name]}: {error.strerror}") from None
    store.publish(trial.id, files)
    return result


def _outcome(result: Result) -> Outcome:
    psnr = () if result.scores is None else tuple(result.scores.psnr)
    return Outcome("done", psnr=psnr, seconds=result.seconds, memory=result.memory)


def _failed(store: Store, trial: Trial, error: Exception) -> Outcome:
    """Keep why, if anything can be kept; with more memory it may not fail."""
    text = " ".join(str(error).split())
    if is_shortage(error):
        return Outcome("short", f"out of memory: use fewer examples or another machine ({text})")
    if not isinstance(error, LeakscopeError):
        text = f"{type(error).__name__}: {text}"
    try:
        keep_failure(store, trial, text)
    except StorageError as full:
        return Outcome("unwritable", str(full))
    return Outcome("failed", text)


def keep_failure(store: Store, trial: Trial, error: str) -> None:
    """Leave word of a trial that failed."""
    store.fail(trial.id, {"trial": trial.words, "error": error, "spec": trial.spec})


def load_result(store: Store, trial: str) -> Result:
    """The numbers of a finished trial."""
    return Result.model_validate_json(store.read(trial, RESULT))


Done = tuple[Result, dict[str, Path]]
"""A result and the files that belong to it, by name."""


def _attack(trial: Trial, scratch: Path, progress: Progress) -> Done:
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
        bytes_sent=size,
        seconds=found.seconds,
    )
    return result, {FOUND: scratch / FOUND}


def _utility(trial: Trial, scratch: Path, progress: Progress) -> Done:
    """What a network learns from such clients."""
    assert trial.scenario.utility is not None
    follow, part = without_match(progress), trial.scenario.utility
    return Result(utility=measured_utility(_stage(trial), trial.protection, part, follow)), {}


def _path(trial: Trial, scratch: Path, progress: Progress) -> Done:
    """How straight the client's path was."""
    victims, _, _ = _sent(trial)
    return Result(path=straightness(victims.clients[0], without_match(progress))), {}


KINDS: dict[Kind, Callable[[Trial, Path, Progress], Done]] = {
    "attack": _attack,
    "baseline": _attack,
    "utility": _utility,
    "path": _path,
}
"""How a trial of each kind is done."""


def _stage(trial: Trial) -> Stage:
    """Its setting, which other trials share."""
    stage = _read_stage(trial.scenario.model_dump_json())
    if stage.dataset.fingerprint != trial.spec["images"]:
        raise LeakscopeError("data.source: the images have changed meanwhile: run the audit again")
    return stage


def _sent(trial: Trial) -> tuple[Victims, Update, int]:
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
