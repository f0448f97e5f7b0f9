"""A short sweep, how to disturb it, and what it must come to all the same."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.audits.folder import outcome
from leakmeter.audits.trials import FOUND, AttackOutcome, UtilityOutcome
from leakmeter.execution.store import Store
from leakmeter.execution.trial import Record
from leakmeter.state import digest

MODEL = """
from torch import nn

def tiny(classes, channels, size):
    return nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.Sigmoid(),
                         nn.Flatten(), nn.Linear(4 * size * size, classes))
"""

SCENARIO: dict[str, Any] = {
    "name": "a short sweep",
    "model": {"name": "own.py:tiny"},
    "data": {"source": "faces"},
    "client": {"examples": 2, "count": 3, "epochs": 2, "lr": 0.05},
    "attacks": [
        {"name": "sme", "options": {"iterations": 60}},
        {"name": "ig", "options": {"iterations": 60}},
    ],
    "defenses": ["none", {"name": "top_k", "options": {"keep": 0.2}}],
    "utility": {"rounds": 2, "clients": 3},
}
TRIALS = 3 * 2 * 2 + 3 * 2 + 2
"""Attacks on every client and defense, a baseline for each client and attack, two accuracies."""


def desk(folder: Path, scenario: dict[str, Any] = SCENARIO) -> Path:
    """A folder with a model and a scenario."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.py").write_text(MODEL)
    (folder / "sweep.yaml").write_text(yaml.safe_dump(scenario))
    return folder


def start(folder: Path, *options: str, out: str = "out", **more: Any) -> subprocess.Popen[str]:
    """The audit as a process of its own, with a group of its own."""
    command = [sys.executable, "-m", "leakmeter.cli", "audit", "sweep.yaml", "--out", out, *options]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **more,
    )


@contextlib.contextmanager
def started(folder: Path, *options: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """The same, which does not outlive the test."""
    process = start(folder, *options, **more)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def finished(folder: Path, *options: str, **more: Any) -> tuple[int, str]:
    """Run the audit to its end: exit code and what it says."""
    with started(folder, *options, **more) as process:
        out, err = process.communicate(timeout=300)
        return process.returncode, out + err


def workers(process: subprocess.Popen[str]) -> list[int]:
    """Process ids of the audit's workers."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    found = []
    with contextlib.suppress(OSError):
        for pid in map(int, children.read_text().split()):
            with contextlib.suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
    return found


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def done(folder: Path) -> list[Path]:
    """The folders of finished trials."""
    return sorted((folder / "out" / "trials").glob("*"))


def check_whole(folder: Path) -> None:
    """Whatever is among the finished trials is finished, to the bit."""
    store = Store(folder / "out")
    for trial in store.finished():
        assert store.sound(trial), trial


def essence(folder: Path | str) -> dict[str, str]:
    """All that a sweep found, but not when or how fast: images bit by bit, scores, accuracies."""
    store = Store(folder if "://" in str(folder) else Path(folder) / "out")
    found_all = {}
    for trial in store.finished():
        assert store.sound(trial)
        result = outcome(Record.load(store, trial))
        text, tensors = "", {}
        if isinstance(result, AttackOutcome):
            assert result.scores is not None
            text = json.dumps([result.scores.model_dump_json(), result.bytes_sent])
            rebuilt = Reconstruction.load(Path(store.root) / "trials" / trial / FOUND)
            tensors = {"images": rebuilt.images, "labels": rebuilt.labels, **rebuilt.history}
        elif isinstance(result, UtilityOutcome):
            text = json.dumps(result.utility.accuracy)
        found_all[trial] = digest(tensors, text)
    return found_all
