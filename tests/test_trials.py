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

from leakmeter.audits import Folder, Resources, Scenario, run
from leakmeter.audits.folder import COLUMNS
from leakmeter.audits.plan import plan
from leakmeter.cli import main
from leakmeter.errors import LeakmeterError, StorageError
from leakmeter.execution import Trial
from leakmeter.execution.budget import Cost, ordered
from leakmeter.execution.executors import Cache, Here, Worker
from leakmeter.execution.memory import at_most, is_shortage
from leakmeter.execution.progress import Screen
from leakmeter.execution.store import MANIFEST, Store
from leakmeter.execution.sweep import sweep
from leakmeter.execution.trial import Job, Outcome, perform

BASE: dict[str, Any] = {
    "model": {"name": "lenet-zhu"},
    "data": {"source": "photos", "size": 32},
    "client": {"examples": 2, "count": 2, "lr": 0.05},
    "attacks": [{"name": "ig", "options": {"iterations": 3}}],
}


def scenario(**changes: Any) -> Scenario:
    return Scenario.model_validate(BASE | changes)


def planned(**changes: Any) -> list[Trial]:
    whole = scenario(**changes)
    return plan(whole, whole.settings(), Cache()).trials


def ids(**changes: Any) -> set[str]:
    """Of attacks and baselines: paths do not depend on attacks."""
    return {trial.id for trial in planned(**changes) if trial.name != "path"}


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
    from leakmeter.attacks import papers

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
    again, _ = Folder("memory://audit-of-a-test").read()
    for one, other, third in zip(here, there, again, strict=True):
        assert one.found.images.equal(other.found.images)
        assert other.found.images.equal(third.found.images)
    store = Store("memory://audit-of-a-test")
    trial = store.finished()[0]
    store.fs.rm_file(f"{store.root}/trials/{trial}/{MANIFEST}")
    assert not store.sound(trial)
    assert len(list(Folder("memory://audit-of-a-test").rows())) == 1


def test_an_unknown_kind_of_url_is_named() -> None:
    with pytest.raises(StorageError, match="cannot open nowhere://x"):
        Store("nowhere://x")


@pytest.fixture
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("audited")
    run(scenario(), out)
    return out


