"""Audits of recorded updates: with the truth, without it, and what goes wrong."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import leakmeter as lm
from leakmeter import report
from leakmeter.audits import Folder, RecordedAudit, run_recorded
from leakmeter.audits.parts import AttackPart
from leakmeter.audits.recorded import plan_recorded, truth_of
from leakmeter.cli import main
from leakmeter.errors import LeakmeterError
from leakmeter.execution.executors import Cache
from leakmeter.judge import judge
from leakmeter.report.export import as_csv

SME = AttackPart(name="sme", options={"iterations": 60})


@pytest.fixture
def recorded(tmp_path: Path, photos: lm.data.Dataset) -> Path:
    """Two rounds of two clients with three photographs each, and what they had."""
    model = lm.models.build("cnn-cifar", classes=photos.classes)
    for turn in (1, 2):
        for number in (0, 1):
            chosen = slice(3 * number, 3 * number + 3)
            images, labels = photos.images[chosen], photos.labels[chosen]
            client = lm.Client(model, images, labels, epochs=turn, lr=0.01, normalize="photos")
            folder = tmp_path / "recorded" / f"round-000{turn}"
            folder.mkdir(parents=True, exist_ok=True)
            client.train().save(folder / f"client-{number}.safetensors")
            (tmp_path / "truth").mkdir(exist_ok=True)
            np.savez(
                tmp_path / "truth" / f"client-{number}.npz",
                images=(images * 255).round().byte().permute(0, 2, 3, 1).numpy(),
                labels=labels.numpy(),
                class_names=np.array(photos.class_names),
            )
    return tmp_path


def test_with_the_truth_leakage_is_measured(recorded: Path) -> None:
    request = RecordedAudit(
        folder=recorded / "recorded",
        model="cnn-cifar",
        attack=SME.model_copy(update={"options": SME.options | {"iterations": 20}}),
        truth=recorded / "truth",
        distractors="photos",
    )
    evidence, provenance = run_recorded(request, recorded / "out")
    assert [each.label for each in provenance.configurations] == ["round-0001", "round-0002"]
    assert [(run.configuration, run.client) for run in evidence] == [
        (label, client) for label in ("round-0001", "round-0002") for client in (0, 1)
    ]
    for run in evidence:
        assert run.finding is not None
        assert len(run.finding.scores.psnr) == 3
        assert run.agreement == ()
        assert run.replay is not None
    # One attempt and its baseline for each record; a second run does nothing.
    times = {path: path.stat().st_mtime_ns for path in recorded.glob("out/trials/*/*")}
    assert len({path.parent for path in times}) == 8
    run_recorded(request, recorded / "out")
    assert {path: path.stat().st_mtime_ns for path in recorded.glob("out/trials/*/*")} == times


def test_without_the_truth_two_attempts_are_compared(recorded: Path) -> None:
    request = RecordedAudit(
        folder=recorded / "recorded" / "round-0001", model="cnn-cifar", attack=SME
    )
    evidence, provenance = run_recorded(request, recorded / "out")
    assert all(run.finding is None and run.truth is None for run in evidence)
    for run in evidence:
        assert len(run.agreement) == 3
        # What comes out of noise does not explain it when a client trains on it.
        assert run.replay is not None
        assert run.baseline_replay is not None
        assert run.replay > run.baseline_replay + 0.3
    again, _ = Folder(recorded / "out").read()
    assert [run.agreement for run in again] == [run.agreement for run in evidence]
    found = judge(evidence, provenance)
    page = report.render(found, evidence, provenance)
    assert "Two starts" in page
    assert "Replay score" in page
    assert found.level == "not measured"
    assert "Training on what was found leads to the same update by" in found.detail


def test_the_truth_changes_nothing_about_the_attack(recorded: Path) -> None:
    short = SME.model_copy(update={"options": SME.options | {"iterations": 10}})
    plain = RecordedAudit(
        folder=recorded / "recorded" / "round-0001", model="cnn-cifar", attack=short
    )
    told = plain.model_copy(update={"truth": recorded / "truth", "distractors": "photos"})
    blind, _ = run_recorded(plain, recorded / "blind")
    measured, _ = run_recorded(told, recorded / "measured")
    for one, other in zip(blind, measured, strict=True):
        assert one.found.images.equal(other.found.images)


def test_the_command_line(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(recorded)
    command = (
        "leakmeter audit recorded --model cnn-cifar --attack sme --option iterations=20 "
        "--truth truth --distractors photos --processes 1 --out out"
    )
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert "report: " in capsys.readouterr().out
    plan = json.loads((recorded / "out/plan.json").read_text())
    assert [each["client"] for each in plan["attacks"]] == [0, 1, 0, 1]
    assert (recorded / "out" / "results.csv").read_text().count("\nround-0002,") == 6


def no_model(folder: Path) -> list[str]:
    return ["recorded"]


def no_records(folder: Path) -> list[str]:
    (folder / "empty").mkdir()
    return ["empty", "--model", "cnn-cifar"]


def other_network(folder: Path) -> list[str]:
    return ["recorded", "--model", "lenet-zhu"]


def no_truth(folder: Path) -> list[str]:
    (folder / "truth" / "client-1.npz").unlink()
    return ["recorded", "--model", "cnn-cifar", "--truth", "truth"]


def truth_of_others(folder: Path) -> list[str]:
    np.savez(
        folder / "truth" / "client-1.npz", images=np.zeros((2, 32, 32, 3), np.uint8), labels=[0, 1]
    )
    return ["recorded", "--model", "cnn-cifar", "--truth", "truth"]


def damaged(folder: Path) -> list[str]:
    file = folder / "recorded" / "round-0001" / "client-0.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    return ["recorded", "--model", "cnn-cifar"]


def misspelt(folder: Path) -> list[str]:
    return ["recorded", "--model", "cnn-cifar", "--attack", "smee"]


def for_a_scenario(folder: Path) -> list[str]:
    (folder / "s.yaml").write_text("name: a")
    return ["s.yaml", "--model", "cnn-cifar"]


MISTAKES: dict[Callable[[Path], list[str]], str] = {
    no_model: "name their network by --model",
    no_records: "has no recorded updates",
    other_network: "before does not match the model",
    no_truth: "there is no client-1.npz",
    truth_of_others: "its images have shape (2, 3, 32, 32), the update is of (3, 3, 32, 32)",
    damaged: "is not a whole safetensors file",
    misspelt: "did you mean 'sme'?",
    for_a_scenario: "is a scenario, which says all of that itself",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_mistakes_end_in_one_clear_line(
    mistake: Callable[[Path], list[str]],
    recorded: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(recorded)
    monkeypatch.setattr(sys, "argv", ["leakmeter", "audit", *mistake(recorded), "--out", "out"])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert MISTAKES[mistake] in said
    assert len(said.splitlines()) == 1
    assert not list(recorded.glob("out/trials/*"))


def test_line_ups_need_somebody_else(recorded: Path) -> None:
    for file in [*recorded.glob("recorded/*/client-1.*"), recorded / "truth" / "client-1.npz"]:
        file.unlink()
    request = RecordedAudit(
        folder=recorded / "recorded", model="cnn-cifar", attack=SME, truth=recorded / "truth"
    )
    with pytest.raises(LeakmeterError, match="--distractors"):
        run_recorded(request, recorded / "out")


def test_without_the_truth_trials_are_listed_all_the_same(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recorded)
    short = SME.model_copy(update={"options": SME.options | {"iterations": 3}})
    request = RecordedAudit(folder=Path("recorded/round-0001"), model="cnn-cifar", attack=short)
    run_recorded(request, recorded / "out")
    listed = list(Folder(recorded / "out").rows())
    assert [row["client"] for row in listed] == [0, 1]
    assert all(row["psnr"] is None and row["seconds"] > 0 for row in listed)
    assert as_csv(listed).count("\n") == 3
    monkeypatch.chdir(recorded / "truth")  # a report may be written from anywhere
    assert len(Folder(recorded / "out").read()[0]) == 2
    for trial in (recorded / "out" / "trials").iterdir():
        shutil.rmtree(trial)
    with pytest.raises(LeakmeterError, match="no attack is finished yet"):
        Folder(recorded / "out").read()


def test_nobody_stands_in_the_line_up_twice(recorded: Path, photos: lm.data.Dataset) -> None:
    request = RecordedAudit(
        folder=recorded / "recorded",
        model="cnn-cifar",
        attack=SME,
        truth=recorded / "truth",
        distractors="photos",
    )
    had, others = truth_of(Cache(), request, recorded / "truth" / "client-0.npz")
    assert len(others) == len(lm.data.load("photos", size=32)) - len(had)
    near = (others.images[:, None] - had.images).abs().amax((2, 3, 4))
    assert near.min() > 2 / 255
    alone = request.model_copy(update={"distractors": None})
    assert len(truth_of(Cache(), alone, recorded / "truth" / "client-0.npz")[1]) == 3
    gray = request.model_copy(update={"distractors": "faces"})
    with pytest.raises(LeakmeterError, match="--distractors: images of shape"):
        plan_recorded(gray, Cache())
