from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import leakmeter as lm
from leakmeter import LeakmeterError, papers
from leakmeter.attacks.adam import Adam, LookAhead
from leakmeter.attacks.attack import Attack
from leakmeter.attacks.distance import Cosine, Euclidean, Partial
from leakmeter.attacks.matched import Emphasis, MatchedAttack
from leakmeter.attacks.prior import Box, EpochOrder, SoftBox, SquaredVariation, TotalVariation
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.retrace import Retrace
from leakmeter.attacks.schedule import ExponentialDecay, StepDecay
from leakmeter.attacks.solver import Objective, Variable, solve
from leakmeter.attacks.trajectory import Line, Start
from leakmeter.execution import Pause
from victims import examples, same_bits, tiny, tiny_update


def seen(observed: dict[str, Tensor]) -> Problem:
    """A shared gradient that looks like ``observed``."""
    update = lm.Client(tiny(), *examples(), lr=0.1).gradient()
    return replace(Problem.of(tiny(), update, None), observed=observed)


def problem_of(update: lm.Update, model: nn.Module | None = None) -> Problem:
    return Problem.of(model or tiny(), update, None)


def test_cosine_and_euclidean_follow_their_formulas() -> None:
    generator = torch.Generator().manual_seed(0)
    a = {"w": torch.randn(3, 4, generator=generator), "b": torch.randn(3, generator=generator)}
    b = {"w": torch.randn(3, 4, generator=generator), "b": torch.randn(3, generator=generator)}
    flat_a, flat_b = (torch.cat([t["w"].flatten(), t["b"]]) for t in (a, b))
    expected = 1 - nn.functional.cosine_similarity(flat_a, flat_b, dim=0)
    torch.testing.assert_close(Cosine().against(seen(b))(a), expected)
    torch.testing.assert_close(Euclidean().against(seen(b))(a), (flat_a - flat_b).square().sum())
    assert Cosine().against(seen(a))({name: 7 * t for name, t in a.items()}).abs() < 1e-6
    assert Euclidean().against(seen(a))(a) == 0


def test_total_variation_is_the_mean_absolute_difference_of_neighbors() -> None:
    x = torch.tensor([[[[0.0, 1.0], [3.0, 3.0]]]])
    problem = problem_of(tiny_update())
    penalty = TotalVariation(0.1).penalty(x, problem)
    assert penalty.item() == pytest.approx(0.1 * ((1 + 0) / 2 + (3 + 2) / 2))
    four = x.repeat(4, 1, 1, 1)
    assert TotalVariation(0.1).penalty(four, problem).item() == pytest.approx(penalty.item())
    summed = TotalVariation(0.1, summed=True).penalty(four, problem)
    assert summed.item() == pytest.approx(4 * penalty.item())


def test_box_clips_to_black_and_white() -> None:
    images, labels = examples()
    update = lm.Client(tiny(), images, labels, lr=0.1, normalize=((0.5,), (0.25,))).train()
    x = torch.tensor([-9.0, -2.0, 0.3, 2.0, 9.0]).view(1, 1, 1, 5)
    projected = Box().project(x, problem_of(update)).flatten()
    assert projected.tolist() == pytest.approx([-2.0, -2.0, 0.3, 2.0, 2.0])


def test_gradient_is_autograds() -> None:
    model, update = tiny(), tiny_update()
    images, labels = examples()
    problem = problem_of(update, model)
    loss = nn.functional.cross_entropy(model(images), labels)
    expected = torch.autograd.grad(loss, list(model.parameters()))
    found = problem.gradient(problem.before, images, labels)
    for tensor, (name, _) in zip(expected, model.named_parameters(), strict=True):
        torch.testing.assert_close(found[name], tensor)


