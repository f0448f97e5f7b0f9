"""Published tables, run small."""

from __future__ import annotations

import fcntl
import itertools
import json
import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import pytest
import torch

from leakmeter import data, models
from leakmeter.attacks.attack import RunOptions
from leakmeter.attacks.papers import RECIPES
from leakmeter.bench import results, sources, trial, victim
from leakmeter.bench.results import Tried
from leakmeter.bench.table import Pretraining, Recipe, Row, Table, Victim
from leakmeter.bench.tables import TABLES
from leakmeter.bench.trial import MeasureRow
from leakmeter.cli import main
from leakmeter.errors import LeakmeterError
from leakmeter.execution import Context, Done, Trial
from leakmeter.execution.budget import Cost, ordered, parse_budget, probe
from leakmeter.execution.executors import Lost, Pool, Worker
from leakmeter.execution.trial import Job
from leakmeter.federated import federate

VICTIM = Victim(data="femnist", model="mlp", examples=2, epochs=2, batch_size=1)


def row(attack: str, recipe: str, **fields: Any) -> Row:
    options = {"setting": "N=2", "victim": VICTIM, "paper": {"psnr": 20.0, "l_sim": 0.01}}
    return Row(attack=attack, recipe=Recipe(recipe, 1000), **{**options, **fields})


ROWS = (row("IG", "ig"), row("SME", "sme"), row("NEXT", "of_next_year"))


