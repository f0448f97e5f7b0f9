"""One trial: independent work, identified by everything it depends on."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, SupportsFloat

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

import leakmeter
from leakmeter.errors import LeakmeterError, StorageError
from leakmeter.execution.executors import Worker
from leakmeter.execution.identity import identity
from leakmeter.execution.kept import Pause, Progress
from leakmeter.execution.memory import at_most, fresh_peak, is_shortage, peak_memory
from leakmeter.execution.store import SHARED, Store

SPEC, RECORD = "spec.json", "result.json"
"""The files of every trial: what was asked for, and what came out."""

FORMAT = 2
"""The format version of :data:`RECORD`; the first had no number."""


class Context(NamedTuple):
    """What a trial is given to work with.

    Attributes:
        scratch: a folder for its files; an earlier attempt may have left some.
        shared: a folder for what several trials of a store need.
        worker: the worker, which takes progress reports and holds what other trials cached.
    """

    scratch: Path
    shared: Path
    worker: Worker

    @property
    def progress(self) -> Progress:
        """The callback for the progress of the work."""
        return self.worker.progress

    def step(self, done: int, total: int, figure: SupportsFloat | None = None) -> None:
        """Report progress, and pause if it is time to; for work that can resume from there."""
        self.worker.progress(done, total, figure)
        if self.worker.paused():
            raise Pause


class Done(NamedTuple):
    """The output of a trial.

    Attributes:
        result: the numbers.
        files: all other files that belong to it, by name.
        seconds: time it took in all attempts, if it knows better than the clock.
        figures: the figures that the screen shows.
    """

    result: BaseModel
    files: dict[str, Path]
    seconds: float | None = None
    figures: tuple[float, ...] = ()


class Work(Protocol):
    """What a trial does; it is sent to wherever it is done."""

    def do(self, context: Context) -> Done:
        """Do the work."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """Independent work, identified by everything it depends on.

    Attributes:
        work: a frozen description of what to do.
        spec: everything that the result depends on, with every default filled in.
        name: the first part of its id.
        words: a description for people.
        repeat: which repetition it belongs to.
        alike: a text that trials of equal cost share.
        own_process: whether nothing else may share its process.
    """

    work: Work
    spec: dict[str, Any]
    name: str
    words: str
    repeat: int = 0
    alike: str = ""
    own_process: bool = False

    @cached_property
    def id(self) -> str:
        """The name of its folder; two trials share it exactly if they do the same work."""
        return f"{self.name}-{self.repeat:03d}-{identity(self.spec)[:16]}"


class Record(BaseModel):
    """What the store keeps of a finished trial.

    Attributes:
        result: the trial's own numbers.
        seconds: time it took; for an attack, including all attempts that led to it.
        memory: peak memory of its process, in bytes.
        environment: what the last bits depend on besides the spec, and the time and place.
    """

    model_config = ConfigDict(frozen=True)

    result: dict[str, Any]
    seconds: float
    memory: int
    environment: dict[str, str]

    @classmethod
    def load(cls, store: Store, trial: str) -> Record:
        """Load the record of a finished trial."""
        try:
            content = json.loads(store.read(trial, RECORD))
            if "format" in content:
                return cls.model_validate(content)
            own = {name: content.pop(name) for name in ("seconds", "memory", "environment")}
            return cls(result=content, **own)
        except (ValueError, KeyError, TypeError, ValidationError):
            raise LeakmeterError(
                f"{store.name}: {RECORD} of {trial} cannot be read: run the same command again"
            ) from None


@dataclass(frozen=True)
class Job:
    """A trial to be done in any process.

    Attributes:
        trial: what to do.
        out: where the result goes.
        folder: the folder that relative paths start from.
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
        figures: what the screen shows of it.
        seconds: that it took.
        memory: the most that its process held, in bytes.
    """

    state: Literal["done", "found", "failed", "short", "taken", "unwritable"]
    error: str = ""
    figures: tuple[float, ...] = ()
    seconds: float = 0.0
    memory: int = 0


def perform(job: Job, worker: Worker) -> Outcome:
    """Do a trial and store it; any error becomes its outcome and stops no other trial."""
    trial = job.trial
    try:
        store = Store(job.out)
    except Exception as error:  # no credentials there, say
        return Outcome("unwritable", f"cannot open {job.out}: {error}")
    try:
        # A machine of a cluster may have no such folder, and need none.
        there = contextlib.chdir(job.folder) if Path(job.folder).is_dir() else nullcontext()
        with there, store.claim(trial.id) as ours, at_most(job.memory):
            if not ours:
                return Outcome("taken")
            if store.sound(trial.id):  # somebody else has done it meanwhile
                known = Record.load(store, trial.id)
                return Outcome("found", seconds=known.seconds, memory=known.memory)
            return _done(store, trial, worker)
    except StorageError as error:
        return Outcome("unwritable", str(error))
    except Exception as error:
        return _failed(store, trial, error)


def _done(store: Store, trial: Trial, worker: Worker) -> Outcome:
    """Do a trial and store it."""
    scratch = store.scratch(trial.id)
    began, _ = time.perf_counter(), fresh_peak()
    done = trial.work.do(Context(scratch, store.scratch(SHARED), worker))
    seconds = time.perf_counter() - began if done.seconds is None else done.seconds
    record = {
        "format": FORMAT,
        "result": done.result.model_dump(mode="json"),
        "seconds": seconds,
        "memory": peak_memory(),
        "environment": environment(),
    }
    files = dict(done.files)
    for name, content in {SPEC: trial.spec, RECORD: record}.items():
        files[name] = scratch / name
        try:
            files[name].write_text(json.dumps(content, indent=1), encoding="utf-8")
        except OSError as error:
            raise StorageError(f"cannot write {files[name]}: {error.strerror}") from None
    store.publish(trial.id, files)
    return Outcome("done", figures=done.figures, seconds=seconds, memory=peak_memory())


def _failed(store: Store, trial: Trial, error: Exception) -> Outcome:
    """Record why a trial failed, if possible; a lack of memory may be worth another try."""
    text = " ".join(str(error).split())
    if is_shortage(error):
        return Outcome("short", f"out of memory: use fewer examples or another machine ({text})")
    if not isinstance(error, LeakmeterError):
        text = f"{type(error).__name__}: {text}"
    try:
        keep_failure(store, trial, text)
    except StorageError as full:
        return Outcome("unwritable", str(full))
    return Outcome("failed", text)


def keep_failure(store: Store, trial: Trial, error: str) -> None:
    """Store why a trial failed."""
    store.fail(trial.id, {"trial": trial.words, "error": error, "spec": trial.spec})


def versions() -> dict[str, str]:
    """Return the versions of the software that the numbers depend on."""
    return {
        "leakmeter": leakmeter.__version__,
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
    }


def now() -> str:
    """Return the date and time in ISO 8601 format."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def environment() -> dict[str, str]:
    """Return what the last bits depend on besides the request, and the time and place."""
    return versions() | {
        "threads": str(torch.get_num_threads()),
        "host": platform.node(),
        "date": now(),
    }
