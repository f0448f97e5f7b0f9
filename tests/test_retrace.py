"""Retrace follows the client's own path, whatever its optimizer; the replay score ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad

import leakmeter as lm
from leakmeter import papers
from leakmeter.attacks.distance import Cosine
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.replay import replay
from leakmeter.attacks.retrace import END, Retrace, quadrature
from leakmeter.attacks.simulation import Simulation, coarse
from leakmeter.attacks.solver import Moment, Phase
from leakmeter.attacks.trajectory import Line
from victims import CLIENTS, examples, tiny, tiny_update

DUE = Retrace().every // 3
"""The iteration of the first replay."""


def at(iteration: int) -> Moment:
    """When so many iterations are done, and time is not short."""
    return Moment(iteration, range(iteration, iteration + 1))


def begun(retrace: Retrace, problem: Problem, x: Tensor, y: Tensor, now: Moment) -> Phase:
    """The phase that begins then."""
    phase = retrace.refresh(problem, x, y, Phase(), now)
    assert phase is not None
    return phase


def predicted_by(
    retrace: Retrace, problem: Problem, x: Tensor, y: Tensor, phase: Phase
) -> dict[str, Tensor]:
    return retrace.during(phase.names[0]).predict(problem, x, y, phase.constants)


def ended(retrace: Retrace, phase: Phase | None) -> bool:
    """Whether the path is differentiated through then, which cannot be compiled."""
    return phase is not None and not retrace.during(phase.names[0]).traceable


@pytest.mark.parametrize("name", CLIENTS)
def test_on_the_true_data_a_node_per_step_predicts_the_update(name: str) -> None:
    """One batch an epoch leaves no order to guess: path, momentum and moments are the client's.

    In double precision: Adam blows up the rounding of gradients that are nearly zero.
    """
    model, (images, labels) = tiny().double(), examples()
    images = images.double()
    update = lm.Client(model, images, labels, epochs=5, **CLIENTS[name]).train()
    problem = Problem.of(model, update, None)
    retrace = Retrace(nodes=5, damping=0.0)
    phase = begun(retrace, problem, images, labels, at(DUE))
    predicted = predicted_by(retrace, problem, images, labels, phase)
    for key, moved in problem.observed.items():
        expected = moved / (5 * CLIENTS[name]["lr"])
        torch.testing.assert_close(predicted[key], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", CLIENTS)
def test_three_nodes_come_close(name: str) -> None:
    model, (images, labels) = tiny(), examples()
    settings = {**CLIENTS[name], "lr": CLIENTS[name]["lr"] / 50}
    update = lm.Client(model, images, labels, epochs=30, **settings).train()
    problem = Problem.of(model, update, None)
    gaps = []
    for nodes in (1, 3):
        retrace = Retrace(nodes=nodes, damping=1e-2)  # the default is for the search, not exact
        phase = begun(retrace, problem, images, labels, at(DUE))
        compare = papers.retrace().distance.against(problem)
        gaps.append(compare(predicted_by(retrace, problem, images, labels, phase)).item())
    assert gaps[1] < gaps[0]
    assert gaps[1] < 0.02


SUMS = {name: each for name, each in CLIENTS.items() if "optimizer" not in each}
"""Clients whose update is a sum of gradients."""


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", SUMS)
def test_long_steps_go_as_far_as_the_client(name: str, reduction: str) -> None:
    """On a short way it does not matter in how many steps it is gone; copies have no order."""
    model, (images, labels) = tiny().double(), examples(1)
    images, labels = images.double().expand(3, -1, -1, -1), labels.expand(3)
    settings = {**SUMS[name], "lr": 1e-7, "reduction": reduction}
    update = lm.Client(model, images, labels, epochs=4, batch_size=1, **settings).train()
    problem = Problem.of(model, update, None)
    for strides in (3, 100):
        long = coarse(problem, images, labels, strides)
        for key, moved in problem.observed.items():
            torch.testing.assert_close(long[key], moved / (12 * 1e-7), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", SUMS)
def test_in_the_end_the_true_data_predict_the_update(name: str) -> None:
    """Whatever the long steps miss, and it changes with the images as theirs does."""
    model, (images, labels) = tiny().double(), examples()
    images = images.double()
    settings = {**SUMS[name], "lr": SUMS[name]["lr"] / 50}
    update = lm.Client(model, images, labels, epochs=30, **settings).train()
    problem = Problem.of(model, update, None)
    retrace = Retrace(unroll=7, strides=8)
    phase = begun(retrace, problem, images, labels, at(7))
    predicted = predicted_by(retrace, problem, images, labels, phase)
    for key, moved in problem.observed.items():
        expected = moved / (30 * settings["lr"])
        torch.testing.assert_close(predicted[key], expected, rtol=1e-6, atol=1e-8)
    other = images.flip(0)
    change = predicted_by(retrace, problem, other, labels, phase)
    for key, long in coarse(problem, other, labels, 8).items():
        missed = predicted[key] - coarse(problem, images, labels, 8)[key]
        torch.testing.assert_close(change[key], long + missed)


def test_the_end_is_differentiated_through() -> None:
    """Its slope is nearer to that of the whole training than the slope on a fixed path."""
    model, (images, labels) = tiny(), examples()
    update = lm.Client(model, images, labels, epochs=30, lr=0.02).train()
    problem = Problem.of(model, update, None)
    x = images + 0.1 * torch.randn(images.shape, generator=torch.Generator().manual_seed(2))
    compare = Cosine().against(problem)
    retrace = Retrace(unroll=DUE + 1)
    fixed, unrolled = (begun(retrace, problem, x, labels, at(DUE + i)) for i in (0, 1))
    truth = grad(lambda x: compare(Simulation().predict(problem, x, labels, {})))(x)
    found = [
        grad(lambda x, phase=phase: compare(predicted_by(retrace, problem, x, labels, phase)))(x)
        for phase in (fixed, unrolled)
    ]
    near = [torch.cosine_similarity(each.flatten(), truth.flatten(), 0).item() for each in found]
    print(near)
    assert near[1] > 0.99
    assert near[1] > near[0] + 0.05


@pytest.mark.parametrize(("nodes", "steps"), [(1, 1), (3, 2), (3, 3), (3, 4), (1, 7), (5, 100)])
def test_the_nodes_share_all_steps(nodes: int, steps: int) -> None:
    found = quadrature(nodes, steps)
    assert len(found) == min(nodes, steps)
    assert sum(node.share * (node.place + 0.5) for node in found) == pytest.approx(steps / 2)
    assert [node.first for node in found] == [0, *(node.last for node in found[:-1])]
    assert found[-1].last == steps
    assert all(node.first <= node.place < node.last for node in found)
    assert sum(node.share for node in found) == pytest.approx(1)


def test_replays_come_at_their_interval() -> None:
    problem = Problem.of(tiny(), tiny_update(), None)
    images, labels = examples()
    retrace = Retrace(every=4)
    found = [retrace.refresh(problem, images, labels, Phase(), at(i)) for i in range(6)]
    assert [each is not None for each in found] == [True, True, False, False, False, True]


def test_in_the_end_replays_come_three_times_as_often() -> None:
    update = lm.Client(tiny(), *examples(), epochs=2, lr=0.001).train()
    problem = Problem.of(tiny(), update, None)
    retrace = Retrace(every=7, unroll=4)
    phase = Phase()
    found = []
    for iteration in range(4, 9):
        found.append(retrace.refresh(problem, *examples(), phase, at(iteration)))
        phase = found[-1] or phase
    assert [each is not None for each in found] == [True, False, True, False, True]
    assert all(each is None or ended(retrace, each) for each in found)


def test_the_end_is_compared_with_the_mean_of_several_orders() -> None:
    """Uneven batches give some images more weight, in every order others."""
    model, (images, labels) = tiny(), examples(5)
    retrace = Retrace(every=1, unroll=0)
    one, mean = 0.0, 0.0
    for seed in range(60):
        client = lm.Client(model, images, labels, epochs=10, batch_size=4, lr=0.001, seed=seed)
        problem = Problem.of(model, client.train(), None)
        compare = Cosine().against(problem)
        phase = begun(retrace, problem, images, labels, Moment(seed, range(1)))
        mean += compare(predicted_by(retrace, problem, images, labels, phase)).item()
        one += compare(replay(problem, images, labels, seed=seed).moved).item()
    assert mean < 0.8 * one


def wild_update(**settings: Any) -> lm.Update:
    """Of a client whose steps are so long that fewer and longer ones lead elsewhere."""
    return lm.Client(tiny(), *examples(), epochs=30, **{"lr": 0.1, **settings}).train()


@pytest.mark.parametrize("changed", [{}, {"lr": 1e30}])
def test_no_end_where_long_steps_lead_elsewhere(changed: dict[str, Any]) -> None:
    """Then the path is replayed as before, every time that is due."""
    update = wild_update()
    other = replace(update, protocol=update.protocol.model_copy(update=changed))
    problem = Problem.of(tiny(), other, None)
    retrace = Retrace(unroll=4)
    found = [retrace.refresh(problem, *examples(), Phase(), at(i)) for i in (4, 5, DUE)]
    assert [each is not None for each in found] == [False, False, True]
    assert not ended(retrace, found[-1])


def test_no_end_for_adam() -> None:
    """Even where few long steps happen to lead to the same place."""
    problem = Problem.of(tiny(), wild_update(optimizer="adam", lr=1e-6), None)
    x, y = examples()
    retrace = Retrace(unroll=4)
    assert retrace.refresh(problem, x, y, Phase(), at(4)) is None
    plain = replace(problem, protocol=problem.protocol.model_copy(update={"optimizer": "sgd"}))
    assert ended(retrace, retrace.refresh(plain, x, y, Phase(), at(4)))


def test_an_end_that_has_begun_goes_on() -> None:
    """What long steps miss is found anew, also where it is much; what diverged is not used."""
    update = wild_update()
    problem = Problem.of(tiny(), update, None)
    retrace, old = Retrace(unroll=4), Phase((END,), {"missed/old": torch.zeros(1)})
    assert ended(retrace, retrace.refresh(problem, *examples(), old, at(4 + DUE)))
    far = update.protocol.model_copy(update={"lr": 1e30})
    diverged = replace(problem, protocol=far)
    assert retrace.refresh(diverged, *examples(), old, at(4 + DUE)) is None


def test_where_time_is_short_all_parts_of_the_schedule_come() -> None:
    """They go by the place on it, replays by the iterations that are really done."""
    update = lm.Client(tiny(), *examples(), epochs=4, lr=0.001).train()
    problem = Problem.of(tiny(), update, None)
    retrace = Retrace(grow=20, unroll=60)
    found = [
        retrace.refresh(problem, *examples(), Phase(), Moment(done, reached))
        for done, reached in ((1, range(1, 15)), (2, range(15, 30)), (3, range(30, 99)))
    ]
    assert found[0] is None
    assert found[1] is not None
    assert len(found[1].constants["shares"]) == 3
    assert ended(retrace, found[2])


def test_noise_is_not_replayed() -> None:
    problem = Problem.of(tiny(), tiny_update(), None)
    found = begun(Retrace(nodes=1), problem, *examples(), at(0)).constants
    place = quadrature(1, problem.protocol.steps(problem.num_examples))[0].place
    assert problem.after is not None
    for name, start in problem.before.items():
        share = place / problem.protocol.steps(problem.num_examples)
        torch.testing.assert_close(found[f"0/{name}"], start.lerp(problem.after[name], share))


def test_what_retrace_must_know() -> None:
    update = tiny_update()
    unknown = replace(update, protocol=update.protocol.model_copy(update={"epochs": None}))
    with pytest.raises(lm.LeakmeterError, match="epochs"):
        papers.retrace(2).run(tiny(), unknown)
    with pytest.raises(lm.LeakmeterError, match="use ig"):
        papers.retrace(2).run(tiny(), lm.Client(tiny(), *examples()).gradient())
    assert "epochs" in papers.retrace().needs


def test_the_truth_has_the_best_replay_score() -> None:
    model, (images, labels) = tiny(), examples()
    update = lm.Client(model, images, labels, epochs=10, lr=0.1).train()
    found = papers.sme(50).run(model, update, labels=labels)
    poor = papers.sme(2).run(model, update, labels=labels)
    truth = replace(found, images=images, labels=labels)
    scores = [lm.replay_score(model, update, each) for each in (poor, found, truth)]
    assert scores == sorted(scores)
    assert scores[-1] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("name", CLIENTS)
def test_batches_of_unknown_order_are_predicted_on_the_whole(name: str) -> None:
    """Better than the gradient at the middle of the straight line, where SME begins."""
    model, (images, labels) = tiny(), examples(6)
    settings = {**CLIENTS[name], "lr": CLIENTS[name]["lr"] / 50}
    update = lm.Client(model, images, labels, epochs=10, batch_size=2, seed=5, **settings).train()
    problem = Problem.of(model, update, None)
    compare = Cosine().against(problem)
    gap = {}
    for trajectory in (Line(), Retrace()):
        theta = {key: each.value for key, each in trajectory.variables(problem).items()}
        phase = trajectory.refresh(problem, images, labels, Phase(), at(DUE))
        theta |= {} if phase is None else phase.constants
        predicted = trajectory.predict(problem, images, labels, theta)
        gap[type(trajectory)] = compare(predicted).item()
    assert gap[Retrace] < max(0.02, 0.8 * gap[Line])


def test_summed_losses_have_as_much_decay_as_steps() -> None:
    model, (images, labels) = tiny(), examples(6)
    for reduction in ("mean", "sum"):
        update = lm.Client(
            model,
            images,
            labels,
            epochs=5,
            batch_size=1,
            lr=0.001,
            weight_decay=1.0,
            reduction=reduction,
        ).train()
        problem = Problem.of(model, update, None)
        retrace = Retrace()
        phase = begun(retrace, problem, images, labels, at(DUE))
        gap = Cosine().against(problem)(predicted_by(retrace, problem, images, labels, phase))
        assert gap < 0.02


def test_the_replay_never_knows_the_order_of_the_examples() -> None:
    """Whatever seed the client has, also the default: the truth must not score better for it."""
    model, (images, labels) = tiny(), examples(6)
    scores = []
    for seed in range(4):
        client = lm.Client(model, images, labels, epochs=5, batch_size=2, lr=0.1, seed=seed)
        update = client.train()
        found = replace(papers.ig(1).run(model, update), images=images, labels=labels)
        scores.append(lm.replay_score(model, update, found))
    assert max(scores) < 0.99


def test_a_replay_that_diverges_leaves_the_straight_line() -> None:
    model, (images, labels) = tiny(), examples()
    update = lm.Client(model, images, labels, epochs=2, lr=0.1).train()
    wild = replace(update, protocol=update.protocol.model_copy(update={"lr": 1e30}))
    found = papers.retrace(5, every=1).run(model, wild, labels=labels)
    assert found.images.isfinite().all()


def test_only_what_is_learned_is_reported() -> None:
    found = papers.retrace(2).run(tiny(), tiny_update())
    assert found.parameters == {}


def test_what_cannot_be_scored() -> None:
    update = tiny_update()
    found = papers.retrace(1).run(tiny(), update)
    with pytest.raises(lm.LeakmeterError, match="score a reconstruction of this update"):
        lm.replay_score(tiny(), update, replace(found, images=found.images[:1]))
