"""Audits of updates that were recorded from a real federation, with the truth or without it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, field_validator

import leakscope
from leakscope import data, measure, models
from leakscope.attack.replay import replay_score
from leakscope.attack.solver import Progress
from leakscope.audit.captured import complete
from leakscope.audit.collect import failed, found, nothing_yet, result
from leakscope.audit.evidence import (
    Configuration,
    Evidence,
    Provenance,
    Truth,
    count_parameters,
)
from leakscope.audit.scenario import AttackPart
from leakscope.audit.store import Store
from leakscope.audit.trial import FOUND, Done, Result, Trial
from leakscope.data import Dataset
from leakscope.errors import LeakscopeError
from leakscope.federated import sent_bytes
from leakscope.federated.local import behaviour
from leakscope.measure import Finding, score, signal_free
from leakscope.update import Update

NEAR = 1.5 / 255
"""Images that differ by no more in any pixel are the same."""

STARTS = (0, 1)
"""Seeds of the two attempts that are compared where there is no truth."""


class Request(BaseModel):
    """Which recorded updates to attack, and how.

    Attributes:
        folder: of the records: ``*.safetensors`` in it, or in its folders, which stand for rounds.
        model: a built-in network or ``package.module:factory``.
        attack: what is tried on every update.
        truth: folder of what the clients had, or ``None``: ``client-3.npz`` for every record
            ``client-3.safetensors``, in a folder of the same name or directly.
        distractors: a data set for the line-ups; by default the other clients' images.
        known: fields of the protocol that the records do not say.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path
    model: str
    attack: AttackPart = AttackPart(name="auto")
    truth: Path | None = None
    distractors: str | None = None
    known: dict[str, Any] = {}

    @field_validator("folder", "truth")
    @classmethod
    def _from_anywhere(cls, path: Path | None) -> Path | None:
        """A report may be written from another folder than the audit."""
        return None if path is None else path.absolute()

    def records(self) -> list[Record]:
        """Every record with the trials that it takes; what cannot be done is refused."""
        files = sorted(self.folder.glob("*.safetensors")) + sorted(
            self.folder.glob("*/*.safetensors")
        )
        if not files:
            raise LeakscopeError(
                f"{self.folder} has no recorded updates: give the folder that the recorder wrote"
            )
        if self.truth is not None and not self.truth.is_dir():
            raise LeakscopeError(
                f"--truth {self.truth} is no folder: give the one of the .npz files"
            )
        for file in files:
            self.truth_of(file)
        counts: dict[Path, int] = {}
        found = []
        for file in files:
            number = counts[file.parent] = counts.get(file.parent, -1) + 1
            found.append(_record(self, file, number))
        return found

    def truth_of(self, file: Path) -> Path | None:
        """What the client of one record had."""
        if self.truth is None:
            return None
        name = f"{file.stem}.npz"
        places = [self.truth / file.parent.name / name, self.truth / name]
        for place in places:
            if place.is_file():
                return place
        raise LeakscopeError(
            f"--truth: there is no {name} in {self.truth}, nor in {places[0].parent}: "
            "write the client's images and labels there by numpy.savez"
        )


@dataclass(frozen=True, eq=False)
class Record:
    """A recorded update.

    Attributes:
        file: where it is.
        row: what the folder it is in is called, which stands for a round; empty if there is none.
        client: its number in that folder.
        attacks: one attempt, or two where there is no truth.
        baseline: the first one on noise.
    """

    file: Path
    row: str
    client: int
    attacks: tuple[Recorded, ...]
    baseline: Recorded

    @property
    def trials(self) -> list[Recorded]:
        """All of them."""
        return [*self.attacks, self.baseline]


