"""How far an audit is, and what it has found, as rows of a table; needs neither data nor models."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from leakscope.audit.run import PLAN
from leakscope.audit.store import Store
from leakscope.audit.trial import RESULT, Result, load_result
from leakscope.errors import LeakscopeError

RECENT = 20
"""Finished trials that the rate is measured on."""

COLUMNS: dict[str, type] = {
    "trial": str,
    "setting": str,
    "defence": str,
    "attack": str,
    "client": int,
    "images": int,
    "recognised": int,
    "baseline_recognised": int,
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


_TOLD = {"trial", "setting", "defence", "attack", "client"}
"""Columns that the plan fills."""


@dataclass(frozen=True)
class Status:
    """How far an audit is.

    Attributes:
        planned: trials in all: attacks, baselines, accuracies and paths.
        done: of them.
        running: ids of those that some process works on now.
        failed: why, by id.
        rate: trials a second lately, or ``None`` if nothing moves.
    """

    planned: int
    done: int
    running: tuple[str, ...]
    failed: dict[str, str]
    rate: float | None

    @property
    def left(self) -> int:
        """Trials that are neither done nor failed."""
        return self.planned - self.done - len(self.failed)

    @property
    def seconds_left(self) -> float | None:
        """Time they will take at the present rate."""
        return self.left / self.rate if self.rate and self.running else None


def status(out: str | Path) -> Status:
    """How far the audit in ``out`` is, whether or not it runs."""
    store = Store(out)
    planned = {
        entry[key] for entry in _plan(store) for key in ("trial", "baseline") if key in entry
    }
    done = planned & set(store.finished())
    failed = {name: record["error"] for name, record in store.failures().items()}
    return Status(
        planned=len(planned),
        done=len(done),
        running=tuple(name for name in store.claimed() if name in planned - done),
        failed={name: error for name, error in failed.items() if name in planned - done},
        rate=_rate(store, done),
    )


def rows(out: str | Path) -> Iterator[dict[str, Any]]:
    """One row of :data:`COLUMNS` per finished attack on a client, in the order of the plan."""
    store = Store(out)
    there = set(store.finished())
    for entry in _plan(store):
        pair = [entry["trial"], entry.get("baseline")]
        if pair[1] is not None and all(n in there and store.sound(n, RESULT) for n in pair):
            attack, baseline = (load_result(store, name) for name in pair)
            told = {name: entry[name] for name in COLUMNS if name in entry}
            yield {**told, **_numbers(attack, baseline)}


def _numbers(attack: Result, baseline: Result) -> dict[str, Any]:
    """What was measured; ``None`` for what needs the truth where there is none."""
    one, other = attack.scores, baseline.scores
    cost = {"seconds": attack.seconds, "memory": attack.memory}
    if one is None or other is None:
        return dict.fromkeys(COLUMNS.keys() - _TOLD) | cost
    count = len(one.psnr)
    return {
        "images": count,
        "recognised": sum(one.recognised),
        "baseline_recognised": sum(other.recognised),
        "reidentified": sum(one.reidentified),
        "baseline_reidentified": sum(other.reidentified),
        "psnr": sum(one.psnr) / count,
        "psnr_best": max(one.psnr),
        "psnr_worst": min(one.psnr),
        "baseline_psnr": sum(other.psnr) / count,
        "ssim": sum(one.ssim) / count,
        "label_accuracy": one.label_accuracy,
        **cost,
    }


def _plan(store: Store) -> Iterator[dict[str, Any]]:
    try:
        lines = store.text(PLAN).splitlines()
        entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
    except (OSError, ValueError):
        raise LeakscopeError(f"{store.url} has no {PLAN}: give the folder of an audit") from None
    yield from entries


def _rate(store: Store, done: set[str]) -> float | None:
    """Trials a second, over those that finished last."""
    dates = []
    for name in done:
        try:
            date = load_result(store, name).environment["date"]
        except (OSError, ValueError, KeyError):
            continue
        dates.append(datetime.fromisoformat(date).timestamp())
    latest = sorted(dates)[-RECENT:]
    if len(latest) < 2 or latest[0] >= time.time():
        return None
    return len(latest) / max(1.0, time.time() - latest[0])
