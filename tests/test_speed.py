"""What makes attacks faster: compiled steps, variables that wait, plateaus that end a stage."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from itertools import count
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import leakmeter as lm
from leakmeter import papers
from leakmeter.attacks.adam import Adam
from leakmeter.attacks.compiling import MEASURED, Compiling, pays
from leakmeter.attacks.matched import MatchedAttack
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.retrace import Retrace
from leakmeter.attacks.schedule import CosineDecay, Plateau
from leakmeter.attacks.solver import Moment, Phase, Variable, solve
from victims import examples, tiny

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@needs_compiler
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("attack", "optimizer"), [(papers.sme(12), "sgd"), (papers.retrace(12, lr=0.1), "adam")]
)
def test_a_compiled_step_finds_the_same_images(attack: MatchedAttack, optimizer: str) -> None:
    """Steps are small where the last bits would grow: with an Adam client they do in long ones."""
    model, (images, labels) = tiny(), examples()
    update = lm.Client(model, images, labels, epochs=4, lr=0.01, optimizer=optimizer).train()
    found = {
        compiling: attack.run(model, update, labels=labels, compiling=compiling)
        for compiling in get_args(Compiling)
    }
    assert found["always"].compiled
    assert not found["never"].compiled
    assert torch.equal(found["auto"].images, found["never"].images)
    torch.testing.assert_close(found["always"].images, found["never"].images, rtol=1e-3, atol=1e-3)


def fast_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the number of constants of every step that would have been compiled."""
    found: list[int] = []

    def counted(step: Any) -> Any:
        def run(values: Any, constants: Any, *rest: Any) -> Any:
            found.append(len(constants))
            return step(values, constants, *rest)

        return run

    monkeypatch.setattr("leakmeter.attacks.solver.compiled", counted)
    return found


def test_a_step_that_changes_is_measured_and_decided_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it pays at first, and no more in the next phase."""
    fast = fast_steps(monkeypatch)
    answers = iter([True, False])
    monkeypatch.setattr("leakmeter.attacks.solver.pays", lambda seconds: next(answers))
    found = solve(
        falling,
        {"images": Variable(torch.zeros(1), lr=0.1)},
        Adam(lr=0.1, iterations=30, decay=None),
        refresh=lambda values, phase, now: Phase(
            (f"from {now.done // 10 * 10}",), {"constant": torch.zeros(1)}
        ),
    )
    assert fast == [1] * (10 - MEASURED)
    assert found.compiled
    assert list(answers) == []


def test_a_change_of_the_step_is_not_counted_as_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for every iteration; what comes once, when a phase begins, takes long."""
    fast_steps(monkeypatch)
    clock = 0.0
    monkeypatch.setattr("leakmeter.attacks.solver.time.perf_counter", lambda: clock)
    expected: list[float] = []

    def always(seconds: float) -> bool:
        expected.append(seconds)
        return True

    monkeypatch.setattr("leakmeter.attacks.solver.pays", always)

    def slow(values: Any, share: Tensor, phases: object) -> tuple[Tensor, Tensor]:
        nonlocal clock
        clock += 1
        return falling(values, share, phases)

    def change(values: Any, phase: Phase, now: Moment) -> Phase | None:
        nonlocal clock
        clock += 1000 * (now.done == 10)
        return Phase(("second",)) if now.done == 10 else None

    solve(
        slow,
        {"images": Variable(torch.zeros(1), lr=0.1)},
        Adam(lr=0.1, iterations=30, decay=None),
        refresh=change,
    )
    assert expected == [30 - MEASURED, 20 - MEASURED]


def test_where_time_is_short_no_place_of_the_schedule_goes_unsaid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = count()
    monkeypatch.setattr("leakmeter.attacks.solver.time.perf_counter", lambda: float(next(ticks)))
    seen: list[Moment] = []

    def follow(values: Any, phase: Phase, now: Moment) -> None:
        seen.append(now)

    solve(
        falling,
        {"images": Variable(torch.zeros(1), lr=0.1)},
        Adam(lr=0.1, iterations=30, decay=None, seconds=10),
        refresh=follow,
    )
    assert [now.done for now in seen] == list(range(10))
    places = [place for now in seen for place in now.reached]
    assert places == list(range(28))


@pytest.mark.parametrize(
    ("attack", "compiled"),
    [
        (papers.ig_fedavg(5), 0),
        (replace(papers.retrace(16), trajectory=Retrace(unroll=6)), 6 - MEASURED),
    ],
)
def test_what_goes_through_local_steps_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, attack: MatchedAttack, compiled: int
) -> None:
    fast = fast_steps(monkeypatch)
    update = lm.Client(tiny(), *examples(), epochs=4, lr=0.001).train()
    attack.run(tiny(), update, compiling="always")
    assert len(fast) == compiled