@dataclass(frozen=True, eq=False)
class Recorded(Trial):
    """A trial on a recorded update."""

    request: Request
    file: Path
    seed: int

    @property
    def name(self) -> str:
        """The attack."""
        name = self.request.attack.name
        return f"{name}-baseline" if self.kind == "baseline" else name

    @property
    def words(self) -> str:
        """What a person would call it."""
        text = f"{self.file.parent.name}/{self.file.stem}: {self.request.attack.label}"
        text += f", start {self.seed}" if self.seed else ""
        return text + (", baseline" if self.kind == "baseline" else "")

    @cached_property
    def alike(self) -> str:
        """What differs between clients of a model is how many examples they have."""
        return f"{self.kind} {self.spec['examples']}"

    def do(self, scratch: Path, progress: Progress) -> Done:
        """Attack the update, or noise of the same size; measure what there is to measure."""
        update, model = _read(self.request.model_dump_json(), self.file)
        if update.fingerprint() != self.spec["update"]:
            raise LeakscopeError(f"{self.file} has changed meanwhile: run the audit again")
        target = signal_free(update, 0) if self.kind == "baseline" else update
        attempt = self.request.attack.build().run(
            model,
            target,
            seed=self.seed,
            on_progress=progress,
            checkpoint=scratch / "attack.checkpoint",
            compiling="never",
        )
        attempt.save(scratch / FOUND)
        numbers: dict[str, Any] = {}
        truth = self.request.truth_of(self.file)
        if truth is not None:
            had, others = _truth(self.request, truth)
            scores, chance = score(attempt, had.images, had.labels, others.images, others.labels)
            numbers = {"scores": scores, "chance": chance}
        with contextlib.suppress(LeakscopeError):  # what is not known about the client
            numbers["replay"] = replay_score(model, target, attempt)
        done = Result(
            protocol=target.protocol,
            bytes_sent=sent_bytes(update),
            seconds=attempt.seconds,
            **numbers,
        )
        return done, {FOUND: scratch / FOUND}


def written(records: Sequence[Record]) -> str:
    """The plan as text, a line of JSON per record."""
    lines = []
    for record in records:
        entry = {
            "trial": record.attacks[0].id,
            "baseline": record.baseline.id,
            "setting": record.row,
            "defence": "none",
            "attack": record.attacks[0].request.attack.label,
            "client": record.client,
            "file": str(record.file),
        }
        lines.append(json.dumps(entry))
        lines += [json.dumps({"trial": other.id}) for other in record.attacks[1:]]
    return "\n".join(lines) + "\n"


def collect(
    request: Request, records: Sequence[Record], store: Store, command: str
) -> tuple[list[Evidence], Provenance]:
    """Everything that is finished and whole; the provenance says what is not."""
    evidence: list[Evidence] = []
    configurations: dict[str, Configuration] = {}
    for record in records:
        done = [each for trial in record.trials if (each := result(trial, store)) is not None]
        if len(done) < len(record.trials):
            continue
        one = done[0]
        run = _evidence(request, record, store, one, done[-1])
        evidence.append(run)
        configurations.setdefault(
            run.configuration, Configuration(setting=record.row, bytes_sent=one.bytes_sent or 0)
        )
    trials = [trial for record in records for trial in record.trials]
    failures = failed(trials, store)
    if not evidence:
        raise nothing_yet(trials, failures, store)
    _, model = _read(request.model_dump_json(), records[0].file)
    return evidence, Provenance(
        title=f"Updates recorded in {request.folder.name}",
        command=command,
        model=request.model,
        parameters=count_parameters(model),
        data=f"{len(records)} recorded updates",
        configurations=tuple(configurations.values()),
        planned=len(records) if len(evidence) < len(records) else None,
        failures=failures,
    )


def _evidence(
    request: Request, record: Record, store: Store, one: Result, other: Result
) -> Evidence:
    """All that is known about one record."""
    update, _ = _read(request.model_dump_json(), record.file)
    truth = finding = None
    agreement: tuple[float, ...] = ()
    place = request.truth_of(record.file)
    if place is not None:
        had, _ = _truth(request, place)
        truth = Truth(had.images, had.labels)
        assert one.scores is not None
        assert other.scores is not None
        assert one.chance is not None
        finding = Finding(scores=one.scores, baseline=other.scores, chance=one.chance)
    else:
        first, second = (found(store, attempt.id).images for attempt in record.attacks)
        agreement = tuple(measure.images(first, second).psnr.tolist())
    return Evidence(
        request.attack.label,
        record.client,
        update.protocol,
        "weights" if update.gradient is None else "gradient",
        found(store, record.attacks[0].id),
        truth,
        finding,
        configuration=record.row or "none",
        recipe=request.attack.name,
        replay=one.replay,
        baseline_replay=other.replay,
        agreement=agreement,
    )


