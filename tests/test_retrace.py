"""Retrace follows the client's own path, whatever its optimiser; the replay score ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import leakscope as ls
from leakscope import papers
from leakscope.attack.problem import Problem
from leakscope.attack.retrace import Retrace, quadrature, replay_score
from test_simulation import CLIENTS
from victims import examples, tiny, tiny_update


@pytest.mark.parametrize("name", CLIENTS)
def test_on_the_true_data_a_node_per_step_predicts_the_update(name: str) -> None:
    """One batch an epoch leaves no order to guess: path, momentum and moments are the client's.

    In double precision: Adam blows up the rounding of gradients that are nearly zero.
    """
    model, (images, labels) = tiny().double(), examples()
    images = images.double()
    update = ls.Client(model, images, labels, epochs=5, **CLIENTS[name]).train()
    problem = Problem.of(model, update, None)
    retrace = Retrace(nodes=5, damping=0.0)
    theta = retrace.refresh(problem, images, labels, 0, 100)
    predicted = retrace.predict(problem, images, labels, theta)
    for key, moved in problem.observed.items():
        expected = moved / (5 * CLIENTS[name]["lr"])
        torch.testing.assert_close(predicted[key], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", CLIENTS)
def test_three_nodes_come_close(name: str) -> None:
    model, (images, labels) = tiny(), examples()
    settings = {**CLIENTS[name], "lr": CLIENTS[name]["lr"] / 50}
    update = ls.Client(model, images, labels, epochs=30, **settings).train()
    problem = Problem.of(model, update, None)
    gaps = []
    for nodes in (1, 3):
        retrace = Retrace(nodes=nodes)
        theta = retrace.refresh(problem, images, labels, 0, 100)
        compare = papers.retrace().distance.against(problem)
        gaps.append(compare(retrace.predict(problem, images, labels, theta)).item())
    print(name, gaps)
    assert gaps[1] < gaps[0]
    assert gaps[1] < 0.02


@pytest.mark.parametrize(("nodes", "steps"), [(1, 1), (3, 2), (3, 3), (3, 4), (1, 7), (5, 100)])
def test_the_nodes_share_all_steps(nodes: int, steps: int) -> None:
    found = quadrature(nodes, steps)
    assert len(found) == min(nodes, steps)
    assert [node.first for node in found] == [0, *(node.last for node in found[:-1])]
    assert found[-1].last == steps
    assert all(node.first <= node.place < node.last for node in found)
    assert sum(node.share for node in found) == pytest.approx(1)


def test_replays_come_at_their_interval() -> None:
    problem = Problem.of(tiny(), tiny_update(), None)
    images, labels = examples()
    due = [bool(Retrace(every=4).refresh(problem, images, labels, i, 10)) for i in range(6)]
    assert due == [True, False, False, False, True, False]


def test_what_retrace_must_know() -> None:
    update = tiny_update()
    unknown = replace(update, protocol=update.protocol.model_copy(update={"epochs": None}))
    with pytest.raises(ls.LeakscopeError, match="epochs"):
        papers.retrace(2).run(tiny(), unknown)
    with pytest.raises(ls.LeakscopeError, match="use ig"):
        papers.retrace(2).run(tiny(), ls.Client(tiny(), *examples()).gradient())
    assert "epochs" in papers.retrace().needs


def test_the_truth_has_the_best_replay_score() -> None:
    model, (images, labels) = tiny(), examples()
    update = ls.Client(model, images, labels, epochs=10, lr=0.1).train()
    found = papers.sme(50).run(model, update, labels=labels)
    poor = papers.sme(2).run(model, update, labels=labels)
    truth = replace(found, images=images, labels=labels)
    scores = [replay_score(model, update, each) for each in (poor, found, truth)]
    assert scores == sorted(scores)
    assert scores[-1] == pytest.approx(1, abs=1e-4)