def test_line_runs_from_start_to_end() -> None:
    update = tiny_update()
    problem = problem_of(update)
    images, labels = examples()
    assert problem.after is not None
    for alpha, weights in ((0.0, problem.before), (1.0, problem.after)):
        theta = {"alpha": torch.tensor(alpha)}
        predicted = Line().predict(problem, images, labels, theta)
        expected = problem.gradient(weights, images, labels)
        for name in expected:
            torch.testing.assert_close(predicted[name], expected[name])
    zero = Start().predict(problem, images, labels, {})
    assert same_bits(zero, problem.gradient(problem.before, images, labels))


def test_alpha_learns_at_its_own_rate_and_stays_on_the_line() -> None:
    model, update = tiny(), tiny_update()
    still = papers.sme(30)
    still = replace(still, trajectory=Line(alpha=0.5, lr=0.0))
    assert still.run(model, update).parameters["alpha"] == 0.5
    wild = replace(still, trajectory=Line(alpha=0.5, lr=10.0))
    assert 0 <= wild.run(model, update).parameters["alpha"] <= 1
    moved = papers.sme(30).run(model, update).parameters["alpha"].item()
    assert 0 < abs(moved - 0.5) <= 30 * 1e-3 + 1e-6


def test_line_asks_for_weights_where_there_is_a_gradient() -> None:
    update = lm.Client(tiny(), *examples(), lr=0.1).gradient()
    with pytest.raises(LeakmeterError, match="use ig"):
        papers.sme(1).run(tiny(), update)


def test_adam_is_torchs() -> None:
    start = torch.tensor([1.0, -2.0, 3.0])

    def bowl(values: Any, share: Tensor, phases: object) -> tuple[Tensor, Tensor]:
        loss = (values["images"] ** 4).sum() + values["images"].sin().sum()
        return loss, loss

    ours = solve(bowl, {"images": Variable(start, lr=0.1)}, Adam(lr=0.1, iterations=50, decay=None))
    theirs = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        bowl({"images": theirs}, torch.tensor(0.0), ())[0].backward()
        optimizer.step()
    torch.testing.assert_close(ours.values["images"], theirs.detach())


def test_the_sign_of_the_gradient_forgets_its_size() -> None:
    def slope(size: float) -> Objective:
        return lambda values, share, phases: ((size * values["images"]).sum(),) * 2

    ends = {}
    for size in (1.0, 1e-6):
        variable = {"images": Variable(torch.zeros(2), lr=0.1)}
        signed = Adam(lr=0.1, iterations=3, sign=True, eps=1e-3)
        plain = Adam(lr=0.1, iterations=3, eps=1e-3)
        ends[size] = [solve(slope(size), variable, s).values["images"] for s in (signed, plain)]
    assert torch.equal(ends[1.0][0], ends[1e-6][0])
    assert not torch.allclose(ends[1.0][1], ends[1e-6][1])


@pytest.mark.parametrize("deviation", [1.0, 0.2])
def test_relative_steps_are_as_long_however_the_client_normalizes(deviation: float) -> None:
    model, (images, labels) = tiny(), examples()
    client = lm.Client(model, images, labels, lr=0.1, normalize=((0.4,), (deviation,)))
    attack = MatchedAttack(
        trajectory=Start(),
        distance=Cosine(),
        solver=Adam(lr=0.1, relative=True, iterations=1, sign=True),
        priors=(),
        start="gray",
    )
    found = attack.run(model, client.train(), labels=labels).images
    assert (found - 0.5).abs().max().item() == pytest.approx(0.1)


def test_steps_decay_at_three_five_and_seven_eighths() -> None:
    rates = [Adam(lr=1.0, iterations=8).scale(i) for i in range(8)]
    assert rates == pytest.approx([1, 1, 1, 0.1, 0.1, 0.01, 0.01, 0.001])
    assert StepDecay(factor=0.5, at=(0.5,))(6, 10) == 0.5


