from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from leakmeter.attacks.lbfgs import LBFGS
from leakmeter.attacks.solver import Variable, solve


def valley(values: Any, share: Tensor, phases: object) -> tuple[Tensor, Tensor]:
    """A curved valley in six dimensions (Rosenbrock)."""
    x = torch.cat([values["images"].flatten(), values["labels"].flatten()])
    loss = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum() / 100
    return loss, loss


@pytest.mark.parametrize("memory", [3, 100])
def test_lbfgs_is_torchs(memory: int) -> None:
    start = {"images": torch.tensor([[0.5, -0.3], [0.9, 0.1]]), "labels": torch.tensor([0.2, 1.4])}
    variables = {name: Variable(value.double(), lr=1.0) for name, value in start.items()}
    theirs = {name: value.double().clone().requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.LBFGS(list(theirs.values()), lr=1, history_size=memory)

    def closure() -> float:
        optimizer.zero_grad()
        loss = valley(theirs, torch.zeros(()), ())[0]
        loss.backward()
        return loss.item()

    losses = [float(optimizer.step(closure)) for _ in range(3)]
    ours = solve(valley, variables, LBFGS(iterations=3, memory=memory))
    assert ours.history["loss"].tolist() == pytest.approx(losses, rel=1e-4)


def test_lbfgs_stops_when_there_is_nothing_left_to_do() -> None:
    def bowl(values: Any, share: Tensor, phases: object) -> tuple[Tensor, Tensor]:
        loss = ((values["images"] - 3) ** 2).sum()
        return loss, loss

    found = solve(bowl, {"images": Variable(torch.zeros(4), lr=1.0)}, LBFGS(iterations=50))
    assert len(found.history["loss"]) < 5
    torch.testing.assert_close(found.values["images"], torch.full((4,), 3.0))


def test_a_run_that_diverges_answers_with_the_best_point_it_saw() -> None:
    def cliff(values: Any, share: Tensor, phases: object) -> tuple[Tensor, Tensor]:
        """Falls ever faster to the left until there is no number any more."""
        x = values["images"]
        loss = (x.exp() - 5 * x - (-x - 20).relu() ** 40).sum()
        loss = torch.where((x < -30).any(), loss * torch.nan, loss)
        return loss, loss

    found = solve(cliff, {"images": Variable(torch.tensor([40.0]), lr=1.0)}, LBFGS(iterations=20))
    assert torch.isfinite(found.values["images"]).all()
    assert found.match <= found.history["match"][0]


def test_the_answer_of_a_run_that_went_far_astray_is_not_lost_to_rounding() -> None:
    """The best point was once rebuilt by a difference from the last one."""
    solver = LBFGS(iterations=1)
    start = {"images": torch.tensor([0.3, -0.2, 0.9])}
    state = solver.start(start)
    for last in (1e9, torch.nan):
        answer = solver.answer({"images": torch.full((3,), last)}, state)
        assert torch.equal(answer["images"], start["images"])


def test_the_match_is_that_of_the_answer_after_projection() -> None:
    def far(values: Any, share: Tensor, phases: object) -> tuple[Tensor, Tensor]:
        loss = ((values["images"] - 3) ** 2).sum() + (values["images"] ** 4).sum() / 50
        return loss, loss

    variable = Variable(torch.zeros(4), lr=1.0, project=lambda x: x.clamp(0, 1))
    found = solve(far, {"images": variable}, LBFGS(iterations=5))
    assert found.values["images"].max() <= 1
    assert found.match == pytest.approx(far(found.values, torch.zeros(()), ())[0].item())


def test_tiny_gradients_are_no_reason_to_stop() -> None:
    def faint(values: Any, share: Tensor, phases: object) -> tuple[Tensor, Tensor]:
        loss = 1e-12 * valley(values, share, phases)[0]
        return loss, loss

    start = {"images": torch.tensor([0.5, -0.3, 0.9]), "labels": torch.tensor([0.2])}
    variables = {name: Variable(value.double(), lr=1.0) for name, value in start.items()}
    found = solve(faint, variables, LBFGS(iterations=30))
    assert found.match < 1e-3 * found.history["match"][0]
