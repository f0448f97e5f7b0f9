from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import leakmeter as lm
from leakmeter import LeakmeterError
from leakmeter.federated import average, by_writer, dirichlet, federate, iid
from leakmeter.state import State
from victims import examples, same_bits, tiny

OPTIMIZERS: list[tuple[dict[str, Any], Any]] = [
    ({}, lambda p: torch.optim.SGD(p, lr=0.05)),
    ({"weight_decay": 0.1}, lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1)),
    ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    (
        {"momentum": 0.9, "nesterov": True},
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    ),
    ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.05)),
    (
        {"optimizer": "adamw", "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1),
    ),
]


@pytest.mark.parametrize(("settings", "make"), OPTIMIZERS)
def test_full_batch_training_is_plain_pytorch(settings: dict[str, Any], make: Any) -> None:
    images, labels = examples(count=4)
    model = tiny()
    update = lm.Client(model, images, labels, epochs=3, lr=0.05, **settings).train()
    expected = copy.deepcopy(model)
    optimizer = make(expected.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(expected(images), labels).backward()
        optimizer.step()
    assert update.after is not None
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(update.after[name], tensor)


def test_the_users_model_is_not_changed() -> None:
    model = lm.models.build("resnet8", classes=5, channels=1, size=28)
    was = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images, labels = examples(size=28)
    update = lm.Client(model, images, labels, epochs=1, lr=0.1, batchnorm="train").train()
    assert model.training
    assert same_bits(was, dict(model.state_dict()))
    assert same_bits(was, update.before)


def test_batches_are_shuffled_anew_and_the_last_partial_one_is_kept() -> None:
    seen: list[Tensor] = []

    class Spy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            seen.append(x[:, 0, 0, 0].detach())
            return torch.cat([x.flatten(1), -x.flatten(1)], 1) * self.scale

    images = torch.linspace(0, 1, 7).view(7, 1, 1, 1)
    client = lm.Client(Spy(), images, torch.zeros(7).long(), epochs=2, batch_size=3, lr=0.1)
    seen.clear()
    client.train()
    assert [len(batch) for batch in seen] == [3, 3, 1, 3, 3, 1]
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)
    again = [batch.clone() for batch in seen]
    seen.clear()
    client.train()
    assert all(torch.equal(a, b) for a, b in zip(again, seen, strict=True))


def test_batchnorm_modes() -> None:
    model = lm.models.build("resnet8", classes=5, channels=1, size=28)
    images, labels = examples(count=4, size=28)
    after = {}
    for mode in ("eval", "train"):
        update = lm.Client(model, images, labels, epochs=1, lr=0.1, batchnorm=mode).train()
        assert update.protocol.batchnorm == mode
        assert update.after is not None
        after[mode] = update.after
        moved = [
            name
            for name in update.before
            if "running_mean" in name and not torch.equal(update.before[name], after[mode][name])
        ]
        assert bool(moved) == (mode == "train")


def test_the_trajectory_can_be_recorded() -> None:
    steps: list[State] = []
    images, labels = examples(count=5)
    client = lm.Client(tiny(), images, labels, epochs=2, batch_size=2, lr=0.1)
    update = client.train(on_step=steps.append)
    assert len(steps) == update.protocol.steps(5) == 6
    assert update.after is not None
    assert same_bits(steps[-1], update.after)
    assert not same_bits(steps[0], steps[1])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"images": torch.rand(3, 12, 12)}, r"images must be float \[N, C, H, W\]"),
        ({"images": torch.zeros(3, 1, 12, 12, dtype=torch.uint8)}, "images must be float"),
        ({"images": torch.rand(3, 1, 12, 12) * 255}, "give pixels in"),
        ({"images": torch.full((3, 1, 12, 12), torch.nan)}, "give pixels in"),
        ({"images": torch.zeros(0, 1, 12, 12), "labels": torch.zeros(0).long()}, "empty"),
        ({"images": torch.rand(3, 3, 12, 12)}, "does not take images"),
        ({"labels": torch.tensor([0, 1])}, "labels must be 3 integers"),
        ({"labels": torch.tensor([0, 1, 9])}, "has 5 outputs"),
        ({"labels": torch.tensor([0, 1, -1])}, "has 5 outputs"),
        ({"epochs": 0}, "epochs"),
        ({"lr": -0.1}, "lr"),
        ({"optimizer": "lion"}, "optimizer"),
        ({"momentun": 0.9}, "momentun"),
        ({"normalize": "cifar1000"}, "did you mean 'cifar100'"),
        ({"normalize": ((0.5, 0.5), (1.0, 1.0))}, "channels"),
        ({"lr": 1e30, "epochs": 4}, "NaN or Inf: did the client's training diverge"),
    ],
)
def test_bad_clients_are_refused(change: dict[str, Any], says: str) -> None:
    images, labels = examples()
    arguments: dict[str, Any] = {"images": images, "labels": labels, "lr": 0.1} | change
    with pytest.raises(LeakmeterError, match=says):
        lm.Client(tiny(), **arguments).train()