def test_constants_get_no_gradient() -> None:
    seen = []

    def objective(values: Any, share: Tensor, phases: object) -> tuple[Tensor, Tensor]:
        tracked = torch._C._functorch.is_gradtrackingtensor
        seen.append({name: tracked(value) for name, value in values.items()})
        loss = (values["images"] * values["labels"]).sum()
        return loss, loss

    variables = {
        "images": Variable(torch.ones(2), lr=0.1),
        "labels": Variable(torch.tensor([1.0, 2.0])),
    }
    found = solve(objective, variables, Adam(lr=0.1, iterations=1))
    assert seen[0] == {"labels": False, "images": True}
    assert torch.equal(found.values["labels"], torch.tensor([1.0, 2.0]))


def test_a_diverging_attack_says_so() -> None:
    def explode(values: Any, share: Tensor, phases: object) -> tuple[Tensor, Tensor]:
        loss = values["images"].exp().exp().sum()
        return loss, loss

    with pytest.raises(LeakmeterError, match="diverged"):
        solve(explode, {"images": Variable(torch.ones(1) * 9, lr=1.0)}, Adam(lr=1.0, iterations=2))


def test_zero_iterations_are_refused() -> None:
    with pytest.raises(LeakmeterError, match="iterations is 0"):
        papers.ig(iterations=0)


def test_euclidean_sees_the_mean_gradient_of_a_step() -> None:
    model, (images, labels) = tiny(), examples()
    client = lm.Client(model, images, labels, epochs=1, lr=0.01)
    trained, gradient = problem_of(client.train(), model), problem_of(client.gradient(), model)
    for name, tensor in gradient.mean_gradient().items():
        torch.testing.assert_close(trained.mean_gradient()[name], tensor, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "attack",
    [
        papers.sme(20),
        papers.retrace(20, every=5),
        replace(papers.retrace(20), trajectory=Retrace(every=5, unroll=10)),
    ],
)
def test_an_interrupted_attack_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: Attack
) -> None:
    model, update = tiny(), tiny_update()
    whole = attack.run(model, update, seed=3)
    monkeypatch.setattr("leakmeter.execution.Checkpoint.due", lambda self: True)

    def pull_the_plug(done: int, total: int, match: object) -> None:
        if done == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attack.run(model, update, seed=3, folder=tmp_path, on_progress=pull_the_plug)
    done: list[int] = []
    resumed = attack.run(
        model, update, seed=3, folder=tmp_path, on_progress=lambda i, n, m: done.append(i)
    )
    assert done == list(range(13, 21))
    assert torch.equal(resumed.images, whole.images)
    assert same_bits(resumed.history, whole.history)
    done.clear()
    again = attack.run(
        model, update, seed=3, folder=tmp_path, on_progress=lambda i, n, m: done.append(i)
    )
    assert done == []  # it was read back
    assert torch.equal(again.images, whole.images)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_paused_attack_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    model, update, attack = tiny(), tiny_update(), papers.sme(20)
    whole = attack.run(model, update)
    asked = iter(range(100))
    with pytest.raises(Pause):
        attack.run(model, update, folder=tmp_path, paused=lambda: next(asked) == 12)
    done: list[int] = []
    found = attack.run(model, update, folder=tmp_path, on_progress=lambda i, n, m: done.append(i))
    assert done == list(range(14, 21))
    assert torch.equal(found.images, whole.images)


def test_restarts_go_on_after_an_interruption(tmp_path: Path) -> None:
    """Cut off in the second of three starts."""
    model, update = tiny(), tiny_update()
    attack = papers.dlg(3, restarts=3)
    whole = attack.run(model, update)

    def pull_the_plug(done: int, total: int, match: object) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attack.run(model, update, folder=tmp_path, on_progress=pull_the_plug)
    done: list[int] = []
    resumed = attack.run(model, update, folder=tmp_path, on_progress=lambda i, n, m: done.append(i))
    assert done[0] == 6
    assert torch.equal(resumed.images, whole.images)


