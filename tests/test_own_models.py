"""Users' own modules: whatever they contain, client and attack work on them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import leakmeter as lm
from leakmeter import LeakmeterError, papers
from leakmeter.attacks.problem import Problem
from victims import examples


class WithBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(600, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.drop(self.features(x).flatten(1)))
        return logits


class WithTiedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(144, 144)
        self.decode = nn.Linear(144, 144)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(144, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.decode(torch.tanh(self.encode(x.flatten(1))))))
        return logits


class WithFrozenParameters(WithBatchNorm):
    def __init__(self) -> None:
        super().__init__()
        self.features.requires_grad_(False)


class WithFusedAttention(nn.Module):
    """The fused kernels have no second derivative; the attack must avoid them."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(12, 2, batch_first=True)
        self.head = nn.Linear(144, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows = x[:, 0]
        rows = rows + self.mix(rows, rows, rows, need_weights=False)[0]
        rows = rows + functional.scaled_dot_product_attention(rows, rows, rows)
        logits: Tensor = self.head(rows.flatten(1))
        return logits


OWN = [WithBatchNorm, WithTiedWeights, WithFrozenParameters, WithFusedAttention]


@pytest.mark.parametrize("factory", OWN)
@pytest.mark.parametrize("shares", ["weights", "gradient"])
def test_own_module(factory: type[nn.Module], shares: str) -> None:
    torch.manual_seed(0)
    model = factory()
    client = lm.Client(model, *examples(), epochs=2, batch_size=2, lr=0.05)
    update = client.train() if shares == "weights" else client.gradient()
    attack = papers.ig(60) if shares == "gradient" else papers.sme(60)
    found = attack.run(model, update)
    match = found.history["match"]
    assert found.images.shape == (3, 1, 12, 12)
    assert torch.isfinite(found.images).all()
    assert match[-1] < 0.5 * match[0]


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_batchnorm_in_both_modes(mode: str) -> None:
    """The gradient at the true images explains the observed one only in the client's own mode."""
    torch.manual_seed(0)
    model = WithBatchNorm()
    images, labels = examples()
    update = lm.Client(model, images, labels, lr=0.05, batchnorm=mode).gradient()
    wrong = update.protocol.model_copy(update={"batchnorm": "train" if mode == "eval" else "eval"})
    for protocol, explains in ((update.protocol, True), (wrong, False)):
        told = lm.Update(update.before, None, update.gradient, 3, protocol)
        problem = Problem.of(model, told, None)
        attack = papers.ig(1)
        found = problem.gradient(problem.before, images, labels)
        assert (attack.distance.against(problem)(found) < 1e-5) == explains
    assert papers.ig(5).run(model, update).images.shape == images.shape


def test_unknown_batchnorm_mode_is_asked_for() -> None:
    model = WithBatchNorm()
    update = lm.Client(model, *examples(), lr=0.05).gradient()
    unknown = update.protocol.model_copy(update={"batchnorm": None})
    told = lm.Update(update.before, None, update.gradient, 3, unknown)
    with pytest.raises(LeakmeterError, match=r"protocol\.batchnorm .*--batchnorm"):
        papers.ig(1).run(model, told)


def test_double_precision_is_honoured() -> None:
    model = WithTiedWeights().double()
    update = lm.Client(model, *examples(), epochs=2, lr=0.05).train()
    found = papers.sme(3).run(model, update)
    assert found.images.dtype == torch.float64


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_accelerators(device: str) -> None:
    if not getattr(torch, device).is_available():
        pytest.skip(f"no {device} here")
    model = WithBatchNorm().to(device)
    update = lm.Client(model, *examples(), epochs=2, lr=0.05).train()
    found = papers.sme(30).run(model, update)
    assert found.history["match"][-1] < found.history["match"][0]
