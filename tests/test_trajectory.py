"""The client's path: figures 3 and 4 of the SME paper."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional

import leakmeter as lm
from leakmeter.audits import Scenario, run
from leakmeter.audits.trials import PathOutcome
from leakmeter.federated.local import snapshot
from leakmeter.measure import Straightness, straightness, trajectory
from leakmeter.state import State
from test_report import PROVENANCE, render, sample, text_of
from victims import examples, same_bits, tiny

STRAIGHT = Straightness(
    total_steps=200,
    steps=[0, 100, 199],
    plane_shares=[0.999, 0.987, 0.991],
    alphas=[0.0, 0.5, 1.0],
    cosines=[0.8123, 0.9876, 0.9345],
)


def client(**training: Any) -> lm.Client:
    settings = {"epochs": 4, "batch_size": 2, "lr": 0.05} | training
    return lm.Client(tiny(), *examples(5), **settings)


def flat(state: State) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in state.values()]).double()


def brute_force(of: lm.Client) -> tuple[Tensor, Tensor]:
    """Shares [T] by the whole SVD and cosines [places], straight from the definitions."""
    model = copy.deepcopy(of.model)

    def gradient(state: State) -> Tensor:
        model.load_state_dict(state)
        loss = functional.cross_entropy(model(of.images), of.labels)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    states = [snapshot(of.model)]
    of.train(on_step=states.append)
    stacked = torch.stack([gradient(state) for state in states[:-1]]).double()
    plane = torch.linalg.svd(stacked, full_matrices=False).Vh[:2]
    shares = (stacked @ plane.T).norm(dim=1) / stacked.norm(dim=1)
    first, last = states[0], states[-1]
    moved = flat(first) - flat(last)
    line = [
        {n: first[n] + a * (last[n] - first[n]) for n in first} for a in torch.linspace(0, 1, 21)
    ]
    cosines = [functional.cosine_similarity(moved, gradient(w).double(), dim=0) for w in line]
    return shares, torch.stack(cosines)


# The measurement


@pytest.mark.parametrize("training", [{}, {"momentum": 0.9}, {"optimizer": "adam", "lr": 0.01}])
def test_agrees_with_brute_force(training: dict[str, Any]) -> None:
    found = straightness(client(**training))
    shares, cosines = brute_force(client(**training))
    assert (found.total_steps, found.steps) == (12, list(range(12)))
    assert not found.thinned
    assert found.plane_shares == pytest.approx(shares.tolist(), abs=1e-5)
    assert found.cosines == pytest.approx(cosines.tolist(), abs=1e-4)
    assert 0 < found.least_plane_share == min(found.plane_shares) < 0.999
    assert found.best_cosine == found.cosines[round(20 * found.best_alpha)] == max(found.cosines)
    assert found.start_cosine == found.cosines[0]


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_one_step_is_its_own_gradient(weight_decay: float) -> None:
    found = straightness(client(epochs=1, batch_size=5, weight_decay=weight_decay))
    assert found.plane_shares == [pytest.approx(1)]
    assert found.best_alpha == 0
    assert found.start_cosine == pytest.approx(1, abs=1e-5)


def test_two_steps_lie_in_a_plane() -> None:
    assert straightness(client(epochs=2, batch_size=5)).plane_shares == pytest.approx([1, 1])


def test_the_plane_is_not_centered_and_zeros_lie_in_it() -> None:
    rows = torch.tensor([[3.0, 0, 4], [30, 0, 0], [0, 20, 0], [0, 0, 0]])
    plane = torch.linalg.svd(rows.double()).Vh[:2]
    kept = (rows.double() @ plane.T).norm(dim=1)
    expected = [*(kept[:3] / rows[:3].norm(dim=1)).tolist(), 1.0]
    assert trajectory.plane_shares(rows) == pytest.approx(expected)
    assert trajectory.plane_shares(rows)[0] < 0.8


def test_wide_gradients_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn((6, 50), generator=torch.Generator().manual_seed(0))
    whole = trajectory.plane_shares(rows)
    monkeypatch.setattr(trajectory, "_COLUMNS", 7)
    assert trajectory.plane_shares(rows) == pytest.approx(whole)


@pytest.mark.parametrize(
    ("total", "size", "count"),
    [(1, 10, 1), (128, 10, 128), (129, 10, 128), (1000, 1_700_000, 128), (1000, 10**9, 8)],
)
def test_long_paths_are_thinned_evenly(total: int, size: int, count: int) -> None:
    steps = trajectory.measured_steps(total, size)
    assert len(steps) == len(set(steps)) == count
    assert (steps[0], steps[-1]) == (0, total - 1)
    gaps = {after - before for before, after in itertools.pairwise(steps)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_thinned_steps_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory, "MOST_STEPS", 3)
    found = straightness(client())
    assert found.steps == [0, 6, 11]
    assert found.thinned
    assert len(found.plane_shares) == 3


def test_frozen_layers_and_batch_statistics_are_left_alone() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(1), tiny())
    model[1][0].requires_grad_(False)  # type: ignore[index]
    was = snapshot(model)
    found = straightness(lm.Client(model, *examples(6), epochs=2, lr=0.05, batchnorm="train"))
    assert same_bits(was, snapshot(model))
    assert found.best_cosine > 0.9


def test_a_network_without_trainable_weights_is_refused() -> None:
    with pytest.raises(lm.LeakmeterError, match="no trainable parameter"):
        straightness(lm.Client(tiny().requires_grad_(False), *examples()))


def test_progress_ends_at_its_total() -> None:
    seen: list[tuple[int, int]] = []
    straightness(client(), lambda done, total: seen.append((done, total)))
    assert seen == [(done, 12 + 1 + 21) for done in range(1, 35)]


def test_a_damaged_measurement_is_refused() -> None:
    text = STRAIGHT.model_dump_json()
    assert Straightness.model_validate_json(text) == STRAIGHT
    with pytest.raises(ValidationError, match="one share"):
        Straightness.model_validate_json(text.replace("0.999,", ""))


def test_real_images_after_many_steps(cifar100: lm.data.Dataset) -> None:
    model = lm.models.build("cnn-cifar", classes=cifar100.classes)
    some = cifar100.select(torch.arange(10))
    client = lm.Client(model, some.images, some.labels, epochs=20, lr=0.004, normalize="cifar100")
    found = straightness(client)
    assert found.best_cosine > 0.95
    assert 0 < found.best_alpha < 1
    assert found.start_cosine < found.best_cosine - 0.02
    assert found.least_plane_share > 0.9


# In an audit


def scenario(shares: str) -> Scenario:
    return Scenario.model_validate(
        {
            "model": {"name": "lenet-zhu"},
            "client": {"count": 2, "examples": 3, "epochs": 3, "shares": shares},
            "attacks": [{"name": name, "options": {"iterations": 1}} for name in ("ig", "sme")]
            if shares == "weights"
            else [{"name": "ig", "options": {"iterations": 1}}],
        }
    )


def test_every_client_is_measured_once(tmp_path: Path) -> None:
    first, _ = run(scenario("weights"), tmp_path)
    files = sorted(tmp_path.glob("trials/path-*/result.json"))
    assert len(files) == 2
    for trial in first:
        content = json.loads(files[trial.client].read_text())["result"]
        stored = PathOutcome.model_validate(content).path
        assert trial.straightness == stored
        assert stored.total_steps == 3
    times = {file: file.stat().st_mtime_ns for file in files}
    again, _ = run(scenario("weights"), tmp_path)
    assert [trial.straightness for trial in again] == [trial.straightness for trial in first]
    assert {file: file.stat().st_mtime_ns for file in files} == times


def test_one_gradient_has_no_path(tmp_path: Path) -> None:
    evidence, _ = run(scenario("gradient"), tmp_path)
    assert all(trial.straightness is None for trial in evidence)
    assert not list(tmp_path.glob("trials/path-*"))


# In the report


def test_the_report_shows_the_path_of_each_client_once() -> None:
    runs = [sample(name, client) for client in (1, 0) for name in ("ig", "sme")]
    page = render([replace(each, straightness=STRAIGHT) for each in runs], PROVENANCE)
    section = page[page.index('<section id="path"') : page.index('<section id="reproduce"')]
    text = text_of(section)
    assert 'href="#path"' in page
    assert "The clients\N{RIGHT SINGLE QUOTATION MARK} paths" in text
    assert section.count("<svg") == 2
    assert section.count('<th scope="row">') == 2
    assert section.index('<th scope="row">0<') < section.index('<th scope="row">1<')
    for number in ("200", "0.812", "0.988", "50% of the way", "98.7%", "Agreement"):
        assert number in text
    assert "only some steps were measured" in text
    assert "<script" not in page


@pytest.mark.parametrize("clients", [1, 7])
def test_few_and_many_paths_can_be_drawn(clients: int) -> None:
    runs = [
        replace(sample(client=number, count=1), straightness=STRAIGHT) for number in range(clients)
    ]
    page = render(runs, PROVENANCE)
    assert ("The client\N{RIGHT SINGLE QUOTATION MARK}s path" in page) == (clients == 1)
    assert "client 0</text>" not in page  # no legend


def test_a_single_step_can_be_drawn() -> None:
    one = Straightness(total_steps=1, steps=[0], plane_shares=[1], alphas=[0, 1], cosines=[1, -0.2])
    assert "100.0%" in render([replace(sample(count=1), straightness=one)], PROVENANCE)


def test_without_a_path_there_is_no_section() -> None:
    page = render([sample(count=1)], PROVENANCE)
    assert 'id="path"' not in page
    assert 'href="#path"' not in page
    assert "Agreement" not in text_of(page)