@pytest.mark.parametrize("content", [b"rubbish", b""], ids=["rubbish", "empty"])
def test_what_is_kept_but_damaged_is_done_again(tmp_path: Path, content: bytes) -> None:
    model, update = tiny(), tiny_update()
    expected = papers.sme(5).run(model, update, folder=tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(content)
    found = papers.sme(5).run(model, update, folder=tmp_path)
    assert torch.equal(found.images, expected.images)
    other = papers.sme(6).run(model, update, folder=tmp_path)  # not what is kept there
    assert len(other.history["match"]) == 6


def test_an_update_without_movement_is_refused() -> None:
    update = tiny_update()
    still = lm.Update(update.before, update.before, None, 3, update.protocol)
    with pytest.raises(LeakmeterError, match="the update is zero"):
        papers.ig(1).run(tiny(), still)


def test_recipes_read_like_their_constructor() -> None:
    text = repr(papers.sme())
    assert "Line(alpha=0.5, lr=0.001, every=5)" in text
    assert "TotalVariation(weight=0.005, summed=False)" in text
    assert "Adam(lr=1.0, iterations=1000" in text


def test_reconstructions_round_trip(tmp_path: Path) -> None:
    found = papers.sme(3).run(tiny(), tiny_update(), seed=5)
    found.save(tmp_path / "r.safetensors")
    loaded = lm.Reconstruction.load(tmp_path / "r.safetensors")
    assert torch.equal(found.images, loaded.images)
    assert same_bits(found.history, loaded.history)
    assert same_bits(found.parameters, loaded.parameters)
    assert (found.attack, found.seed, found.seconds) == (loaded.attack, loaded.seed, loaded.seconds)
    assert found.labels_known is loaded.labels_known is False
    tiny_update().save(tmp_path / "u.safetensors")
    with pytest.raises(LeakmeterError, match="not a reconstruction"):
        lm.Reconstruction.load(tmp_path / "u.safetensors")


BAD_PARTS: dict[str, tuple[Callable[[], object], str]] = {
    "negative smoothing": (lambda: TotalVariation(-1.0), "weight of TotalVariation is -1"),
    "smoothing is no number": (lambda: SquaredVariation(float("nan")), "weight of SquaredVar"),
    "endless penalty": (lambda: SoftBox(float("inf")), "weight of SoftBox is inf"),
    "negative order": (lambda: EpochOrder(-2.0), "weight of EpochOrder is -2"),
    "decay never": (lambda: ExponentialDecay(0.9, 0), "every is 0: use 1 or more"),
    "decay to nothing": (lambda: StepDecay(0.0), "factor of the decay is 0.0"),
    "emphasis of nothing": (lambda: Emphasis(0.0, 1.0), "first emphasis is 0.0"),
    "emphasis beyond the end": (lambda: Emphasis(1.0, 2.0, until=1.5), "at most 1"),
    "looking too far": (lambda: LookAhead(1.5, 0.1), "share of the gradient ahead is 1.5"),
    "looking backwards": (lambda: LookAhead(0.5, -0.1), "radius of the look-ahead is -0.1"),
    "climbing path": (lambda: papers.nl_sme(penalty=-1.0), "keep_path is -1"),
    "beside the line": (lambda: papers.sme(alpha=1.5), "alpha is 1.5: use 0 or more and at most 1"),
    "no step": (lambda: papers.sme(lr=0.0), "lr is 0.0: use a number above 0"),
    "no restart": (lambda: papers.dlg(restarts=0), "restarts is 0: use 1 or more"),
    "misspelt start": (
        lambda: papers.sapag(start=cast("Any", "grey")),
        "did you mean 'gray'",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD_PARTS.values(), ids=BAD_PARTS.keys())
def test_parts_refuse_numbers_out_of_range(make: Callable[[], object], message: str) -> None:
    with pytest.raises(LeakmeterError, match=message):
        make()


def test_what_an_attack_needs_follows_from_its_parts() -> None:
    whole = papers.dlg_adam()
    assert "client's lr" in whole.needs
    assert replace(whole, distance=Partial(whole.distance, 0.5)).needs == whole.needs
    assert "client's lr" not in papers.fedleak().needs