class Counting(nn.Module):
    """A network with a side effect, which no compiler may reorder."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny()

    def forward(self, x: Tensor) -> Tensor:
        """The inner network's output."""
        logging.getLogger("counting").debug("called with %s", x.sum().item())
        answer: Tensor = self.inner(x)
        return answer


def test_a_network_that_cannot_be_traced_is_attacked_uncompiled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Counting()
    update = lm.Client(model, *examples(), epochs=2, lr=0.05).train()
    with caplog.at_level(logging.WARNING, logger="leakmeter"):
        tried = papers.ig(8).run(model, update, compiling="always")
    assert [r.message.partition(":")[0] for r in caplog.records if r.name == "leakmeter"] == [
        "the step is not compiled"
    ]
    assert torch.equal(tried.images, papers.ig(8).run(model, update, compiling="never").images)


def test_short_attacks_are_not_compiled() -> None:
    assert not pays(seconds=10)
    assert pays(seconds=1000)
    update = lm.Client(tiny(), *examples(), epochs=2, lr=0.05).train()
    assert not papers.sme(20).run(tiny(), update).compiled


def test_a_variable_that_waits_moves_as_far_in_longer_steps() -> None:
    seen: list[float] = []

    def slope(values: Any, share: Tensor, phases: object) -> tuple[Tensor, Tensor]:
        loss = values["images"].sum() + values["alpha"]
        return loss, loss

    def follow(refreshed: Any, phase: Phase, now: Moment) -> None:
        seen.append(refreshed["alpha"].item())

    variables = {
        "images": Variable(torch.zeros(2), lr=0.1),
        "alpha": Variable(torch.tensor(0.0), lr=0.1, every=3),
    }
    found = solve(slope, variables, Adam(lr=0.1, iterations=6, decay=None), refresh=follow)
    assert seen == pytest.approx([0, -0.3, -0.3, -0.3, -0.6, -0.6], rel=1e-4)
    torch.testing.assert_close(found.values["alpha"], found.values["images"][0])


def flat(values: Any, share: Tensor, phases: object) -> tuple[Tensor, Tensor]:
    """An objective that nothing can lower."""
    loss = 1.0 + 0.0 * values["images"].sum()
    return loss, loss


def falling(values: Any, share: Tensor, phases: object) -> tuple[Tensor, Tensor]:
    """An objective that halves all the time."""
    loss = values["images"].sum().exp()
    return loss, loss


@pytest.mark.parametrize("decay", [None, CosineDecay()])
def test_a_plateau_ends_a_run_without_stages(decay: CosineDecay | None) -> None:
    solver = Adam(lr=0.1, iterations=100, decay=decay, plateau=Plateau(window=5))
    found = solve(flat, {"images": Variable(torch.zeros(1), lr=0.1)}, solver)
    assert len(found.history["match"]) == 10


def test_a_plateau_leads_to_the_next_stage() -> None:
    scales: list[float] = []
    solver = Adam(lr=0.1, iterations=100, plateau=Plateau(window=5))

    def slow(values: Any, share: Tensor, phases: object) -> tuple[Tensor, Tensor]:
        scales.append(solver.scale(round(float(share) * 100)))
        return flat(values, share, phases)

    found = solve(slow, {"images": Variable(torch.zeros(1), lr=0.1)}, solver)
    assert len(found.history["match"]) == 4 * 10
    assert scales[:40] == pytest.approx([1] * 10 + [0.1] * 10 + [0.01] * 10 + [0.001] * 10)


def test_a_run_that_gets_better_is_not_cut_short() -> None:
    solver = Adam(lr=0.1, iterations=60, decay=None, plateau=Plateau(window=5))
    found = solve(falling, {"images": Variable(torch.zeros(1), lr=0.1)}, solver)
    assert len(found.history["match"]) == 60


def test_plateaus_out_of_range_are_refused() -> None:
    with pytest.raises(lm.LeakmeterError, match="window is 0"):
        Plateau(window=0)
    with pytest.raises(lm.LeakmeterError, match="gain is 2"):
        replace(Plateau(), gain=2)


class Viewing(nn.Module):
    """Takes its features apart in a way that only one layout in memory allows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 12 * 12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).sigmoid().view(len(x), -1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "layout"),
    [(tiny(channels=3), torch.channels_last), (Viewing(), torch.contiguous_format)],
    ids=["flatten", "view"],
)
def test_channels_come_last_where_the_network_allows_it(
    model: nn.Module, layout: torch.memory_format
) -> None:
    update = lm.Client(model, *examples(channels=3), epochs=2, lr=0.05).train()
    assert Problem.of(model, update, None).layout == layout
    papers.sme(5).run(model, update)