def _record(request: Request, file: Path, number: int) -> Record:
    update, model = _read(request.model_dump_json(), file)
    place = request.truth_of(file)
    truth = None
    if place is not None:
        had, others = _truth(request, place)
        _check_truth(place, had, others, update)
        truth = [had.fingerprint, others.fingerprint]
    assert update.protocol.input_shape is not None
    spec = {
        "leakscope": leakscope.__version__,
        "update": update.fingerprint(),
        "examples": update.num_examples,
        "network": behaviour(model, update.protocol.input_shape),
        "attack": request.attack.model_dump(mode="json", exclude={"label"}),
        "truth": truth,
    }

    def trial(kind: Any, seed: int) -> Recorded:
        return Recorded(kind, {"kind": kind, "seed": seed, **spec}, number, request, file, seed)

    seeds = STARTS if truth is None else STARTS[:1]
    return Record(
        file,
        "" if file.parent == request.folder else file.parent.name,
        number,
        tuple(trial("attack", seed) for seed in seeds),
        trial("baseline", STARTS[0]),
    )


def _check_truth(place: Path, had: Dataset, others: Dataset, update: Update) -> None:
    shape = (update.num_examples, *(update.protocol.input_shape or ()))
    if tuple(had.images.shape) != shape:
        raise LeakscopeError(
            f"{place}: its images have shape {tuple(had.images.shape)}, the update is of {shape}"
        )
    if len(others) == 0:
        raise LeakscopeError(
            "--truth: line-ups need other images than those of the only client: "
            "name a data set by --distractors"
        )


_NEEDED = {
    "input_shape": "3,32,32",
    "classes": "10",
    "normalize": "none (or a data set's name, or 0.5,0.5,0.5:0.2,0.2,0.2)",
}
"""What no attack can do without, and what it may look like."""


@lru_cache(maxsize=4)
def _read(request: str, file: Path) -> tuple[Update, torch.nn.Module]:
    """A record, with what the user adds to its protocol, and the network."""
    wanted = Request.model_validate_json(request)
    update = Update.load(file)
    protocol = complete(update.protocol, dict(wanted.known))
    for field, like in _NEEDED.items():
        if getattr(protocol, field) is None:
            raise LeakscopeError(f"{file} does not say {field}: add --known {field}={like}")
    assert protocol.input_shape is not None
    assert protocol.classes is not None
    channels, height, _ = protocol.input_shape
    model = models.build(wanted.model, classes=protocol.classes, channels=channels, size=height)
    update = Update(update.before, update.after, update.gradient, update.num_examples, protocol)
    update.check(model)
    return update, model


def _truth(request: Request, place: Path) -> tuple[Dataset, Dataset]:
    """What a client had, and images for the line-ups that it did not have."""
    assert request.truth is not None
    had = _images(f"npz:{place}")
    _, height, width = had.shape
    if request.distractors is not None:
        others = _images(request.distractors, size=height)
    else:
        others = _everything(request.truth, (height, width))
    if others.shape != had.shape:
        raise LeakscopeError(
            f"--distractors: images of shape {others.shape} are no line-up for {had.shape}"
        )
    # Images that went through files of bytes differ by as much as rounding.
    far = [bool((had.images - image).abs().amax((1, 2, 3)).min() > NEAR) for image in others.images]
    return had, others.select([index for index, away in enumerate(far) if away])


@lru_cache(maxsize=1)
def _everything(folder: Path, size: tuple[int, int]) -> Dataset:
    """The images of all clients."""
    files = sorted(folder.rglob("*.npz"))
    parts = [part for file in files if (part := _images(f"npz:{file}")).shape[1:] == size]
    images, labels = (torch.cat([getattr(p, name) for p in parts]) for name in ("images", "labels"))
    return Dataset("all clients", images, labels, max((p.class_names for p in parts), key=len))


_images = lru_cache(maxsize=64)(data.load)


def forget() -> None:
    """Read everything anew: files may have changed since the last audit in this process."""
    _read.cache_clear()
    _images.cache_clear()
    _everything.cache_clear()
