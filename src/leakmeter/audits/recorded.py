"""Audits updates recorded from a real federation, with or without the truth."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, field_validator

from leakmeter import data
from leakmeter.attacks.attack import RunOptions
from leakmeter.attacks.replay import replay_score
from leakmeter.audits.captured import completed, network
from leakmeter.audits.parts import NONE, AttackPart
from leakmeter.audits.plan import Plan, Planned, PlannedAttack, PlannedConfiguration
from leakmeter.audits.trials import AttackOutcome, finished
from leakmeter.data import Dataset
from leakmeter.errors import LeakmeterError
from leakmeter.execution import Context, Done, Trial
from leakmeter.execution.executors import Cache
from leakmeter.federated import sent_bytes
from leakmeter.federated.local import behavior
from leakmeter.judge import Configuration, Truth
from leakmeter.judge.evidence import count_parameters
from leakmeter.measure import score, signal_free
from leakmeter.update import Update

NEAR = 1.5 / 255
"""Images that differ by no more than this in any pixel count as the same."""

STARTS = (0, 1)
"""Seeds of the two attempts that are compared where there is no truth."""


class RecordedAudit(BaseModel):
    """Which recorded updates to attack, and how.

    Attributes:
        folder: of the records: ``*.safetensors`` in it, or in its folders, which stand for rounds.
        model: a built-in network or ``package.module:factory``.
        attack: the attack tried on every update.
        truth: folder of the clients' data, or ``None``: ``client-3.npz`` for every record
            ``client-3.safetensors``, in a folder of the same name or directly.
        distractors: a data set for the line-ups; by default the other clients' images.
        known: fields of the protocol that the records lack.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path
    model: str
    attack: AttackPart = AttackPart(name="auto")
    truth: Path | None = None
    distractors: str | None = None
    known: dict[str, Any] = {}

    @field_validator("attack")
    @classmethod
    def _only_what_is_recorded(cls, attack: AttackPart) -> AttackPart:
        if attack.labels == "known" or not attack.aware:
            raise ValueError("a recorded update says what is known: take labels and aware out")
        return attack

    @field_validator("folder", "truth")
    @classmethod
    def _from_anywhere(cls, path: Path | None) -> Path | None:
        """Make paths absolute: a report may be written from another folder than the audit."""
        return None if path is None else path.absolute()

    def files(self) -> list[Path]:
        """Return the records, checked as far as possible without reading them."""
        files = sorted(self.folder.glob("*.safetensors")) + sorted(
            self.folder.glob("*/*.safetensors")
        )
        if not files:
            raise LeakmeterError(
                f"{self.folder} has no recorded updates: give the folder that the recorder wrote"
            )
        if self.truth is not None and not self.truth.is_dir():
            raise LeakmeterError(
                f"--truth {self.truth} is no folder: give the one of the .npz files"
            )
        for file in files:
            self.truth_of(file)
        return files

    def truth_of(self, file: Path) -> Path | None:
        """Return the file of what the client of one record had."""
        if self.truth is None:
            return None
        name = f"{file.stem}.npz"
        places = [self.truth / file.parent.name / name, self.truth / name]
        for place in places:
            if place.is_file():
                return place
        raise LeakmeterError(
            f"--truth: there is no {name} in {self.truth}, nor in {places[0].parent}: "
            "write the client's images and labels there by numpy.savez"
        )


@dataclass(frozen=True, eq=False)
class RecordedUpdate:
    """A recorded update.

    Attributes:
        update: the update, with what the user adds to its protocol.
        model: the network.
    """

    update: Update
    model: torch.nn.Module


@dataclass(frozen=True)
class RecordedSource:
    """Where an update is read from; workers cache the update under this key.

    Attributes:
        file: the file of the record.
        model: name of the network.
        known: fields of the protocol that the record lacks.
    """

    file: Path
    model: str
    known: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, eq=False)
