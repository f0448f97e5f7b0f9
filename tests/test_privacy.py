"""Differential privacy: what DP-SGD does, and what is proven about it."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakmeter as lm
from leakmeter import LeakmeterError
from leakmeter.attacks.problem import Problem
from leakmeter.federated import federate
from leakmeter.federated.defenses.accounting import ORDERS, gaussian, sampled_gaussian
from leakmeter.federated.defenses.base import Defense
from leakmeter.federated.defenses.compress import TopK
from leakmeter.federated.defenses.dp import DPSGD
from leakmeter.federated.defenses.dropout import GradientDropout
from leakmeter.federated.defenses.noise import UpdateNoise
from leakmeter.federated.defenses.parts import Freeze, LoRA
from leakmeter.federated.defenses.precode import Precode
from leakmeter.federated.defenses.soteria import Soteria
from leakmeter.federated.local import Training, make_optimizer, set_mode, train_locally
from leakmeter.state import State
from leakmeter.update import Protocol
from victims import CLIENTS, examples, same_bits, tiny

pytest.importorskip("opacus")
dp_event = pytest.importorskip("dp_accounting.dp_event")
pld = pytest.importorskip("dp_accounting.pld")
rdp = pytest.importorskip("dp_accounting.rdp")

WIDE = 1e6
"""Clips nothing."""


def trained(
    *defenses: Defense, model: nn.Module | None = None, count: int = 4, **settings: Any
) -> lm.Update:
    settings = {"lr": 0.05} | settings
    given = examples(count=count)
    return lm.Client(
        tiny() if model is None else model, *given, defenses=defenses, **settings
    ).train()


def movement(update: lm.Update) -> State:
    return update.observed(list(update.before))


def flat(update: lm.Update) -> Tensor:
    return torch.cat([tensor.flatten().double() for tensor in movement(update).values()])


def loop(
    batch_size: int, count: int, noise: float = 1.0, seed: int = 0
) -> tuple[Training, nn.Module]:
    """What the loop of a client runs on."""
    model, (inputs, labels) = tiny(), examples(count=count)
    protocol = Protocol(epochs=1, batch_size=batch_size, lr=0.1, optimizer="sgd", batchnorm="eval")
    set_mode(model, protocol)
    plain = Training(model, make_optimizer(model, protocol), lambda: [], ExitStack())
    draws = torch.Generator().manual_seed(seed)
    return DPSGD(noise=noise).training(plain, inputs, labels, protocol, draws), model


# DP-SGD itself


@pytest.mark.parametrize("settings", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_without_noise_and_clipping_it_is_plain_training(
    settings: dict[str, Any], reduction: str
) -> None:
    settings = settings | {"epochs": 3, "reduction": reduction}
    plain = trained(**settings)
    private = trained(DPSGD(clip=WIDE, noise=0), **settings)
    torch.testing.assert_close(flat(private), flat(plain), rtol=1e-3, atol=1e-6)


class Careless(nn.Module):
    """Drops out, has a weight it never uses, and cannot take an empty batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.drop = nn.Dropout(0.9)
        self.fc = nn.Linear(576, 5)
        self.unused = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.dropout(self.conv(x).relu(), 0.9, self.training)
        logits: Tensor = self.fc(self.drop(hidden.view(len(x), -1)))
        return logits


def test_dropout_stays_off_and_unused_weights_are_no_trouble() -> None:
    plain = trained(model=(model := Careless()), epochs=2)
    private = trained(DPSGD(clip=WIDE, noise=0), model=model, epochs=2)
    torch.testing.assert_close(flat(private), flat(plain), rtol=1e-3, atol=1e-6)
    noisy = trained(DPSGD(), model=model, epochs=2)
    assert movement(noisy)["unused.weight"].any()


