"""One trial: a piece of work that depends on no other, known by everything it depends on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict

from leakscope.attack.solver import Progress
from leakscope.audit.evidence import Utility, now, versions
from leakscope.audit.memory import at_most, fresh_peak, is_shortage, peak_memory
from leakscope.audit.store import Store
from leakscope.errors import LeakscopeError, StorageError
from leakscope.measure import Scores, Straightness
from leakscope.update import Protocol

Kind = Literal["attack", "baseline", "utility", "path"]

SPEC, RESULT, FOUND = "spec.json", "result.json", "reconstruction.safetensors"
"""The files of a trial: what was asked for, the numbers, and what an attack found."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One attack on one client, its no-update baseline, or a measurement that comes with them.

    Attributes:
        kind: what is done.
        spec: everything that the result depends on, with every default filled in.
        client: number of the client under attack, the repetition that the trial belongs to.
    """

    kind: Kind
    spec: dict[str, Any]
    client: int

    @property
    def name(self) -> str:
        """The first part of its id."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        """What a person would call it."""
        raise NotImplementedError

    @cached_property
    def alike(self) -> str:
        """The same text for trials that cost the same."""
        raise NotImplementedError

    def do(self, scratch: Path, progress: Progress) -> Done:
        """Do it.

        Args:
            scratch: a folder for its files; an earlier attempt may have left some.
            progress: to be called while it goes on.
        """
        raise NotImplementedError

    @cached_property
    def id(self) -> str:
        """Name of its folder: two trials have the same one exactly if they do the same."""
        key = hashlib.sha256(json.dumps(self.spec, sort_keys=True).encode()).hexdigest()
        return f"{self.name}-{self.client:03d}-{key[:16]}"


class Result(BaseModel):
    """The numbers of a finished trial.

    Attributes:
        scores: of an attack or a baseline.
        chance: re-identification rate of a blind guess.
        protocol: what the attack was told about the client.
        bytes_sent: by one client.
        replay: how well training on what was found explains the update, 1 being fully.
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
    replay: float | None = None
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
    """

    trial: Trial
    out: str
    folder: str = field(default_factory=os.getcwd)
    memory: int | None = None


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
    trial = job.trial
    try:
        store = Store(job.out)
        # A machine of a cluster may have no such folder, and need none.
        there = contextlib.chdir(job.folder) if Path(job.folder).is_dir() else nullcontext()
        with there, store.claim(trial.id) as ours, at_most(job.memory):
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
    result, files = trial.do(scratch, progress)
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
