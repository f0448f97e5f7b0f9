"""An attack sees the update and nothing else; the same input gives the same bits."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakmeter as lm
from leakmeter import papers
from victims import examples, same_bits, tiny

RECIPES = sorted(papers.RECIPES)
EXACT = "closed_form"  # one example of a dense network, and nothing random


def attack_of(name: str, iterations: int) -> Any:
    restarts = {"restarts": 2} if name in ("dlg", "idlg", "sapag") else {}
    return papers.RECIPES[name](**({} if name == EXACT else {"iterations": iterations} | restarts))


def victim_of(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A network and examples that the recipe is made for."""
    images, labels = examples(count=1 if name in (EXACT, "idlg") else 3)
    dense = nn.Sequential(nn.Flatten(), nn.Linear(144, 5))
    return dense if name == EXACT else tiny(), images, labels


@pytest.mark.parametrize("name", RECIPES)
def test_deleting_the_truth_changes_no_bit(name: str, tmp_path: Path) -> None:
    attack = attack_of(name, iterations=10)
    model, images, labels = victim_of(name)
    client = lm.Client(model, images, labels, epochs=2, batch_size=2, lr=0.05)
    update = client.train()
    beside_the_truth = attack.run(model, update)
    update.save(tmp_path / "u.safetensors")
    images.fill_(torch.nan)
    labels.fill_(-1)
    client.images.fill_(torch.nan)
    del images, labels, client, update
    gc.collect()
    alone = attack.run(model, lm.Update.load(tmp_path / "u.safetensors"))
    assert torch.equal(alone.images, beside_the_truth.images)
    assert torch.equal(alone.labels, beside_the_truth.labels)
    assert same_bits(alone.history, beside_the_truth.history)


@pytest.mark.parametrize("name", RECIPES)
def test_the_seed_decides_every_bit(name: str) -> None:
    attack = attack_of(name, iterations=5)
    model, images, labels = victim_of(name)
    update = lm.Client(model, images, labels, epochs=2, lr=0.05).train()
    first = attack.run(model, update, seed=7)
    torch.rand(100)
    again = attack.run(model, update, seed=7)
    other = attack.run(model, update, seed=8)
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.images, other.images) == (name == EXACT)


def test_an_attack_leaves_the_model_and_the_global_random_state_alone() -> None:
    model, (images, labels) = tiny(), examples()
    update = lm.Client(model, images, labels, epochs=2, lr=0.05).train()
    was, state = {n: t.clone() for n, t in model.state_dict().items()}, torch.get_rng_state()
    found = papers.sme(3).run(model, update)
    assert same_bits(was, dict(model.state_dict()))
    assert torch.equal(state, torch.get_rng_state())
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not found.images.requires_grad


def test_the_weights_in_the_model_object_do_not_matter() -> None:
    """Only those of the update do: the server may have moved on."""
    model, (images, labels) = tiny(), examples()
    update = lm.Client(model, images, labels, epochs=2, lr=0.05).train()
    expected = papers.sme(5).run(model, update)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(papers.sme(5).run(model, update).images, expected.images)


def test_known_labels_are_an_assumption_on_record() -> None:
    model, (images, labels) = tiny(), examples()
    update = lm.Client(model, images, labels, epochs=2, lr=0.05).train()
    assert papers.ig(1).run(model, update, labels=labels).labels_known
    assert not papers.ig(1).run(model, update).labels_known