@pytest.fixture
def leakmeter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["leakmeter", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return end.value.code, *capsys.readouterr()

    return command


def test_trials_are_listed_in_every_format(
    audited: Path, leakmeter: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, out, _ = leakmeter("results", audited, "--format", "csv")
    assert code == 0
    table = list(csv.DictReader(io.StringIO(out)))
    assert list(table[0]) == list(COLUMNS)
    assert [row["client"] for row in table] == ["0", "1"]
    found = json.loads(leakmeter("results", audited, "--format", "json")[1])
    assert [str(row["psnr"]) for row in found] == [row["psnr"] for row in table]
    assert "recognized" in leakmeter("results", audited)[1]
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "t.parquet"
    assert leakmeter("results", audited, "--format", "parquet", "--to", file)[0] == 0
    assert parquet.read_table(file).to_pylist() == found
    code, _, err = leakmeter("results", audited, "--format", "parquet")
    assert (code, "--to" in err) == (2, True)
    code, _, err = leakmeter("results", tmp_path)
    assert (code, "give the folder of an audit" in err) == (2, True)


def test_a_report_of_what_is_finished(
    audited: Path, leakmeter: Callable[..., tuple[int, str, str]]
) -> None:
    whole = Folder(audited).status()
    assert (whole.planned, whole.done, whole.left, whole.running) == (6, 6, 0, ())
    (lost,) = audited.glob("trials/ig-001-*")
    shutil.rmtree(lost)
    assert "5 of 6 trials done, 0 running, 1 to do" in leakmeter("status", audited)[1]
    code, _, err = leakmeter("report", audited)
    assert code == 0
    assert "1 of 2 attacks are finished" in err
    page = (audited / "report.html").read_text()
    assert "1 of 2 attacks on clients are finished" in page
    for trial in audited.glob("trials/*"):
        shutil.rmtree(trial)
    code, _, err = leakmeter("report", audited)
    assert (code, err) == (2, "error: no attack is finished yet\n")


def test_a_budget_takes_away_repetitions_before_settings() -> None:
    trials = planned(client=BASE["client"] | {"count": 4})
    costs = {trial.alike: Cost(10.0 if trial.name == "ig" else 1.0, 0) for trial in trials}
    everything = ordered(trials, costs, None)
    assert [trial.name for trial in everything[:4]] == ["ig"] * 4
    some = ordered(trials, costs, 30.0)  # a client takes 10 + 1 + 1 seconds
    assert {trial.repeat for trial in some} == {0, 1}
    assert len(some) == 6
    assert [trial.name for trial in some[::3]] == ["ig", "ig"]
    few = ordered(trials, costs, 3.0)
    assert [trial.repeat for trial in few] == [0, 0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts")
def test_more_memory_than_allowed_is_an_error_and_no_death() -> None:
    import torch

    from leakmeter.execution.memory import peak_memory

    with pytest.raises(RuntimeError) as short, at_most(peak_memory() + 2**28):
        torch.ones(2**28)
    assert is_shortage(short.value)
    torch.ones(2**20)


def test_memory_is_counted_where_no_container_limits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from leakmeter.execution import memory

    monkeypatch.setattr(memory, "_CONTAINER", {})
    assert memory.available() > 0


def test_results_that_cannot_be_opened_stop_the_sweep_and_say_why() -> None:
    (trial, *_) = planned()
    found = perform(Job(trial, "nowhere://x"), Worker())
    assert found.state == "unwritable"
    assert "cannot open nowhere://x" in found.error


def test_what_has_no_known_cost_fits_no_budget() -> None:
    trials = planned(client=BASE["client"] | {"count": 1})
    costs = {trial.alike: Cost(9.0 if trial.name == "ig" else 1.0, 0) for trial in trials}
    assert [trial.name for trial in ordered(trials, costs, 5.0)] == ["path", "ig-baseline"]
    unknown = {kind: cost for kind, cost in costs.items() if cost.seconds > 5}
    assert ordered(trials, unknown, 5.0) == []


def test_a_trial_that_needs_more_than_its_share_gets_all_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try is allowed everything; what fails then has failed."""
    allowed: list[int | None] = []

    def hungry(job: Job, worker: Worker) -> Outcome:
        allowed.append(job.memory)
        return Outcome("done" if job.memory == 1000 else "short", "out of memory")

    class Two(Here):
        processes = 2

        def __init__(self, cache: Cache | None) -> None:
            super().__init__(cache)
            self.most, self.share = 1000, 500

    monkeypatch.setattr("leakmeter.execution.sweep.Here", Two)
    monkeypatch.setattr("leakmeter.execution.sweep.perform", hungry)
    (trial, *_) = planned()
    store = Store(tmp_path)
    with Screen() as screen:
        assert sweep(store, [trial], Resources(), screen) == 1
    assert allowed == [500, 1000]
    assert not store.failures()


def test_labels_are_shown_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = [{"name": "ig", "label": "a[/x] [red]", "options": {"iterations": 3}}]
    trials = planned(attacks=odd)
    trial = next(trial for trial in trials if trial.name == "ig")
    shown = io.StringIO()
    terminal = Console(file=shown, width=200, force_terminal=True)
    monkeypatch.setattr("leakmeter.execution.progress.Console", lambda stderr: terminal)
    with Screen() as screen:
        screen.expect(1, 0)
        screen.follow(Job(trial, str(tmp_path)), 0.5, 0.1)
        screen._bars.refresh()
    assert "a[/x] [red], client 0" in shown.getvalue()


def test_resources_out_of_range_are_refused() -> None:
    with pytest.raises(LeakmeterError, match="processes"):
        Resources(processes=0)
    with pytest.raises(LeakmeterError, match="threads"):
        Resources(threads=0)