class Run(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with a small data file."""
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "femnist.npz",
        images=rng.integers(0, 256, (60, 12, 12), dtype=np.uint8),
        labels=np.arange(60) % 12,
        writer=np.arange(60) // 10,
    )
    return tmp_path


@pytest.fixture
def bench(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Run]:
    """Runs ``leakmeter bench`` in the folder, with a small table besides the papers'."""
    monkeypatch.chdir(desk)
    monkeypatch.setitem(TABLES, "tiny", Table("tiny", "small", "nowhere", ROWS))

    def run(*words: str) -> Run:
        monkeypatch.setattr(sys, "argv", ["leakmeter", "bench", *words])
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        assert isinstance(code, int)
        return Run(code, *capsys.readouterr())

    return run


TINY = ("tiny", "--data", ".", "--out", "out", "--iterations", "4", "--processes", "1")


def test_ours_is_set_beside_the_papers(bench: Callable[..., Run], desk: Path) -> None:
    done = bench(*TINY, "--repeats", "2")
    assert done.code == 0, done.err
    assert "cannot run 1 rows, there is no recipe 'of_next_year' yet: N=2 NEXT" in done.err
    assert "PSNR [dB]" in done.out
    found = json.loads((desk / "out/tiny/results.json").read_text())
    ig, sme, later = found["rows"]
    assert (ig["attack"], ig["repeats"], ig["iterations"], ig["errors"]) == ("IG", 2, 4, [])
    psnr = sme["metrics"]["psnr"]
    assert len(psnr["values"]) == 2
    assert psnr["mean"] == pytest.approx(sum(psnr["values"]) / 2)
    assert psnr["difference"] == pytest.approx(psnr["mean"] - 20.0)
    assert psnr["low"] < psnr["mean"] < psnr["high"]
    assert later["errors"] == ["there is no recipe 'of_next_year' yet"]
    assert later["metrics"]["psnr"]["mean"] is None
    text = (desk / "out/tiny/results.md").read_text()
    assert f"| N=2 | SME | {psnr['mean']:.2f} |" in text
    assert "--iterations 4 instead of the paper's" in text


def test_a_second_run_does_only_what_is_missing(bench: Callable[..., Run], desk: Path) -> None:
    bench(*TINY, "--repeats", "1", "--rows", "*ig")
    trials = sorted(desk.glob("out/tiny/trials/*/result.json"))
    assert len(trials) == 1
    written = trials[0].stat().st_mtime_ns
    for _ in range(2):
        assert bench(*TINY, "--repeats", "1").code == 0
    assert len(list(desk.glob("out/tiny/trials/*/result.json"))) == 2
    assert trials[0].stat().st_mtime_ns == written
    rows = json.loads((desk / "out/tiny/results.json").read_text())["rows"]
    assert [entry["repeats"] for entry in rows] == [1, 1, 0]


def test_other_settings_are_other_trials(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def name(row: Row) -> str:
        return trial.trial(row, 0, desk).id

    plain = name(ROWS[0])
    assert plain == name(replace(ROWS[0], paper={}, note="rounded"))
    assert plain != name(replace(ROWS[0], override=5))
    assert plain != name(replace(ROWS[0], labels_known=False))
    assert plain != trial.trial(ROWS[0], 1, desk).id
    # A recipe whose own numbers have changed is another attack under the same name.
    monkeypatch.setitem(RECIPES, "ig", RECIPES["sme"])
    assert plain != name(ROWS[0])


def test_other_sentences_are_other_trials(desk: Path) -> None:
    spoken = row("DLG", "dlg_adam", victim=None, kind="text")
    (desk / "text").mkdir()
    (desk / "text" / "sst2.tsv").write_text("one sentence", encoding="utf-8")
    before = trial.trial(spoken, 0, desk).id
    (desk / "text" / "sst2.tsv").write_text("another one", encoding="utf-8")
    sources.fingerprint.cache_clear()
    assert before != trial.trial(spoken, 0, desk).id


def test_a_failing_trial_is_recorded_and_tried_again(
    bench: Callable[..., Run], desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(row: Row, data: Path, repeat: int, options: RunOptions) -> dict[str, float]:
        raise RuntimeError("too large")

    broken = Table("tiny", "", "", (row("IG", "ig", kind="broken"), ROWS[1]))
    monkeypatch.setitem(TABLES, "tiny", broken)
    monkeypatch.setitem(trial.KINDS, "broken", exhausted)
    done = bench(*TINY, "--repeats", "1")
    assert done.code == 0
    assert "RuntimeError: too large" in done.out
    failed, fine = json.loads((desk / "out/tiny/results.json").read_text())["rows"]
    assert failed["errors"] == ["RuntimeError: too large"]
    assert fine["repeats"] == 1
    monkeypatch.setitem(trial.KINDS, "broken", trial.attack_images)
    bench(*TINY, "--repeats", "1")
    mended = json.loads((desk / "out/tiny/results.json").read_text())["rows"][0]
    assert (mended["repeats"], mended["errors"]) == (1, [])


def test_costs_are_scaled_to_the_papers_iterations(desk: Path) -> None:
    shares: list[int] = []

    def follow(done: int, total: int, match: object) -> None:
        shares.append(done)

    short = row("SME", "sme", kind="cost", override=4)
    costs = trial.attack_at_cost(short, desk, 0, RunOptions(on_progress=follow))
    assert shares == [1, 2, 3, 4]
    assert costs["iterations"] == 4
    assert costs["memory"] >= 0
    plain = trial.attack_images(short, desk, 0, RunOptions())
    assert costs["psnr"] == plain["psnr"]
    assert 25 < costs["seconds"] / plain["seconds"] < 2500


def test_ratios_are_those_of_the_same_repeat() -> None:
    costs = {"kind": "cost", "relative_to": "IG"}
    ig, sme = row("IG", "ig", **costs), row("SME", "sme", **costs)
    outcomes = {
        ig.name: (ig, {0: Tried({"seconds": 2.0}), 1: Tried({"seconds": 4.0})}),
        sme.name: (sme, {0: Tried({"seconds": 3.0}), 1: Tried({"seconds": 8.0})}),
    }
    assert results.collect(outcomes, {})[1].values["time_ratio"] == [1.5, 2.0]


def test_ctrl_c_ends_all_processes(desk: Path) -> None:
    command = [sys.executable, "-m", "leakmeter.cli", "bench", "sme-2", "--data", str(desk)]
    command += ["--rows", "femnist E=10 N=10 [IS]*", "--repeats", "1", "--processes", "2"]
    command += ["--iterations", "1000000", "--out", str(desk / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: len(list(desk.glob("out/sme-2/.work/*/attack-*"))) == 2)
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130
    assert time.monotonic() - began < 10  # a second or two where nothing else runs
    assert "run the same command again" in err
    assert not list(desk.glob("out/sme-2/trials/*"))


def test_an_interrupted_run_goes_on(
    bench: Callable[..., Run], desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trial.KINDS["attack"]

    def stop(row: Row, data: Path, repeat: int, options: RunOptions) -> dict[str, float]:
        def follow(done: int, total: int, match: object) -> None:
            if done == 3 and row.attack == "SME":
                raise KeyboardInterrupt

        return whole(row, data, repeat, replace(options, on_progress=follow))

    with monkeypatch.context() as patched:
        patched.setitem(trial.KINDS, "attack", stop)
        patched.setattr("os._exit", sys.exit)
        stopped = bench(*TINY, "--repeats", "1")
    assert stopped.code == 130
    assert "run the same command again" in stopped.err

    def names(pattern: str) -> list[str]:
        return [path.name.rsplit("-", 2)[0] for path in desk.glob(f"out/tiny/{pattern}")]

    assert names("trials/*") == ["n=2-ig"]
    assert len(list(desk.glob("out/tiny/.work/n=2-sme-*/attack-*/search-*"))) == 1
    assert bench(*TINY, "--repeats", "1").code == 0
    assert not (desk / "out/tiny/.work").exists()
    rows = json.loads((desk / "out/tiny/results.json").read_text())["rows"]
    assert [entry["repeats"] for entry in rows] == [1, 1, 0]


def die(job: str, report: object) -> str:
    if job == "bad":
        signal.raise_signal(signal.SIGKILL)
    return job.upper()


def test_a_dying_process_takes_nothing_with_it() -> None:
    jobs = ["bad", "good", "better"]
    with Pool(2, threads=1) as pool:
        found: dict[str, object] = dict(pool.do(die, jobs, lambda job, share, match: None))
    assert found["good"] == "GOOD"
    assert found["better"] == "BETTER"
    assert found["bad"] == Lost("its process died, perhaps for want of memory")


def test_a_process_that_died_while_idle_gets_no_work() -> None:
    with Pool(1, threads=1) as pool:
        for word in ("good", "better"):
            (done,) = pool.do(die, [word], lambda job, share, match: None)
            assert done == (word, word.upper())
            for child in multiprocessing.active_children():
                child.kill()
                child.join()


def lock_and_sleep(place: str, report: object) -> None:
    with Path(place).open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        Path(f"{place}.held").touch()
        time.sleep(60)


def work_for(place: str) -> None:
    with Pool(1, threads=1) as pool:
        list(pool.do(lock_and_sleep, [place], lambda job, share, match: None))


def test_nobody_goes_on_working_for_a_killed_run(tmp_path: Path) -> None:
    place = tmp_path / "worker"
    run = multiprocessing.get_context("spawn").Process(target=work_for, args=(str(place),))
    run.start()
    until(Path(f"{place}.held").is_file)
    run.kill()
    with place.open(encoding="utf-8") as file:
        until(lambda: lockable(file))


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lockable(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("sme-22",), "unknown table 'sme-22': did you mean 'sme-2'?"),
        (("tiny", "--data", "elsewhere"), "femnist.npz: file not found: give by --data"),
        (("tiny", "--data", ".", "--rows", "dlg*"), "--rows 'dlg*' matches no row of tiny: N=2 IG"),
        (("tiny", "--data", ".", "--rows", "*next"), "none of the rows asked for can run yet"),
        (("tiny", "--data", ".", "--budget", "20"), "--budget '20': write it as 90s, 20m or 2h"),
    ],
)
def test_what_is_wrong_is_said(
    bench: Callable[..., Run], words: tuple[str, ...], complaint: str
) -> None:
    done = bench(*words)
    assert done.code == 2
    assert complaint in done.err


def test_the_tables_are_listed(bench: Callable[..., Run]) -> None:
    for words in ((), ("list",)):
        listed = bench(*words).out
        assert "sme-2 " in listed
        assert "sapag-3" in listed


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("20m", 1200), ("2h", 7200), ("1.5h", 5400)]
)
def test_budgets(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "0m", "20", "m", "-3m", "1d", "nanh"])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(LeakmeterError, match="budget"):
        parse_budget(text)


