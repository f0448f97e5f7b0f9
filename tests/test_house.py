"""Promises about the whole: nothing is done twice, folders need nothing else, one judge."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import leakmeter
from leakmeter import front, models, report
from leakmeter.attacks.prior import TotalVariation
from leakmeter.audits import Folder, Scenario, run
from leakmeter.cli import main
from leakmeter.errors import LeakmeterError
from leakmeter.execution.identity import identity
from leakmeter.federated import Client
from leakmeter.judge import judge
from test_report import PROVENANCE, picked_out, render, scored, text_of

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "leakmeter"


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """Run the command line; its exit code."""
    monkeypatch.setattr(sys, "argv", ["leakmeter", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


# The sources


def test_no_class_name_occurs_twice() -> None:
    names = Counter(
        node.name
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_only_the_engine_hashes_and_keeps_work() -> None:
    """``state.py`` has the digests of tensors and files that everything else asks for."""
    users = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if "hashlib" in path.read_text(encoding="utf-8")
    }
    assert {user for user in users if not user.startswith("execution/")} == {"state.py"}


# Nothing is done twice


def counted(monkeypatch: pytest.MonkeyPatch, calls: Counter[str], owner: Any, name: str) -> None:
    real = getattr(owner, name)

    def counting(*arguments: Any, **more: Any) -> Any:
        calls[name] += 1
        return real(*arguments, **more)

    monkeypatch.setattr(owner, name, counting)


def test_the_example_is_set_up_trained_and_judged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned, attacked twice, twice on noise, its path measured, reported: all in one process."""
    text = (ROOT / "examples" / "photos.yaml").read_text(encoding="utf-8")
    assert text.count("iterations: 300") == 2
    (tmp_path / "photos.yaml").write_text(text.replace("iterations: 300", "iterations: 2"))
    calls: Counter[str] = Counter()
    counted(monkeypatch, calls, leakmeter.data, "load")
    counted(monkeypatch, calls, models, "build")
    counted(monkeypatch, calls, Client, "train")
    counted(monkeypatch, calls, front, "judge")
    scenario, out = str(tmp_path / "photos.yaml"), str(tmp_path / "out")
    assert command(monkeypatch, "audit", scenario, "--out", out, "--processes", "1") == 0
    assert len(list((tmp_path / "out" / "trials").iterdir())) == 5
    assert calls == {"load": 1, "build": 1, "train": 1, "judge": 1}


# A folder describes itself

SMALL: dict[str, Any] = {
    "name": "a small audit",
    "model": {"name": "lenet-zhu"},
    "data": {"source": "photos", "size": 16},
    "client": {"examples": 2, "count": 2, "epochs": 2, "lr": 0.05},
    "attacks": [{"name": "ig", "options": {"iterations": 2}}],
}


def small(**changes: Any) -> Scenario:
    return Scenario.model_validate(SMALL | changes)


def test_a_finished_folder_survives_a_change_of_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _ = run(small(), tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("trials/*/*")}
    monkeypatch.setattr(leakmeter, "__version__", "0.1.1")
    after, provenance = Folder(tmp_path).read()
    assert provenance.title == "a small audit"
    assert provenance.versions["leakmeter"] == "0.1.0"  # that made it, not that reads it
    assert [each.finding for each in after] == [each.finding for each in before]
    run(small(), tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("trials/*/*")} == written


OWN_MODEL = """
from torch import nn

def tiny(classes, channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))
"""


def test_a_folder_is_read_where_neither_data_nor_model_is(tmp_path: Path) -> None:
    desk, elsewhere = tmp_path / "desk", tmp_path / "elsewhere"
    for number in range(12):
        place = desk / "images" / f"class{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = leakmeter.data.load("photos", size=16).images[number]
        leakmeter_png(pixels, place / f"{number}.png")
    (desk / "own.py").write_text(OWN_MODEL)
    scenario = small(
        model={"name": f"{desk}/own.py:tiny"}, data={"source": f"folder:{desk}/images", "size": 16}
    )
    evidence, provenance = run(scenario, desk / "out")
    page = report.render(judge(evidence, provenance), evidence, provenance)
    shutil.move(desk / "out", elsewhere)
    shutil.rmtree(desk)
    again, about = Folder(elsewhere).read()
    assert about.class_names == ("class0", "class1", "class2")
    about = replace(about, date=provenance.date)
    assert report.render(judge(again, about), again, about) == page
    run_elsewhere = [sys.executable, "-m", "leakmeter.cli", "report", "elsewhere"]
    said = subprocess.run(run_elsewhere, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "report: " in said.stdout


def leakmeter_png(pixels: torch.Tensor, path: Path) -> None:
    from PIL import Image

    array = pixels.mul(255).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(array).save(path)


def test_what_has_changed_in_a_folder_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(small(), tmp_path)
    assert "held another audit" not in capsys.readouterr().err
    more = [*SMALL["attacks"], {"name": "sme", "options": {"iterations": 2}}]
    run(small(attacks=more), tmp_path)
    said = " ".join(capsys.readouterr().err.split())
    # An attack and its baseline on each of two clients, and two paths.
    assert "6 of its trials are used again, 4 are new, 0 are not part of this one" in said
    run(small(seed=1), tmp_path)
    said = " ".join(capsys.readouterr().err.split())
    assert "0 of its trials are used again, 6 are new, 10 are not part" in said
    assert len(Folder(tmp_path).read()[0]) == 2


def test_a_plan_that_is_damaged_is_named(tmp_path: Path) -> None:
    run(small(), tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(LeakmeterError, match=r"plan\.json cannot be read"):
        Folder(tmp_path).read()


# Recognizing work


def test_the_same_description_is_recognized_on_any_machine() -> None:
    """These texts are in people's folders: they may not change while ENCODING is the same."""
    assert identity({"lr": 0.1, "epochs": 2})[:16] == "203295d6097178ae"
    assert identity([TotalVariation(0.01), torch.arange(3), None])[:16] == "3a84e34b87a4d9d3"


def test_what_cannot_be_recognized_is_refused() -> None:
    with pytest.raises(LeakmeterError, match="object cannot be recognized again"):
        identity({"part": object()})
    with pytest.raises(LeakmeterError, match="function cannot be recognized again"):
        identity(lambda: 0)


# One judge


@pytest.mark.parametrize(
    ("evidence", "hits", "share"),
    [
        (picked_out(8, 8, 2), "All 8", 0.75),
        (scored(6, 8, 1), "6 of 8", 0.625),
        (scored(1, 8, 0), "1 of 8", 0.125),
    ],
    ids=["picked out", "recognized", "one"],
)
def test_one_number_wherever_it_is_printed(
    evidence: Any, hits: str, share: float, tmp_path: Path
) -> None:
    found = judge([evidence], PROVENANCE)
    (only,) = found.configurations
    assert only.leak is not None
    assert only.leak.share == share
    assert found.sentence.startswith(hits)
    assert found.above(share - 1e-9) == [("none", share)]  # the gate
    assert found.above(share) == []
    (row,) = report.compare(found, found).rows
    assert row.before.mean == share
    several = replace(PROVENANCE, configurations=(*PROVENANCE.configurations, other("lora")))
    page = render([evidence, replace(scored(0, 8), configuration="lora")], several)
    assert f"--share: {share:.3f}" in page  # the matrix
    assert hits.replace("All 8", "8 of 8") in text_of(page)
    report.write_results(found, tmp_path)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["configurations"][0]["level"] == found.level


def other(defense: str) -> Any:
    return replace(PROVENANCE.configurations[0], defense=defense)