def test_empty_batches_are_steps_with_noise_only() -> None:
    steps: list[State] = []
    images, labels = examples(count=2)
    client = lm.Client(
        Careless(), images, labels, epochs=20, batch_size=1, lr=0.05, defenses=[DPSGD(noise=0)]
    )
    client.train(on_step=steps.append)
    assert len(steps) == client.protocol.steps(2) == 40
    still = [same_bits(a, b) for a, b in itertools.pairwise(steps)]
    # A batch is empty with probability a quarter.
    assert 3 <= sum(still) <= 18
    noisy = lm.Client(Careless(), images, labels, epochs=20, batch_size=1, defenses=[DPSGD()])
    steps.clear()
    noisy.train(on_step=steps.append)
    assert not any(same_bits(a, b) for a, b in itertools.pairwise(steps))


def test_no_example_moves_the_update_by_more_than_its_share() -> None:
    lr, clip = 0.05, 0.01
    one = trained(DPSGD(clip=clip, noise=0), count=1, lr=lr)
    assert flat(trained(count=1, lr=lr)).norm() > 10 * lr * clip
    assert float(flat(one).norm()) == pytest.approx(lr * clip, rel=1e-3)
    # Exchange one of four: its old share is gone and a new one is there.
    images, labels = examples(count=4)
    other = images.clone()
    other[2] = 1 - other[2]

    def sent(given: Tensor, *defenses: Defense) -> Tensor:
        return flat(lm.Client(tiny(), given, labels, lr=lr, defenses=defenses).train())

    private = DPSGD(clip=clip, noise=0)
    change = (sent(images, private) - sent(other, private)).norm()
    assert 0 < change <= 2 * lr * clip / 4 * 1.001
    assert (sent(images) - sent(other)).norm() > 2 * lr * clip / 4 * 10


