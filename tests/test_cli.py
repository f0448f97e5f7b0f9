"""The command line as a user meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open

import leakmeter as lm
from leakmeter.attacks.papers import RECIPES
from leakmeter.cli import main
from victims import examples

TINY_MODEL = """
from torch import nn

def tiny(classes, channels, size):
    features = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.Flatten())
    return nn.Sequential(features, nn.Linear(4 * size * size, classes))

def broken():
    raise RuntimeError("boom")
"""

SCENARIO: dict[str, Any] = {
    "name": "small",
    "model": {"name": "own.py:tiny"},
    "data": {"source": "photos", "size": 16},
    "client": {"examples": 2, "count": 2, "epochs": 3, "lr": 0.05},
    "attacks": [
        {"name": "sme", "options": {"iterations": 30}},
        {"name": "ig", "labels": "known", "options": {"iterations": 30}},
    ],
}


class Run(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def leakmeter(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Run]:
    """Runs a command line in the user's folder, in this process: importing torch takes long.

    So it does in each process that an audit starts, unless a test asks for them: as on one core.
    """
    monkeypatch.setattr("leakmeter.execution.executors.cores", lambda: 1)

    def run(command: str) -> Run:
        monkeypatch.chdir(desk)
        monkeypatch.setattr(sys, "argv", ["leakmeter", *command.split()])
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        assert isinstance(code, int)
        return Run(code, *capsys.readouterr())

    return run


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with a model, a scenario and an update of the user's own."""
    (tmp_path / "own.py").write_text(TINY_MODEL)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SCENARIO))
    tiny: dict[str, Any] = {}
    exec(TINY_MODEL, tiny)
    images = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    client = lm.Client(tiny["tiny"](5, 1, 12), images, torch.tensor([0, 1, 3]), epochs=2, lr=0.05)
    client.train().save(tmp_path / "u.safetensors")
    return tmp_path


def test_audit_ends_with_a_report_and_is_not_done_twice(
    desk: Path, leakmeter: Callable[..., Run]
) -> None:
    first = leakmeter("audit small.yaml --out out --processes 2")
    assert first.code == 0, first.err
    report = desk / "out" / "report.html"
    assert first.out.splitlines()[-1] == f"report: {report.resolve()}"
    assert "sme" in report.read_text()
    found = sorted((desk / "out" / "trials").glob("*/*"))
    # Two attacks on two clients, the baseline of each, and the path of each client.
    names = [path.name for path in found]
    assert {name: names.count(name) for name in names} == {
        "manifest.json": 10,
        "reconstruction.safetensors": 8,
        "result.json": 10,
        "spec.json": 10,
        "truth.safetensors": 4,
    }
    times = {path: path.stat().st_mtime_ns for path in found}
    assert leakmeter("audit small.yaml --out out").code == 0
    assert {path: path.stat().st_mtime_ns for path in found} == times