def test_whole_repeats_fit_a_budget_or_the_cheapest_rows_do() -> None:
    rows = [replace(ROWS[0], attack=attack) for attack in ("dear", "cheap", "fair")]
    trials = [
        Trial(work=MeasureRow(each, n, Path()), spec={}, name="", words=each.attack, repeat=n)
        for n in range(5)
        for each in rows
    ]
    trials = [replace(each, alike=each.words) for each in trials]
    costs = {"dear": Cost(10.0, 0), "cheap": Cost(1.0, 0), "fair": Cost(3.0, 0)}

    def fitting(budget: float) -> list[Trial]:
        chosen = ordered(trials, costs, budget)
        return [each for each in trials if each in chosen]

    assert len(fitting(1000)) == 15
    assert [each.repeat for each in fitting(30)] == [0, 0, 0, 1, 1, 1]
    assert [(each.words, each.repeat) for each in fitting(5)] == [("cheap", 0), ("fair", 0)]
    assert fitting(0.5) == []


def test_a_budget_says_what_does_not_fit(
    bench: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def costs(job: Job, worker: Worker) -> Cost:
        return Cost(4.0 if "IG" in job.trial.words else 200.0, 0)

    monkeypatch.setattr("leakmeter.execution.sweep.probe", costs)
    done = bench(*TINY, "--budget", "60s")
    assert done.code == 0, done.err
    assert "1 of 200 trials fit the budget" in done.err
    assert "1 trial, 1 at a time: about 4 s" in done.err


MARKS = [((1, 8), (2, 8), (3, 8)), ((0, 5), (1, 5), (0, 8), (1, 8), (2, 8), (3, 8))]


@pytest.mark.parametrize("marks", MARKS, ids=["plain", "after training"])
def test_what_comes_first_is_not_multiplied(
    marks: tuple[tuple[int, int], ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial is paused once its first iterations tell what all of them will take."""
    clock = itertools.count(step=2)  # seconds between any two looks at it
    monkeypatch.setattr("leakmeter.execution.budget.time.perf_counter", lambda: float(next(clock)))

    class Marked:
        def do(self, context: Context) -> Done:
            for done, total in marks:
                context.step(done, total)
            for done in range(4, 100):
                context.step(done, marks[-1][1])
            raise AssertionError("nobody paused it")

    marked = Trial(work=Marked(), spec={}, name="marked", words="marked")
    found = probe(Job(marked, str(tmp_path / "out")), Worker())
    assert isinstance(found, Cost)
    assert 8 * 2 <= found.seconds <= 8 * 2 + 2 * len(marks) + 2


def test_a_table_without_a_paper_shows_what_came_out(
    bench: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = replace(ROWS[0], paper={})
    monkeypatch.setitem(TABLES, "tiny", Table("tiny", "small", "nowhere", (ours,)))
    done = bench(*TINY, "--repeats", "1")
    assert done.code == 0, done.err
    assert "PSNR" in done.out


def test_repeats_are_drawn_by_their_number(desk: Path) -> None:
    dataset = sources.load(desk, "femnist")
    first = victim.make(VICTIM, desk, 1)
    again = victim.make(VICTIM, desk, 1)
    expected = torch.randperm(60, generator=torch.Generator().manual_seed(1))[:2]
    assert torch.equal(first.images, dataset.images[expected])
    assert first.update.fingerprint() == again.update.fingerprint()
    assert first.update.fingerprint() != victim.make(VICTIM, desk, 2).update.fingerprint()
    assert first.update.protocol.normalize == data.normalization("femnist")


def test_images_are_picked_as_the_paper_does(desk: Path) -> None:
    dataset = sources.load(desk, "femnist")
    distinct = victim.draw(replace(VICTIM, examples=12, pick="distinct"), dataset, 0)
    assert len(dataset.labels[distinct].unique()) == 12
    assert dataset.writer is not None
    one = victim.draw(replace(VICTIM, examples=3, pick="writer"), dataset, 0)
    owner = dataset.writer[one[0]]
    assert torch.equal(one, (dataset.writer == owner).nonzero().flatten()[:3])
    varied = victim.draw(replace(VICTIM, examples=10, pick="varied"), dataset, 0)
    assert dataset.writer[varied].unique(return_counts=True)[1].tolist() == [2] * 5
    with pytest.raises(LeakmeterError, match="only 12 images can be drawn"):
        victim.draw(replace(VICTIM, examples=13, pick="distinct"), dataset, 0)


@pytest.mark.parametrize("split", ["one", "writer"])
def test_a_trained_network_has_not_seen_what_is_attacked(
    desk: Path, monkeypatch: pytest.MonkeyPatch, split: Any
) -> None:
    monkeypatch.setattr(victim, "MOST_REPEATS", 4)
    seen: list[torch.Tensor] = []
    real = federate

    def spy(model: Any, parts: Any, **settings: Any) -> Any:
        seen.extend(images for images, _ in parts)
        return real(model, parts, **settings)

    monkeypatch.setattr("leakmeter.bench.victim.federate", spy)
    training = Pretraining(
        rounds=1, split=split, shared=split == "one", settings={"lr": 0.1, "batch_size": 8}
    )
    trained = [victim.make(replace(VICTIM, trained=training), desk, r) for r in range(2)]
    for attacked in trained if split == "one" else trained[1:]:
        pool = torch.cat(seen if split == "one" else seen[len(seen) // 2 :])
        assert not (pool[:, None] == attacked.images).flatten(2).all(2).any()
    weights = [next(attacked.model.parameters()) for attacked in trained]
    assert torch.equal(*weights) == (split == "one")


def test_weights_start_as_sapag_says() -> None:
    model = models.build("lenet5-sapag", classes=10)
    victim.initialize(model, "xavier-normal", 0)
    weights = dict(model.named_parameters())
    fan = 5 * 5 * (12 + 12)
    assert weights["conv2.weight"].std().item() == pytest.approx((2 / fan) ** 0.5, rel=0.1)
    assert not weights["conv2.bias"].any()
    victim.initialize(model, "uniform", 0)
    assert 0.4 < weights["fc.weight"].max().item() <= 0.5


def test_the_tables_are_whole() -> None:
    for table in TABLES.values():
        names = [each.name for each in table.rows]
        assert len(names) == len(set(names))
        for each in table.rows:
            assert each.paper or each.note or table.reference.startswith("leakmeter")
            if each.victim is not None:
                assert each.victim.data in sources.SOURCES
                assert each.victim.model in models.names()
    assert {entry.recipe.name for entry in TABLES["sme-2"].rows} == {"dlfa", "ig", "sme"}
