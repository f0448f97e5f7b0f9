"""A sweep that is killed, starved, corrupted or crowded comes to the same end."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from faults import sweeps
from faults.sweeps import TRIALS, check_whole, done, essence, finished, started, until, workers

Essence = dict[str, str]

SEED = int(os.environ.get("FAULTS_SEED", "0"))
"""Decides when things are killed: another one for every run finds more."""


def same(folder: Path, undisturbed: Essence, figures: Counter[str]) -> None:
    """Every trial is there once, with the bits of a run that nothing happened to."""
    found = essence(folder)
    figures["trials checked"] += TRIALS
    figures["trials lost"] += len(undisturbed.keys() - found.keys())
    assert found == undisturbed
    assert not list((folder / "out").glob(".work/*/*"))


def test_killed_workers_are_replaced(
    desk: Path, undisturbed: Essence, figures: Counter[str]
) -> None:
    draw = random.Random(SEED)
    with started(desk, "--processes", "2") as audit:
        for count in (0, draw.randint(1, TRIALS // 2)):  # while they start, and while they work
            until(partial(reached, audit, desk, count))
            until(lambda: workers(audit))
            time.sleep(draw.uniform(0, 0.5))
            chosen = workers(audit)[: draw.randint(1, 2)]
            assert chosen, "the audit was over too soon"
            for pid in chosen:
                os.kill(pid, signal.SIGKILL)
                figures["workers killed"] += 1
        _, err = audit.communicate(timeout=300)
    assert audit.returncode == 0, err
    same(desk, undisturbed, figures)


def test_a_killed_audit_loses_nothing(
    desk: Path, undisturbed: Essence, figures: Counter[str]
) -> None:
    draw = random.Random(1000 + SEED)
    for count in (1, 5, 9):
        with started(desk, "--processes", "2") as audit:
            until(partial(reached, audit, desk, count))
            time.sleep(draw.uniform(0, 0.5))
            assert audit.poll() is None, "the audit was over too soon"
            audit.kill()
            figures["audits killed"] += 1
        check_whole(desk)
    code, said = finished(desk, "--processes", "2")
    assert code == 0, said
    same(desk, undisturbed, figures)


def reached(audit: subprocess.Popen[str], desk: Path, count: int) -> bool:
    return len(done(desk)) >= count or audit.poll() is not None


def test_a_killed_audit_leaves_no_worker_behind(desk: Path) -> None:
    with started(desk, "--processes", "2") as audit:
        until(lambda: len(workers(audit)) == 2)
        left = workers(audit)
        audit.kill()
        until(lambda: not any(Path(f"/proc/{pid}/fd").exists() for pid in left), 20)


def test_ctrl_c_leaves_a_resumable_state_within_two_seconds(
    desk: Path, undisturbed: Essence, figures: Counter[str]
) -> None:
    with started(desk, "--processes", "2") as audit:
        until(lambda: len(done(desk)) >= 3)
        began = time.monotonic()
        os.killpg(audit.pid, signal.SIGINT)  # as a terminal does
        _, err = audit.communicate(timeout=20)
        figures["interrupts"] += 1
    assert time.monotonic() - began < 2
    assert audit.returncode == 130
    assert "run the same command again" in err
    check_whole(desk)
    code, said = finished(desk)
    assert code == 0, said
    same(desk, undisturbed, figures)


def truncated(trial: Path) -> None:
    file = next(trial.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-7])


def flipped(trial: Path) -> None:
    file = next(trial.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


def without_manifest(trial: Path) -> None:
    (trial / "manifest.json").unlink()


def emptied(trial: Path) -> None:
    for file in trial.iterdir():
        file.unlink()


def garbled(trial: Path) -> None:
    (trial / "manifest.json").write_bytes(b'{"result.json": \xff')


def rewritten(trial: Path) -> None:
    (trial / "result.json").write_text("{}")


DAMAGES: list[Callable[[Path], None]] = [
    truncated,
    flipped,
    without_manifest,
    emptied,
    garbled,
    rewritten,
]


def test_damaged_trials_are_put_aside_and_done_again(
    desk: Path, undisturbed: Essence, figures: Counter[str]
) -> None:
    assert finished(desk)[0] == 0
    attacks = [trial for trial in done(desk) if trial.name.startswith(("sme", "ig"))]
    for damage, trial in zip(DAMAGES, attacks, strict=False):
        damage(trial)
        figures["trials damaged"] += 1
    code, said = finished(desk)
    assert code == 0, said
    assert said.count("was damaged") == len(DAMAGES)
    assert len(list((desk / "out" / "quarantine").iterdir())) == len(DAMAGES)
    same(desk, undisturbed, figures)


def finished_status(desk: Path) -> str:
    command = [sys.executable, "-m", "leakmeter.cli", "status", "out"]
    return subprocess.run(command, cwd=desk, capture_output=True, text=True, check=True).stdout


def test_files_that_grow_too_large_stop_the_audit_and_nothing_else(
    desk: Path, undisturbed: Essence, figures: Counter[str]
) -> None:
    """What a full disk looks like where no small one can be made."""

    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))

    code, said = finished(desk, preexec_fn=small_files)
    figures["disks filled"] += 1
    assert code == 2, said
    assert "cannot write" in said
    assert "run the same command again" in said
    assert "Traceback" not in said
    check_whole(desk)
    assert finished(desk)[0] == 0
    same(desk, undisturbed, figures)


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A disk of a megabyte, which only root can make."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount a file system here")
    return place


def test_a_full_disk_stops_the_audit_and_nothing_is_lost(
    small_disk: Path, undisturbed: Essence, figures: Counter[str]
) -> None:
    try:
        desk = sweeps.desk(small_disk)
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(900_000))
        code, said = finished(desk)
        figures["disks filled"] += 1
        assert code == 2, said
        assert "No space left on device" in said
        assert "Traceback" not in said
        check_whole(desk)
        ballast.unlink()
        code, said = finished(desk)
        assert code == 0, said
        same(desk, undisturbed, figures)
    finally:
        subprocess.run(["umount", "-l", str(small_disk)], check=True)


def test_a_read_only_folder_is_refused_before_any_work(
    small_disk: Path, desk: Path, figures: Counter[str]
) -> None:
    try:
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        code, said = finished(desk, out=str(small_disk / "out"))
        figures["folders made read-only"] += 1
        assert code == 2
        assert "cannot write to" in said
        assert "Read-only file system" in said
    finally:
        subprocess.run(["umount", "-l", str(small_disk)], check=True)


SHARE = """
import sys
from leakmeter.audits import Resources, Scenario
from leakmeter.audits.plan import plan
from leakmeter.execution.executors import Cache
from leakmeter.execution.progress import Screen
from leakmeter.execution.store import Store
from leakmeter.execution.sweep import sweep