def test_a_killed_audit_goes_on_where_it_was(desk: Path) -> None:
    scenario = SCENARIO | {
        "attacks": [
            {"name": "ig", "options": {"iterations": 5}},
            {"name": "agic", "options": {"iterations": 100_000}},
        ],
        "client": SCENARIO["client"] | {"count": 1},
    }
    (desk / "long.yaml").write_text(yaml.safe_dump(scenario))
    command = [sys.executable, "-m", "leakmeter.cli", "audit", "long.yaml", "--out", "out"]

    def seconds_spent(after: int = 0, least: float = 0) -> tuple[float, int]:
        """Work in the next checkpoint written ``after`` that time, and when it was written."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for path in desk.glob("out/.work/agic-000-*/attack-*/search-*.safetensors"):
                written = path.stat().st_mtime_ns
                if written > after:
                    with safe_open(path, framework="pt") as file:
                        spent = float(json.loads(file.metadata()["numbers"])["seconds"])
                    if spent >= least:
                        return spent, written
            time.sleep(0.1)
        raise AssertionError("no checkpoint was written")

    with subprocess.Popen(command, cwd=desk) as first:
        try:
            spent, written = seconds_spent(least=8)
        finally:
            first.kill()
    kept = list(desk.glob("out/trials/ig-0*/reconstruction.safetensors"))
    assert kept
    lm.Reconstruction.load(kept[0])
    assert not list(desk.glob("out/trials/agic-*"))
    with subprocess.Popen(command, cwd=desk, stderr=subprocess.PIPE, text=True) as second:
        try:
            # A run from the start would store after a second or two of work.
            assert seconds_spent(written)[0] > spent
            second.send_signal(signal.SIGINT)
            _, stderr = second.communicate(timeout=20)
        finally:
            second.kill()
    assert second.returncode == 130
    assert "run the same command again" in stderr


def test_attack_on_a_captured_update_needs_no_truth(
    desk: Path, leakmeter: Callable[..., Run]
) -> None:
    command = "attack u.safetensors --model own.py:tiny --attack sme --iterations 20 --out found"
    done = leakmeter(command)
    assert done.code == 0, done.err
    found = lm.Reconstruction.load(desk / "found" / "reconstruction.safetensors")
    assert found.images.shape == (3, 1, 12, 12)
    assert (desk / "found" / "report.html").exists()
    assert not (desk / "found" / ".work").exists()


def test_what_the_file_does_not_say_can_be_told(desk: Path, leakmeter: Callable[..., Run]) -> None:
    update = lm.Update.load(desk / "u.safetensors")
    lm.Update(update.before, update.after, None, 3).save(desk / "bare.safetensors")
    command = "attack bare.safetensors --model own.py:tiny --attack ig --iterations 3 --out found"
    for told in ("--input-shape 1,12,12", "--classes 5", "--normalize none"):
        asked = leakmeter(command)
        assert asked.code == 2
        assert told.split()[0] in asked.err
        command += f" {told}"
    assert leakmeter(command).code == 0
    assert leakmeter(f"{command} --normalize 0.5:0.25 --labels 0,1,3 --lr 0.05").code == 0


def test_every_recipe_attacks_a_users_own_model(desk: Path, leakmeter: Callable[..., Run]) -> None:
    (desk / "dense.py").write_text(
        "from torch import nn\n"
        "def dense(classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(144, classes))\n"
    )
    model = lm.models.build(f"{desk}/dense.py:dense", classes=5)
    images, labels = examples(count=1)
    lm.Client(model, images, labels, epochs=2).train().save(desk / "one.safetensors")
    for name in RECIPES:
        short = "" if name == "closed_form" else "--iterations 2"
        if name in ("dlg", "idlg"):
            short += " --option restarts=1"
        done = leakmeter(
            f"attack one.safetensors --model dense.py:dense --attack {name} {short} --out o-{name}"
        )
        assert done.code == 0, done.err
        assert (desk / f"o-{name}" / "report.html").exists()


def test_several_updates_of_the_same_examples_are_attacked_together(
    desk: Path, leakmeter: Callable[..., Run]
) -> None:
    command = "attack u.safetensors u.safetensors --model own.py:tiny --attack agic"
    done = leakmeter(f"{command} --iterations 5 --option tv=0.01 --out both")
    assert done.code == 0, done.err
    found = lm.Reconstruction.load(desk / "both" / "reconstruction.safetensors")
    assert found.images.shape == (3, 1, 12, 12)
    assert "TotalVariation(weight=0.01, " in found.attack


def test_show_and_list(leakmeter: Callable[..., Run]) -> None:
    shown = yaml.safe_load(leakmeter("show small.yaml").out)
    assert shown["attacks"][0]["options"]["alpha"] == 0.5
    everything = leakmeter("list").out
    for name in ("sme", "Surrogate Model Extension", "cnn-cifar", "photos"):
        assert name in everything
    attacks = leakmeter("list attacks").out
    assert "photos" not in attacks
    for name in RECIPES:
        assert f"  {name} " in attacks
    assert attacks.count("Needs ") == len(RECIPES)


def test_usage_errors_and_help(leakmeter: Callable[..., Run]) -> None:
    assert leakmeter("--help").code == 0
    assert "audit" in leakmeter("--help").out
    assert "The folder of an audit, or its results.json." in leakmeter("compare --help").out
    missing = leakmeter("audit small.yaml")
    assert missing.code == 2
    assert "--out" in missing.err


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys, leakmeter.cli; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


BAD = {
    "no such folder": ("audit nowhere --model mlp --out out", "nowhere: No such file or folder"),
    "no such scenario": ("audit nowhere.yaml --out out", "nowhere.yaml: No such file"),
    "scenario is not YAML": ("audit not.yaml --out out", "is not YAML"),
    "unknown model": ("audit model.yaml --out out", "did you mean 'cnn-cifar'"),
    "unknown attack": ("audit attack.yaml --out out", "did you mean 'sme'"),
    "unknown field": ("show field.yaml", "did you mean 'epochs'"),
    "too few images": ("audit greedy.yaml --out out", "client.count x client.examples is 900"),
    "no writers": ("audit writer.yaml --out out", "names no writers"),
    "missing data": ("audit data.yaml --out out", "nowhere.npz"),
    "broken factory": ("audit factory.yaml --out out", "boom"),
    "output is a file": ("audit small.yaml --out own.py", "cannot write to own.py"),
    "pickled update": ("attack u.pt --model own.py:tiny --attack ig --out out", "pickle"),
    "truncated update": (
        "attack cut.safetensors --model own.py:tiny --attack ig --out out",
        "not a whole safetensors file",
    ),
    "update with NaN": (
        "attack nan.safetensors --model own.py:tiny --attack ig --out out",
        "after/1.weight contains NaN",
    ),
    "wrong architecture": (
        "attack u.safetensors --model mlp --attack ig --out out",
        "before does not match the model",
    ),
    "misspelt attack": (
        "attack u.safetensors --model own.py:tiny --attack smee --out out",
        "did you mean 'sme'",
    ),
    "no such factory": (
        "attack u.safetensors --model own.py:small --attack ig --out out",
        "small",
    ),
    "wrong number of labels": (
        "attack u.safetensors --model own.py:tiny --attack ig --labels 1,2 --out out",
        "labels must be 3 integers",
    ),
    "labels are no numbers": (
        "attack u.safetensors --model own.py:tiny --attack ig --labels cat --out out",
        "--labels 'cat'",
    ),
    "zero iterations": (
        "attack u.safetensors --model own.py:tiny --attack ig --iterations 0 --out out",
        "iterations is 0",
    ),
    "sme on one gradient": (
        "attack g.safetensors --model own.py:tiny --attack sme --out out",
        "use ig",
    ),
    "misspelt option": (
        "attack u.safetensors --model own.py:tiny --attack ig --option vt=1 --out out",
        "did you mean 'tv'",
    ),
    "option without a value": (
        "attack u.safetensors --model own.py:tiny --attack ig --option tv --out out",
        "write it as NAME=VALUE",
    ),
    "iterations given twice": (
        "attack u.safetensors --model own.py:tiny --attack ig --iterations 5 "
        "--option iterations=9 --out out",
        "iterations is given twice",
    ),
    "option is no number": (
        "attack u.safetensors --model own.py:tiny --attack ig --option tv=much --out out",
        "options.tv",
    ),
    "one example expected": (
        "attack u.safetensors --model own.py:tiny --attack idlg --out out",
        "the update has 3 examples",
    ),
    "simulation of a gradient": (
        "attack g.safetensors --model own.py:tiny --attack dlfa --out out",
        "use ig",
    ),
    "no such device": (
        "attack u.safetensors --model own.py:tiny --attack ig --device tpu9 --out out",
        "device",
    ),
}


def spoil(desk: Path) -> None:
    """The files that the bad commands name."""
    (desk / "not.yaml").write_text("a: [")
    changes: dict[str, dict[str, object]] = {
        "model": {"model": {"name": "cnn-cifr"}},
        "attack": {"attacks": [{"name": "smee"}]},
        "field": {"client": {"epoch": 3}},
        "greedy": {"client": {"examples": 900}},
        "writer": {"client": {"pick": "writer"}},
        "data": {"data": {"source": "npz:nowhere.npz"}},
        "factory": {"model": {"name": "own.py:broken"}},
    }
    for name, change in changes.items():
        (desk / f"{name}.yaml").write_text(yaml.safe_dump(SCENARIO | change))
    update = lm.Update.load(desk / "u.safetensors")
    torch.save(update.before, desk / "u.pt")
    whole = (desk / "u.safetensors").read_bytes()
    (desk / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    assert update.after is not None
    weight = update.after["1.weight"].numpy()
    start = whole.index(weight.tobytes())
    holed = whole[:start] + np.float32("nan").tobytes() + whole[start + 4 :]
    (desk / "nan.safetensors").write_bytes(holed)
    gradient = {name: tensor + 1 for name, tensor in update.before.items()}
    sent = lm.Update(update.before, None, gradient, 3, update.protocol)
    sent.save(desk / "g.safetensors")


@pytest.mark.parametrize("name", BAD)
def test_bad_inputs_end_in_one_clear_line_and_code_2(
    name: str, desk: Path, leakmeter: Callable[..., Run]
) -> None:
    spoil(desk)
    command, says = BAD[name]
    end = leakmeter(command)
    assert end.code == 2
    assert len(end.err.splitlines()) == 1
    assert says in end.err


def test_fifteen_bad_inputs_are_listed() -> None:
    assert len(BAD) >= 15


LEAKING = {
    "name": "leaking",
    "model": {"name": "mlp"},
    "data": {"source": "faces"},
    "client": {"examples": 1, "shares": "gradient"},
    "attacks": [{"name": "closed_form"}],
    "defenses": ["none", {"name": "noise", "options": {"clip": 1e-3, "multiplier": 10}}],
}


def test_more_leakage_than_accepted_fails_a_build(
    desk: Path, leakmeter: Callable[..., Run]
) -> None:
    (desk / "leaking.yaml").write_text(yaml.safe_dump(LEAKING))
    accepted = leakmeter("audit leaking.yaml --out out --fail-above 1")
    assert accepted.code == 0, accepted.err
    refused = leakmeter("audit leaking.yaml --out out --fail-above 0.5")
    assert refused.code == 1
    assert refused.err.splitlines() == ["none: 100% of the images leak"]
    assert (desk / "out" / "results.csv").exists()
    assert leakmeter("audit leaking.yaml --out out --fail-above 2").code == 2


def test_two_audits_are_compared(desk: Path, leakmeter: Callable[..., Run]) -> None:
    (desk / "leaking.yaml").write_text(yaml.safe_dump(LEAKING))
    assert leakmeter("audit leaking.yaml --out one").code == 0
    assert leakmeter("audit leaking.yaml --out two").code == 0
    done = leakmeter("compare one two")
    assert done.code == 0, done.err
    assert "cannot be told apart" in done.out
    missing = leakmeter("compare one three")
    assert missing.code == 2
    assert "three" in missing.err


def test_advice_turns_the_knobs(desk: Path, leakmeter: Callable[..., Run]) -> None:
    scenario = SCENARIO | {
        "client": {"examples": 2, "epochs": 2, "lr": 0.05},
        "attacks": [{"name": "ig", "options": {"iterations": 2}}],
        "utility": {"rounds": 1, "clients": 2},
    }
    (desk / "advise.yaml").write_text(yaml.safe_dump(scenario))
    done = leakmeter("advise advise.yaml --out out")
    assert done.code == 0, done.err
    rows = json.loads((desk / "out" / "results.json").read_text())["configurations"]
    assert {"none", "epochs=8", "top_k keep=0.01"} < {row["label"] for row in rows}
    twice = leakmeter("advise leaking.yaml --out out")
    assert twice.code == 2


def test_defenses_are_listed_with_what_the_attacker_knows(leakmeter: Callable[..., Run]) -> None:
    out = leakmeter("list defenses").out
    assert "top_k" in out
    assert "Options: keep." in out
    assert "rank=4, alpha=8.0" in out
    assert "The server sees which entries were sent" in out