def test_a_fully_frozen_model_is_refused() -> None:
    client = lm.Client(tiny().requires_grad_(False), *examples(), lr=0.1)
    for send in (client.train, client.gradient):
        with pytest.raises(LeakmeterError, match="all are frozen"):
            send()


def test_average_is_weighted_by_examples() -> None:
    def sent(value: float, count: int) -> lm.Update:
        before = {"w": torch.zeros(2), "n": torch.tensor(0)}
        after = {"w": torch.full((2,), value), "n": torch.tensor(4)}
        return lm.Update(before=before, after=after, num_examples=count)

    mean = average([sent(1.0, 1), sent(5.0, 3)])
    assert torch.equal(mean["w"], torch.full((2,), 4.0))
    assert mean["n"].dtype == torch.int64
    assert mean["n"] == 4


def test_rounds_learn_and_are_cached(photos: lm.data.Dataset, tmp_path: Path) -> None:
    parts = [
        (photos.images[part, :1, ::2, ::2], photos.labels[part])
        for part in iid(len(photos), 4, seed=0)
    ]
    model = tiny(classes=photos.classes, size=16)
    calls: list[int] = []

    def federated(rounds: int, seed: int = 0) -> nn.Module:
        calls.clear()
        return federate(
            model,
            parts,
            rounds=rounds,
            participation=0.6,
            seed=seed,
            cache=tmp_path,
            on_round=lambda done, total: calls.append(done),
            epochs=2,
            batch_size=8,
            lr=0.1,
        )

    def accuracy(network: nn.Module) -> float:
        hits = [network(images).argmax(1) == labels for images, labels in parts]
        return torch.cat(hits).double().mean().item()

    three = federated(3)
    assert calls == [1, 2, 3]
    six = federated(6)
    assert calls == [4, 5, 6]
    assert same_bits(dict(federated(3).state_dict()), dict(three.state_dict()))
    assert not calls
    for path in tmp_path.rglob("*.safetensors"):
        path.unlink()
    assert same_bits(dict(federated(6).state_dict()), dict(six.state_dict()))
    assert accuracy(six) > accuracy(model) + 0.2
    assert not same_bits(dict(federated(3, seed=1).state_dict()), dict(three.state_dict()))


def test_splits_deal_out_every_example_once() -> None:
    labels = torch.arange(10).repeat(20)
    for parts in (
        iid(200, 7),
        dirichlet(labels, 7, concentration=0.1),
        by_writer(torch.arange(200) % 7),
    ):
        assert len(parts) == 7
        assert all(len(part) for part in parts)
        assert torch.equal(torch.cat(parts).sort().values, torch.arange(200))
    assert {len(part) for part in iid(200, 7)} == {28, 29}

    def classes_per_client(concentration: float) -> float:
        parts = dirichlet(labels, 10, concentration=concentration)
        return sum(len(set(labels[part].tolist())) for part in parts) / 10

    assert classes_per_client(0.05) < 5 < 9 < classes_per_client(100)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: iid(3, 4), "clients is 4"),
        (lambda: dirichlet(torch.arange(3), 4), "clients is 4"),
        (lambda: dirichlet(torch.arange(9), 2, concentration=0), "concentration is 0"),
        (lambda: average([]), "updates is empty"),
        (lambda: federate(tiny(), [], rounds=1), "parts is empty"),
        (lambda: federate(tiny(), [examples()], rounds=1, participation=0), "participation"),
    ],
)
def test_bad_federations_are_refused(make: Any, says: str) -> None:
    with pytest.raises(LeakmeterError, match=says):
        make()
