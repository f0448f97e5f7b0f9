"""Folders that earlier versions wrote stay readable, without the data and the networks."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from leakmeter.cli import main

GOLDEN = Path(__file__).parent / "golden" / "0.1.0"


class Said(NamedTuple):
    code: object
    out: str
    err: str


@pytest.fixture
def leakmeter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """The command line in a folder that holds copies of the golden ones and nothing else."""
    shutil.copytree(GOLDEN, tmp_path / "golden")
    monkeypatch.chdir(tmp_path / "golden")

    def command(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["leakmeter", *words])
        with pytest.raises(SystemExit) as end:
            main()
        # Lines are as wide as the terminal is.
        out, err = (" ".join(text.split()) for text in capsys.readouterr())
        return Said(end.value.code, out, err)

    return command


def test_how_far_each_one_is(leakmeter: Callable[..., Said]) -> None:
    assert leakmeter("status", "audit").out == "28 of 28 trials done, 0 running"
    assert leakmeter("status", "blind").out == "12 of 12 trials done, 0 running"
    assert leakmeter("status", "measured").out == "8 of 8 trials done, 0 running"
    alone = leakmeter("status", "alone").out
    assert alone.startswith("3 of 5 trials done, 0 running, 2 failed failed: idlg-000-")
    assert "iDLG reads the label of one" in alone


def test_what_each_one_found(
    leakmeter: Callable[..., Said], capsys: pytest.CaptureFixture[str]
) -> None:
    leakmeter("results", "audit", "--format", "csv", "--to", "audit.csv")
    rows = list(csv.DictReader(io.StringIO(Path("audit.csv").read_text())))
    assert len(rows) == 16
    first = rows[4]
    assert (first["setting"], first["attack"]) == ("epochs=1", "closed_form")
    assert first["client"] == "0"
    assert float(first["psnr"]) == 23.12589832917343
    assert float(first["baseline_psnr"]) == 11.203466060204324
    leakmeter("results", "measured", "--format", "json", "--to", "measured.json")
    measured = json.loads(Path("measured.json").read_text())
    assert [row["client"] for row in measured] == [0, 1, 0, 1]
    assert [row["setting"] for row in measured] == ["round-0001"] * 2 + ["round-0002"] * 2
    assert measured[0]["psnr"] == 27.123278678192754
    leakmeter("results", "blind", "--format", "json", "--to", "blind.json")
    assert [row["psnr"] for row in json.loads(Path("blind.json").read_text())] == [None] * 4


def test_two_of_them_side_by_side(leakmeter: Callable[..., Said]) -> None:
    same = leakmeter("compare", "audit", "audit")
    assert same.code == 0
    assert "100%→100%" in same.out
    assert "120.0→120.0" in same.out
    assert "13%→13%" in same.out
    assert "Leakage cannot be told apart in all 8 comparisons." in same.out
    other = leakmeter("compare", "audit", "alone").out
    assert "no attack on a configuration in common" in other


def test_the_gate_fails_where_images_leaked(leakmeter: Callable[..., Said]) -> None:
    audit = leakmeter("report", "audit", "--fail-above", "0.1")
    assert audit.code == 1
    assert "All 4 configurations leak: with “epochs=1”, all 2 training images could be" in audit.out
    assert "epochs=3: 100% of the images leak" in audit.err
    assert leakmeter("report", "audit").code == 0


def test_reports_need_neither_data_nor_networks(leakmeter: Callable[..., Said]) -> None:
    """The updates and the originals of these two are gone; of the third all are embedded."""
    assert leakmeter("report", "blind").code == 0
    page = Path("blind/report.html").read_text(encoding="utf-8")
    assert "Updates recorded in recorded" in page
    assert page.count("<img ") == 8
    measured = leakmeter("report", "measured", "--fail-above", "0.5")
    assert measured.code == 1
    assert "All 2 configurations leak: with “round-0001”, all 4 training images" in measured.out
    page = Path("measured/report.html").read_text(encoding="utf-8")
    assert "PSNR 30.1 dB" in page  # measured then; the originals are not in the folder
    alone = leakmeter("report", "alone")
    assert alone.code == 3
    assert "1 of 2 attacks are finished" in alone.err


def test_trials_of_a_table_are_found(leakmeter: Callable[..., Said]) -> None:
    np.savez("femnist.npz", images=np.zeros((20, 28, 28), np.uint8), labels=np.arange(20))
    asked = ("--iterations", "3", "--repeats", "2", "--data", ".", "--out", "bench")
    found = leakmeter("bench", "sme-2", "--rows", "femnist E=10 N=10 [IS]*", *asked)
    assert found.code == 0
    for mean in ("16.16", "16.12", "0.1437", "0.1209"):
        assert mean in found.out
    assert not list(Path("bench/sme-2").glob("trials/*"))
