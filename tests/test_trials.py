"""Trials: what makes two the same, where they are stored, how they are listed and chosen."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from leakscope.audit import Means, Scenario, read_back, run
from leakscope.audit.crew import Here
from leakscope.audit.memory import at_most, is_shortage
from leakscope.audit.plan import distinct, plan
from leakscope.audit.progress import Board
from leakscope.audit.schedule import Cost, ordered
from leakscope.audit.status import COLUMNS, rows, status
from leakscope.audit.store import MANIFEST, Store
from leakscope.audit.sweep import sweep
from leakscope.audit.trial import Job, Outcome
from leakscope.cli import main
from leakscope.errors import LeakscopeError, StorageError

BASE: dict[str, Any] = {
    "model": {"name": "lenet-zhu"},
    "data": {"source": "photos", "size": 32},
    "client": {"examples": 2, "count": 2, "lr": 0.05},
    "attacks": [{"name": "ig", "options": {"iterations": 3}}],
}


def scenario(**changes: Any) -> Scenario:
    return Scenario.model_validate(BASE | changes)


def ids(**changes: Any) -> set[str]:
    """Of attacks and baselines: paths do not depend on attacks."""
    trials = distinct(plan(scenario(**changes).settings()))
    return {trial.id for trial in trials if trial.kind != "path"}


def attack(**options: Any) -> list[dict[str, Any]]:
    return [{"name": "ig", "options": {"iterations": 3, **options}}]


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "another title"},
        {"attacks": [{"name": "ig", "label": "IG", "options": {"iterations": 3}}]},
        {"attacks": attack(tv=0.01)},  # what it is by default
    ],
    ids=["title", "label", "default spelt out"],
)
def test_what_changes_no_result_changes_no_trial(changes: dict[str, Any]) -> None:
    assert ids(**changes) == ids()


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"attacks": attack(tv=0.02)},
        {"client": BASE["client"] | {"lr": 0.06}},
        {"model": {"name": "lenet-zhu", "seed": 1}},
        {"data": {"source": "photos", "size": 28}},
        {"compiling": "always"},
        {"attacks": [{"name": "ig", "labels": "known", "options": {"iterations": 3}}]},
    ],
    ids=["seed", "option", "client", "weights", "images", "compiling", "labels"],
)
def test_what_changes_a_result_makes_other_trials(changes: dict[str, Any]) -> None:
    assert not ids(**changes) & ids()


def test_a_changed_default_changes_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    from leakscope.attack import papers

    before = ids()
    plain = papers.ig

    def other(
        iterations: int = 4800, *, lr: float = 0.1, tv: float = 0.5, sign: bool = True
    ) -> Any:
        return plain(iterations, lr=lr, tv=tv, sign=sign)

    monkeypatch.setitem(papers.RECIPES, "ig", other)
    assert not ids() & before


def test_results_at_a_url_are_those_of_a_folder(tmp_path: Path) -> None:
    here, _ = run(scenario(), tmp_path / "out")
    there, _ = run(scenario(), "memory://audit-of-a-test")
    again, _ = read_back("memory://audit-of-a-test")
    for one, other, third in zip(here, there, again, strict=True):
        assert one.found.images.equal(other.found.images)
        assert other.found.images.equal(third.found.images)
    store = Store("memory://audit-of-a-test")
    trial = store.finished()[0]
    store.fs.rm_file(f"{store.root}/trials/{trial}/{MANIFEST}")
    assert not store.sound(trial)
    assert len(list(rows("memory://audit-of-a-test"))) == 1


def test_an_unknown_kind_of_url_is_named() -> None:
    with pytest.raises(StorageError, match="cannot open nowhere://x"):
        Store("nowhere://x")


@pytest.fixture
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("audited")
    run(scenario(), out)
    return out


@pytest.fixture
def leakscope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["leakscope", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return end.value.code, *capsys.readouterr()

    return command


def test_trials_are_listed_in_every_format(
    audited: Path, leakscope: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, out, _ = leakscope("results", audited, "--format", "csv")
    assert code == 0
    table = list(csv.DictReader(io.StringIO(out)))
    assert list(table[0]) == list(COLUMNS)
    assert [row["client"] for row in table] == ["0", "1"]
    found = json.loads(leakscope("results", audited, "--format", "json")[1])
    assert [str(row["psnr"]) for row in found] == [row["psnr"] for row in table]
    assert "recognised" in leakscope("results", audited)[1]
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "t.parquet"
    assert leakscope("results", audited, "--format", "parquet", "--to", file)[0] == 0
    assert parquet.read_table(file).to_pylist() == found
    code, _, err = leakscope("results", audited, "--format", "parquet")
    assert (code, "--to" in err) == (2, True)
    code, _, err = leakscope("results", tmp_path)
    assert (code, "give the folder of an audit" in err) == (2, True)


def test_a_report_of_what_is_finished(
    audited: Path, leakscope: Callable[..., tuple[int, str, str]]
) -> None:
    whole = status(audited)
    assert (whole.planned, whole.done, whole.left, whole.running) == (6, 6, 0, ())
    (lost,) = audited.glob("trials/ig-001-*")
    shutil.rmtree(lost)
    assert "5 of 6 trials done, 0 running, 1 to do" in leakscope("status", audited)[1]
    code, _, err = leakscope("report", audited)
    assert code == 0
    assert "1 of 2 attacks are finished" in err
    page = (audited / "report.html").read_text()
    assert "1 of 2 attacks on clients are finished" in page
    for trial in audited.glob("trials/*"):
        shutil.rmtree(trial)
    code, _, err = leakscope("report", audited)
    assert (code, err) == (2, "error: no attack is finished yet\n")


def test_a_budget_takes_away_repetitions_before_settings() -> None:
    trials = distinct(plan(scenario(client=BASE["client"] | {"count": 4}).settings()))
    costs = {trial.alike: Cost(10.0 if trial.kind == "attack" else 1.0, 0) for trial in trials}
    everything = ordered(trials, costs, None)
    assert [trial.kind for trial in everything[:4]] == ["attack"] * 4
    some = ordered(trials, costs, 30.0)  # a client takes 10 + 1 + 1 seconds
    assert {trial.client for trial in some} == {0, 1}
    assert len(some) == 6
    assert [trial.kind for trial in some[::3]] == ["attack", "attack"]
    few = ordered(trials, costs, 3.0)
    assert [trial.client for trial in few] == [0, 0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts")
def test_more_memory_than_allowed_is_an_error_and_no_death() -> None:
    import torch

    from leakscope.audit.memory import peak_memory

    with pytest.raises(RuntimeError) as short, at_most(peak_memory() + 2**28):
        torch.ones(2**28)
    assert is_shortage(short.value)
    torch.ones(2**20)


def test_a_trial_that_needs_more_than_its_share_gets_all_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try is allowed everything; what fails then has failed."""
    allowed: list[int | None] = []

    def hungry(job: Job, progress: Any) -> Outcome:
        allowed.append(job.memory)
        return Outcome("done" if job.memory == 1000 else "short", "out of memory")

    class Two(Here):
        processes = 2

        def __init__(self) -> None:
            self.most, self.share = 1000, 500

    monkeypatch.setattr("leakscope.audit.sweep.Here", Two)
    monkeypatch.setattr("leakscope.audit.sweep.perform", hungry)
    (trial, *_) = distinct(plan(scenario().settings()))
    store = Store(tmp_path)
    with Board() as board:
        assert sweep(store, [trial], Means(), board) == 1
    assert allowed == [500, 1000]
    assert not store.failures()


def test_labels_are_shown_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = [{"name": "ig", "label": "a[/x] [red]", "options": {"iterations": 3}}]
    trials = distinct(plan(scenario(attacks=odd).settings()))
    trial = next(trial for trial in trials if trial.kind == "attack")
    screen = io.StringIO()
    terminal = Console(file=screen, width=200, force_terminal=True)
    monkeypatch.setattr("leakscope.audit.progress.Console", lambda stderr: terminal)
    with Board() as board:
        board.expect(1, 0)
        board.follow(Job(trial, str(tmp_path)), 0.5, 0.1)
        board._bars.refresh()
    assert "a[/x] [red], client 0" in screen.getvalue()


def test_means_out_of_range_are_refused() -> None:
    with pytest.raises(LeakscopeError, match="processes"):
        Means(processes=0)
    with pytest.raises(LeakscopeError, match="threads"):
        Means(threads=0)