scenario = Scenario.load("sweep.yaml")
trials = plan(scenario, scenario.settings(), Cache()).trials
store = Store("out")
store.prepare()
with Screen() as screen:
    print(sweep(store, trials, Resources(), screen))
"""


def test_two_audits_in_one_folder_share_the_work(
    desk: Path, undisturbed: Essence, figures: Counter[str]
) -> None:
    both = [
        subprocess.Popen([sys.executable, "-c", SHARE], cwd=desk, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    did = [int(process.communicate(timeout=300)[0]) for process in both]
    figures["audits side by side"] += 2
    assert sum(did) == TRIALS
    assert min(did) > 0
    assert essence(desk) == undisturbed


ELSEWHERE = f"""
import fsspec
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

class Elsewhere(DirFileSystem):
    protocol = "elsewhere"

    def __init__(self):
        super().__init__("elsewhere", LocalFileSystem(auto_mkdir=True))

fsspec.register_implementation("elsewhere", Elsewhere)
{SHARE.replace('Store("out")', 'Store("elsewhere://out")')}
"""
"""The same at a URL, where nothing can be locked or renamed."""


def test_two_audits_at_one_url_may_work_twice_and_lose_nothing(
    desk: Path, undisturbed: Essence, figures: Counter[str]
) -> None:
    command = [sys.executable, "-c", ELSEWHERE]
    homes = [os.environ | {"LEAKMETER_CACHE": str(desk / f"machine{n}")} for n in range(2)]
    both = [
        subprocess.Popen(command, cwd=desk, env=home, stdout=subprocess.PIPE, text=True)
        for home in homes
    ]
    did = [int(process.communicate(timeout=300)[0]) for process in both]
    figures["audits side by side"] += 2
    assert sum(did) >= TRIALS
    assert min(did) > 0
    found = essence(desk / "elsewhere")
    figures["trials checked"] += TRIALS
    figures["trials lost"] += len(undisturbed.keys() - found.keys())
    assert found == undisturbed


def test_a_budget_leaves_whole_clients_and_the_next_one_goes_on(desk: Path) -> None:
    scenario = {key: value for key, value in sweeps.SCENARIO.items() if key != "utility"}
    began = time.monotonic()
    assert finished(sweeps.desk(desk.parent / "small", scenario), "--processes", "2")[0] == 0
    budget = f"{time.monotonic() - began:.0f}s"
    sweeps.desk(desk, scenario | {"client": scenario["client"] | {"count": 90}})
    code, said = finished(desk, "--processes", "2", "--budget", budget)
    assert code == 0, said
    assert " trials fit the budget" in said
    assert "run the same audit again for the others" in said
    check_whole(desk)
    first = {trial: trial.stat().st_mtime_ns for trial in done(desk)}
    clients = Counter(int(trial.name.split("-")[-2]) for trial in first)
    # Two attacks on two defenses and on noise.
    assert all(clients[client] == 6 for client in range(max(clients)))
    assert max(clients) < 89
    assert finished(desk, "--processes", "2", "--budget", budget)[0] == 0
    second = {trial: trial.stat().st_mtime_ns for trial in done(desk)}
    assert len(second) > len(first)
    assert first.items() <= second.items()


def test_a_failing_trial_stops_no_other(desk: Path, figures: Counter[str]) -> None:
    failing = {"name": "idlg", "options": {"iterations": 5}}  # takes one example, there are two
    scenario = sweeps.SCENARIO | {"attacks": [*sweeps.SCENARIO["attacks"], failing]}
    sweeps.desk(desk, scenario)
    code, said = finished(desk)
    figures["trials that fail"] += 9
    assert code == 3, said
    assert "failed: 9 trials, such as idlg, client 0: " in said
    assert "12 of 18 attacks are finished" in said
    assert len(done(desk)) == TRIALS
    assert "failed: idlg-000" in finished_status(desk)
    assert "idlg, client 0" in (desk / "out" / "report.html").read_text()


def test_an_attack_too_large_for_the_memory_fails_alone(
    desk: Path, figures: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hungry = (
        "import torch\nfrom torch import nn\n"
        "class Hungry(nn.Sequential):\n"
        "    def forward(self, x):\n"
        "        if len(x) == 3:\n"
        "            torch.ones(1 << 45)\n"
        "        return super().forward(x)\n\n"
    )
    (desk / "own.py").write_text(
        hungry + sweeps.MODEL.replace("return nn.Sequential(", "return Hungry(")
    )
    scenario = sweeps.SCENARIO | {"vary": {"client.examples": [2, 3]}, "defenses": ["none"]}
    del scenario["utility"]
    sweeps.desk(desk, scenario)
    (desk / "own.py").write_text(
        hungry + sweeps.MODEL.replace("return nn.Sequential(", "return Hungry(")
    )
    code, said = finished(desk)
    figures["trials without memory"] += 12
    assert code == 3, said
    assert "out of memory: use fewer examples" in said
    assert len(done(desk)) == 12