class AttackRecord:
    """Attack a recorded update, or noise of the same size, and measure what can be measured.

    Attributes:
        asked: the audit that was asked for.
        file: the file of the record.
        update: digest of the update.
        seed: the seed of the attempt.
        noise: whether noise replaces the update.
    """

    asked: RecordedAudit
    file: Path
    update: str
    seed: int
    noise: bool

    def do(self, context: Context) -> Done:
        """Attack it."""
        cache = context.worker.cache
        record = cache.get(read, _source(self.asked, self.file), most=4)
        if record.update.fingerprint() != self.update:
            raise LeakmeterError(f"{self.file} has changed meanwhile: run the audit again")
        target = signal_free(record.update, 0) if self.noise else record.update
        options = RunOptions(
            seed=self.seed,
            on_progress=context.progress,
            paused=context.worker.paused,
            folder=context.scratch,
            compiling="never",
        )
        found = self.asked.attack.build().attempt(record.model, target, options)
        numbers: dict[str, Any] = {}
        truth = None
        place = self.asked.truth_of(self.file)
        if place is not None:
            had, others = truth_of(cache, self.asked, place)
            truth = None if self.noise else Truth(had.images, had.labels)
            scores, chance = score(found, had.images, had.labels, others.images, others.labels)
            numbers = {"scores": scores, "chance": chance}
        with contextlib.suppress(LeakmeterError):  # what is not known about the client
            numbers["replay"] = replay_score(record.model, target, found)
        size = sent_bytes(record.update)
        outcome = AttackOutcome(protocol=target.protocol, bytes_sent=size, **numbers)
        return finished(context, outcome, found, truth)


def plan_recorded(asked: RecordedAudit, cache: Cache, command: str = "") -> Planned:
    """Plan the trials for every record; refuse what cannot be done."""
    files = asked.files()
    counts: dict[Path, int] = {}
    attacks: list[PlannedAttack] = []
    trials: dict[str, Trial] = {}
    parameters, names = 0, set()
    for file in files:
        number = counts[file.parent] = counts.get(file.parent, -1) + 1
        record = cache.get(read, _source(asked, file), most=4)
        parameters = parameters or count_parameters(record.model)
        place = asked.truth_of(file)
        if place is not None:
            names.add(cache.get(images, f"npz:{place}", None, most=64).class_names)
        own = _trials(asked, file, number, record, cache)
        trials |= {trial.id: trial for trial in own}
        first, *again, baseline = own
        attacks.append(
            PlannedAttack(
                configuration=("" if file.parent == asked.folder else file.parent.name) or NONE,
                attack=asked.attack.label,
                recipe=asked.attack.name,
                client=number,
                shares="weights" if record.update.gradient is None else "gradient",
                trial=first.id,
                baseline=baseline.id,
                again=tuple(trial.id for trial in again),
            )
        )
    rows = dict.fromkeys(each.configuration for each in attacks)
    plan = Plan(
        title=f"Updates recorded in {asked.folder.name}",
        command=command,
        model=asked.model,
        parameters=parameters,
        data=f"{len(files)} recorded updates",
        class_names=names.pop() if len(names) == 1 else (),
        configurations=tuple(
            PlannedConfiguration(configuration=Configuration(setting="" if row == NONE else row))
            for row in rows
        ),
        attacks=tuple(attacks),
    )
    return Planned(plan, [trials[name] for name in plan.trials])


