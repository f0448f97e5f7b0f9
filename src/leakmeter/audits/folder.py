"""Reads an audit's folder without needing the data, the model, or a current plan."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from leakmeter import measure
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.audits import legacy
from leakmeter.audits.plan import Plan, PlannedAttack
from leakmeter.audits.trials import (
    FOUND,
    TRUTH,
    AttackOutcome,
    Outcome,
    PathOutcome,
    UtilityOutcome,
    read_truth,
)
from leakmeter.errors import LeakmeterError
from leakmeter.execution.store import Store
from leakmeter.execution.trial import RECORD, Record, versions
from leakmeter.judge import Configuration, Evidence, Provenance, Truth
from leakmeter.measure import Finding, Straightness

RECENT = 20
"""The number of finished trials from which the rate is measured."""

COLUMNS: dict[str, type] = {
    "trial": str,
    "setting": str,
    "defense": str,
    "attack": str,
    "client": int,
    "images": int,
    "recognized": int,
    "baseline_recognized": int,
    "reidentified": int,
    "baseline_reidentified": int,
    "psnr": float,
    "psnr_best": float,
    "psnr_worst": float,
    "baseline_psnr": float,
    "ssim": float,
    "label_accuracy": float,
    "seconds": float,
    "memory": int,
}
"""Of a table with one row per attack on a client: PSNR [dB] and SSIM are means over its images,
``psnr_best`` is the image that leaked most; memory in bytes, of the process."""

T = TypeVar("T")


@dataclass(frozen=True)
class Status:
    """The progress of an audit.

    Attributes:
        planned: the total number of trials: attacks, baselines, accuracies and paths.
        done: how many of them are done.
        running: ids of those that some process is working on now.
        failed: the reason for each failure, by id.
        rate: recent trials per second, or ``None`` if nothing is progressing.
    """

    planned: int
    done: int
    running: tuple[str, ...]
    failed: dict[str, str]
    rate: float | None

    @property
    def left(self) -> int:
        """The number of trials that are neither done nor failed."""
        return self.planned - self.done - len(self.failed)

    @property
    def seconds_left(self) -> float | None:
        """The time that the remaining trials will take at the current rate."""
        return self.left / self.rate if self.rate and self.running else None


class Folder:
    """The folder of an audit, finished or not.

    Args:
        out: where it is: a folder, or a URL that fsspec can open.
    """

    def __init__(self, out: str | Path) -> None:
        self.store = Store(out)
        try:
            self.plan = Plan.load(self.store)
        except FileNotFoundError:
            self.plan = legacy.plan(self.store)

    def read(self) -> tuple[list[Evidence], Provenance]:
        """Return everything that is finished and intact; the provenance says what is not."""
        sizes: dict[str, int] = {}
        evidence = []
        for each in self.plan.attacks:
            if (run := self._evidence(each, sizes)) is not None:
                evidence.append(run)
        failures = self.failures()
        if not evidence:
            raise LeakmeterError("\n".join(failures) or "no attack is finished yet")
        plan, planned = self.plan, len(self.plan.attacks)
        labels = {run.configuration for run in evidence}
        rows = [each for each in plan.configurations if each.configuration.label in labels]
        return evidence, Provenance(
            title=plan.title,
            command=plan.command,
            model=plan.model,
            parameters=plan.parameters,
            scenario=plan.scenario,
            data=plan.data,
            class_names=plan.class_names,
            configurations=tuple(
                self._configured(each.configuration, each.utility, sizes) for each in rows
            ),
            planned=planned if len(evidence) < planned else None,
            failures=failures,
            **self._made(),
        )

    def _made(self) -> dict[str, Any]:
        """Return the versions and date of the most recently finished attack."""
        trials = [each.trial for each in self.plan.attacks if each.trial in self._there]
        made = [Record.load(self.store, trial).environment for trial in trials]
        newest = max(made, key=lambda environment: environment["date"])
        return {
            "date": newest["date"],
            "versions": {name: newest[name] for name in versions() if name in newest},
        }

    def failures(self) -> tuple[str, ...]:
        """Return why trials of the plan failed, one line per reason."""
        known, reasons = self.store.failures(), dict[str, list[str]]()
        for trial in self.plan.trials:
            if trial in known:
                reasons.setdefault(known[trial]["error"], []).append(known[trial]["trial"])
        return tuple(
            f"{words[0]}: {error}"
            if len(words) == 1
            else f"{len(words)} trials, such as {words[0]}: {error}"
            for error, words in reasons.items()
        )

    def status(self) -> Status:
        """Return the progress of the audit, whether or not it is running."""
        planned = set(self.plan.trials)
        done = planned & self._there
        failed = {name: record["error"] for name, record in self.store.failures().items()}
        return Status(
            planned=len(planned),
            done=len(done),
            running=tuple(name for name in self.store.claimed() if name in planned - done),
            failed={name: error for name, error in failed.items() if name in planned - done},
            rate=self._rate(done),
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row of :data:`COLUMNS` per finished attack on a client, in the plan's order."""
        known = {each.configuration.label: each.configuration for each in self.plan.configurations}
        for each in self.plan.attacks:
            if not all(n in self._there and self.store.sound(n, RECORD) for n in each.attempts):
                continue
            configuration = known[each.configuration]
            yield {
                "trial": each.trial,
                "setting": configuration.setting,
                "defense": configuration.defense,
                "attack": each.attack,
                "client": each.client,
                **self._numbers(each),
            }

    @cached_property
    def _there(self) -> set[str]:
        return set(self.store.finished())

    def _outcome(self, trial: str | None, kind: type[T]) -> T | None:
        """Return the numbers of a trial that is finished and intact."""
        if trial is None or trial not in self._there or not self.store.sound(trial):
            return None
        found = outcome(Record.load(self.store, trial))
        return found if isinstance(found, kind) else None

    def _configured(
        self, configuration: Configuration, utility: str | None, sizes: dict[str, int]
    ) -> Configuration:
        learned = self._outcome(utility, UtilityOutcome)
        return replace(
            configuration,
            bytes_sent=sizes.get(configuration.label, 0),
            utility=None if learned is None else learned.utility,
        )

    def _evidence(self, each: PlannedAttack, sizes: dict[str, int]) -> Evidence | None:
        attempts = [self._outcome(name, AttackOutcome) for name in each.attempts]
        done = [attempt for attempt in attempts if attempt is not None]
        if len(done) < len(attempts):
            return None
        one, other = done[0], done[-1]
        sizes.setdefault(each.configuration, one.bytes_sent or 0)
        finding = None
        if one.scores is not None and other.scores is not None and one.chance is not None:
            finding = Finding(scores=one.scores, baseline=other.scores, chance=one.chance)
        found = self._found(each.trial)
        agreement: tuple[float, ...] = ()
        if each.again:
            second = self._found(each.again[0])
            agreement = tuple(measure.images(found.images, second.images).psnr.tolist())
        return Evidence(
            each.attack,
            each.client,
            one.protocol,
            each.shares,
            found,
            self._truth(each.trial),
            finding,
            straightness=self._path(each.path),
            configuration=each.configuration,
            recipe=each.recipe,
            replay=one.replay,
            baseline_replay=other.replay,
            agreement=agreement,
        )

    def _path(self, trial: str | None) -> Straightness | None:
        measured = self._outcome(trial, PathOutcome)
        return None if measured is None else measured.path

    def _truth(self, trial: str) -> Truth | None:
        """Return what the client had; folders of older versions lack it."""
        try:
            with self._local(trial, TRUTH) as path:
                return read_truth(path)
        except (LeakmeterError, FileNotFoundError):
            return None

    def _found(self, trial: str) -> Reconstruction:
        """Return what an attack found."""
        with self._local(trial, FOUND) as path:
            return Reconstruction.load(path)

    @contextmanager
    def _local(self, trial: str, name: str) -> Iterator[Path]:
        if self.store.folder is not None:
            yield self.store.folder / "trials" / trial / name
            return
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / name).write_bytes(self.store.read(trial, name))
            yield Path(folder) / name

    def _numbers(self, each: PlannedAttack) -> dict[str, Any]:
        """Return the measurements; those that need a missing truth are ``None``."""
        records = [Record.load(self.store, name) for name in (each.trial, each.baseline)]
        one, other = (outcome(record) for record in records)
        cost = {"seconds": records[0].seconds, "memory": records[0].memory}
        told = {"trial", "setting", "defense", "attack", "client"}
        blank = dict.fromkeys(COLUMNS.keys() - told)
        if not isinstance(one, AttackOutcome) or not isinstance(other, AttackOutcome):
            return blank | cost
        if one.scores is None or other.scores is None:
            return blank | cost
        mine, noise = one.scores, other.scores
        count = len(mine.psnr)
        return {
            "images": count,
            "recognized": sum(mine.recognized),
            "baseline_recognized": sum(noise.recognized),
            "reidentified": sum(mine.reidentified),
            "baseline_reidentified": sum(noise.reidentified),
            "psnr": sum(mine.psnr) / count,
            "psnr_best": max(mine.psnr),
            "psnr_worst": min(mine.psnr),
            "baseline_psnr": sum(noise.psnr) / count,
            "ssim": sum(mine.ssim) / count,
            "label_accuracy": mine.label_accuracy,
            **cost,
        }

    def _rate(self, done: set[str]) -> float | None:
        """Return trials per second over those that finished last."""
        dates = []
        for name in done:
            try:
                date = Record.load(self.store, name).environment["date"]
            except (OSError, LeakmeterError, KeyError):
                continue
            dates.append(datetime.fromisoformat(date).timestamp())
        latest = sorted(dates)[-RECENT:]
        if len(latest) < 2 or latest[0] >= time.time():
            return None
        return len(latest) / max(1.0, time.time() - latest[0])


_OUTCOMES: TypeAdapter[Outcome] = TypeAdapter(Outcome)


def outcome(record: Record) -> Outcome:
    """Return the numbers of a trial of any kind."""
    content = record.result
    return _OUTCOMES.validate_python(content if "kind" in content else legacy.result(content))