def test_a_summed_loss_is_clipped_example_by_example_too() -> None:
    private = DPSGD(clip=0.01, noise=0)
    mean, total = trained(private), trained(private, reduction="sum")
    torch.testing.assert_close(flat(total), 4 * flat(mean), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(("batch_size", "epochs"), [(4, 1), (4, 9), (2, 4)])
def test_the_noise_is_as_large_as_stated(batch_size: int, epochs: int) -> None:
    lr, clip, noise = 0.05, 1e-3, 3.0
    update = trained(DPSGD(clip, noise), lr=lr, batch_size=batch_size, epochs=epochs)
    steps = update.protocol.steps(4)
    expected = lr * noise * clip / batch_size * math.sqrt(steps)
    assert flat(update).std().item() == pytest.approx(expected, rel=0.05)


def test_batches_are_poisson_samples() -> None:
    training, _ = loop(batch_size=5, count=20)
    sizes = torch.tensor([len(x) for _ in range(100) for x, _ in training.batches()]).double()
    assert len(sizes) == 100 * 4
    assert sizes.mean().item() == pytest.approx(5, abs=0.3)
    assert sizes.var().item() == pytest.approx(20 * 0.25 * 0.75, rel=0.25)
    again, _ = loop(batch_size=5, count=20)
    other, _ = loop(batch_size=5, count=20, seed=1)
    first = [len(x) for x, _ in again.batches()]
    assert first == sizes[:4].tolist()
    assert [len(x) for x, _ in other.batches()] != first


def test_a_batch_size_that_does_not_divide_keeps_its_rate() -> None:
    training, _ = loop(batch_size=2, count=5)
    sizes = [len(x) for _ in range(400) for x, _ in training.batches()]
    assert len(sizes) == 400 * 3
    assert sum(sizes) / len(sizes) == pytest.approx(2, rel=0.05)
    assert training.optimizer.expected_batch_size == 2  # type: ignore[attr-defined]


def test_labels_stay_with_their_images() -> None:
    training, _ = loop(batch_size=5, count=20)
    images, labels = examples(count=20)
    for x, y in training.batches():
        for image, label in zip(x, y, strict=True):
            place = (images == image).flatten(1).all(1).nonzero().item()
            assert labels[int(place)] == label


def test_it_is_reproducible_and_differs_between_seeds() -> None:
    runs = [trained(DPSGD(), batch_size=2, epochs=2, seed=seed) for seed in (0, 0, 1)]
    assert runs[0].fingerprint() == runs[1].fingerprint()
    assert (flat(runs[0]) - flat(runs[2])).norm() > 0.5 * flat(runs[0]).norm()


def test_nothing_is_left_on_the_model() -> None:
    def traces(model: nn.Module) -> list[Any]:
        modules = [
            (name, set(vars(m)), len(m._forward_hooks), len(m._backward_hooks), m.training)
            for name, m in model.named_modules()
        ]
        return [modules, list(model.state_dict()), [set(vars(p)) for p in model.parameters()]]

    for model in (tiny(), lm.models.build("vit-a", classes=5, channels=1, size=28)):
        size = 12 if isinstance(model, nn.Sequential) else 28
        model.eval()
        was = traces(model)
        protocol = Protocol(epochs=1, batch_size=2, lr=0.1, optimizer="sgd", batchnorm="eval")
        train_locally(
            model,
            *examples(size=size),
            protocol,
            seed=0,
            defenses=[DPSGD()],
            draws=torch.Generator().manual_seed(0),
        )
        assert traces(model) == was


@pytest.mark.parametrize("name", ["vit-a", "cnn-cifar"])
def test_larger_networks_are_clipped_right(name: str) -> None:
    model = lm.models.build(name, classes=5, channels=1, size=28)
    given = examples(count=2, size=28)
    plain = lm.Client(model, *given, lr=0.05).train()
    private = lm.Client(model, *given, lr=0.05, defenses=[DPSGD(clip=WIDE, noise=0)]).train()
    assert (flat(private) - flat(plain)).norm() < 1e-4 * flat(plain).norm()


def test_several_answers_per_example_count_as_one_example() -> None:
    model = lm.models.text.build(20, width=8)
    tokens = torch.randint(20, (3, 6), generator=torch.Generator().manual_seed(0))
    given: dict[str, Any] = {"lr": 0.05, "normalize": lm.models.text.NORMALIZE}
    plain = lm.Client(model, model.embed(tokens), tokens, **given).train()
    private = lm.Client(
        model, model.embed(tokens), tokens, defenses=[DPSGD(WIDE, 0)], **given
    ).train()
    torch.testing.assert_close(flat(private), flat(plain), rtol=1e-3, atol=1e-6)


def test_it_composes_with_what_leaves_the_steps_alone() -> None:
    update = trained(LoRA(), DPSGD(), TopK(0.1), epochs=2)
    assert update.protocol.sparse
    names = list(Problem.of(LoRA().network(tiny()), update, None).observed)
    assert names == ["0.down.weight", "0.up.weight", "3.down.weight", "3.up.weight"]
    plain = trained(LoRA(), epochs=3)
    private = trained(LoRA(), DPSGD(WIDE, 0), epochs=3)
    torch.testing.assert_close(flat(private), flat(plain), rtol=1e-3, atol=1e-6)
    frozen = trained(Freeze(1), DPSGD())
    assert not movement(frozen)["0.weight"].any()
    averaged = federate(tiny(), [examples()] * 2, rounds=2, lr=0.1, defenses=[DPSGD()])
    assert list(averaged.state_dict()) == list(tiny().state_dict())


class Borrowed(nn.Module):
    """Uses a weight behind the back of the layer that owns it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(144, 5)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.flatten(1), self.fc.weight)


def test_what_opacus_cannot_train_is_refused_by_name() -> None:
    resnet = lm.models.build("resnet8", classes=5, channels=1, size=12)
    with pytest.raises(LeakmeterError, match=r"bn1 \(BatchNorm2d\).*GroupNorm"):
        trained(DPSGD(), model=resnet)
    for module in resnet.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(False)
    trained(DPSGD(), model=resnet)
    with pytest.raises(LeakmeterError, match=r"bn1 \(BatchNorm2d\).*GroupNorm"):
        trained(DPSGD(), model=resnet, batchnorm="train")
    with pytest.raises(LeakmeterError, match=r"does not see all .* fc\.weight"):
        trained(DPSGD(), model=Borrowed())


@pytest.mark.parametrize(
    "other", [Soteria(), GradientDropout(0.5), Precode(), DPSGD(noise=2.0)], ids=repr
)
def test_what_would_spoil_the_guarantee_is_refused(other: Defense) -> None:
    with pytest.raises(LeakmeterError, match=f"combined with {type(other).__name__}"):
        trained(other, DPSGD())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(LeakmeterError, match="pip install opacus"):
        trained(DPSGD())
    with pytest.raises(LeakmeterError, match="pip install opacus"):
        DPSGD().guarantee(Protocol(epochs=1, batch_size=2), 4)
    assert UpdateNoise(1, 1).guarantee(Protocol(), 4) is not None


def test_importing_opacus_leaves_the_log_alone() -> None:
    # In a fresh interpreter: here it has been imported long since.
    program = (
        "import logging; from leakmeter.federated.defenses.accounting import opacus; "
        "opacus(); print(logging.root.handlers)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr


# What is proven


@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [
        (1.0, 0.1, 10),
        (1.0, 0.01, 1000),
        (0.5, 0.5, 4),
        (0.7, 0.02, 500),
        (2.0, 0.25, 40),
        (5.0, 0.05, 20),
        (1.0, 1.0, 1),
        (3.0, 1.0, 30),
        (1.1, 0.004, 10_000),
    ],
)
def test_epsilon_agrees_with_another_library(noise: float, rate: float, steps: int) -> None:
    delta = 1e-5
    step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    event = dp_event.SelfComposedDpEvent(step, steps)
    by_moments = rdp.RdpAccountant(ORDERS).compose(event).get_epsilon(delta)
    by_loss = pld.PLDAccountant(value_discretization_interval=1e-3).compose(event)
    loose, tight = sampled_gaussian(noise, rate, steps, delta)
    assert loose == pytest.approx(by_moments, rel=0.02)
    assert tight == pytest.approx(by_loss.get_epsilon(delta), rel=0.02)
    assert tight <= loose


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
@pytest.mark.parametrize(("noise", "releases"), [(0.5, 1), (1.0, 1), (1.0, 10), (10.0, 3)])
def test_epsilon_without_sampling_is_exact(noise: float, releases: int, delta: float) -> None:
    event = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(noise), releases)
    loose, tight = gaussian(noise, releases, delta)
    assert loose == pytest.approx(
        rdp.RdpAccountant(ORDERS).compose(event).get_epsilon(delta), rel=1e-6
    )
    exact = pld.PLDAccountant(value_discretization_interval=1e-4).compose(event)
    assert tight == pytest.approx(exact.get_epsilon(delta), rel=0.002)
    assert tight <= loose


def test_extreme_noise_has_an_epsilon_too() -> None:
    assert gaussian(0.0, 1, 1e-5) == sampled_gaussian(0.0, 0.5, 1, 1e-5) == (math.inf, math.inf)
    loose, tight = gaussian(1e-3, 1, 1e-5)
    assert 5e5 < tight < loose < 6e5
    loose, tight = gaussian(1e7, 1, 1e-5)
    assert tight == 0.0 <= loose < 0.01
    assert sampled_gaussian(0.05, 0.5, 10, 1e-5)[1] > 1000


def test_the_guarantee_counts_every_step_of_every_round() -> None:
    protocol = Protocol(epochs=3, batch_size=4)
    found = DPSGD(noise=1.2).guarantee(protocol, examples=10, rounds=5)
    assert found is not None
    assert found.protects == "example"
    assert (found.rdp, found.prv) == sampled_gaussian(1.2, 0.4, 5 * 3 * 3, 1e-5)
    whole = DPSGD().guarantee(Protocol(epochs=2, batch_size=64), examples=10)
    assert whole is not None
    assert whole.prv == pytest.approx(gaussian(1.0, 2, 1e-5)[1], rel=0.01)
    client = UpdateNoise(clip=3.0, multiplier=2.0, delta=1e-6).guarantee(Protocol(), 10, rounds=4)
    assert client is not None
    assert client == (*gaussian(2.0, 4, 1e-6), 1e-6, "client")