def _trials(
    asked: RecordedAudit, file: Path, number: int, record: RecordedUpdate, cache: Cache
) -> list[Trial]:
    """Return one attempt, or two if there is no truth, and then the first one on noise."""
    update, place, truth = record.update, asked.truth_of(file), None
    if place is not None:
        had, others = truth_of(cache, asked, place)
        _check_truth(place, had, others, update)
        truth = [had.fingerprint, others.fingerprint]
    fingerprint, name = update.fingerprint(), asked.attack.name
    spec = {
        "update": fingerprint,
        "examples": update.num_examples,
        "network": behavior(record.model, update.protocol.need("input_shape").input_shape),
        "attack": asked.attack.model_dump(mode="json", exclude={"label"}),
        "truth": truth,
    }
    words = f"{file.parent.name}/{file.stem}: {asked.attack.label}"

    def trial(seed: int, noise: bool) -> Trial:
        kind = "baseline" if noise else "attack"
        return Trial(
            work=AttackRecord(asked, file, fingerprint, seed, noise),
            spec={"kind": kind, "seed": seed, **spec},
            name=f"{name}-baseline" if noise else name,
            words=words + (f", start {seed}" if seed else "") + (", baseline" if noise else ""),
            repeat=number,
            # Clients of a model differ only in how many examples they have.
            alike=f"{kind} {update.num_examples}",
        )

    seeds = STARTS if truth is None else STARTS[:1]
    return [*(trial(seed, noise=False) for seed in seeds), trial(STARTS[0], noise=True)]


def _check_truth(place: Path, had: Dataset, others: Dataset, update: Update) -> None:
    shape = (update.num_examples, *(update.protocol.input_shape or ()))
    if tuple(had.images.shape) != shape:
        raise LeakmeterError(
            f"{place}: its images have shape {tuple(had.images.shape)}, the update is of {shape}"
        )
    if len(others) == 0:
        raise LeakmeterError(
            "--truth: line-ups need other images than those of the only client: "
            "name a data set by --distractors"
        )


_NEEDED = {
    "input_shape": "3,32,32",
    "classes": "10",
    "normalize": "none (or a data set's name, or 0.5,0.5,0.5:0.2,0.2,0.2)",
}
"""Fields that every attack needs, and examples of their values."""


def _source(asked: RecordedAudit, file: Path) -> RecordedSource:
    known = tuple((name, _frozen(value)) for name, value in sorted(asked.known.items()))
    return RecordedSource(file, asked.model, known)


def _frozen(value: Any) -> Any:
    """Lists as tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def read(cache: Cache, source: RecordedSource) -> RecordedUpdate:
    """Read a record, with what the user adds to its protocol, and the network."""
    update = completed(Update.load(source.file), dict(source.known))
    protocol = update.protocol
    for field, like in _NEEDED.items():
        if getattr(protocol, field) is None:
            raise LeakmeterError(f"{source.file} does not say {field}: add --known {field}={like}")
    model = network(source.model, protocol)
    update.check(model)
    return RecordedUpdate(update, model)


def truth_of(cache: Cache, asked: RecordedAudit, place: Path) -> tuple[Dataset, Dataset]:
    """Return what a client had, and images that it did not have for the line-ups."""
    had = cache.get(images, f"npz:{place}", None, most=64)
    _, height, width = had.shape
    if asked.distractors is not None:
        others = cache.get(images, asked.distractors, height, most=64)
    else:
        others = cache.get(everything, asked.truth or place.parent, (height, width), most=1)
    if others.shape != had.shape:
        raise LeakmeterError(
            f"--distractors: images of shape {others.shape} are no line-up for {had.shape}"
        )
    # Images that were stored as bytes may differ by rounding.
    far = [bool((had.images - image).abs().amax((1, 2, 3)).min() > NEAR) for image in others.images]
    return had, others.select([index for index, away in enumerate(far) if away])


def images(cache: Cache, source: str, size: int | None) -> Dataset:
    """Load a data set."""
    return data.load(source, size=size)


def everything(cache: Cache, folder: Path, size: tuple[int, int]) -> Dataset:
    """Return the images of all clients."""
    files = sorted(folder.rglob("*.npz"))
    found = [cache.get(images, f"npz:{file}", None, most=64) for file in files]
    parts = [part for part in found if part.shape[1:] == size]
    pixels, labels = (torch.cat([getattr(p, name) for p in parts]) for name in ("images", "labels"))
    return Dataset("all clients", pixels, labels, max((p.class_names for p in parts), key=len))
