"""Layer weights: what a trace of the model finds, and the papers' formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import leakmeter as lm
from leakmeter.attacks.distance import Cosine, Euclidean, GaussianKernel, Partial
from leakmeter.attacks.layers import Exponential, Falling, ReluLinear, convolutions
from leakmeter.attacks.problem import Problem
from victims import examples, tiny_update


class Odd(nn.Module):
    """Defined out of order, activated by function, one branch without a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4 * 144, 5)
        self.last = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.smooth = nn.Conv2d(4, 4, 1)
        self.first = nn.Conv2d(1, 4, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.first(x)))
        x = torch.tanh(self.smooth(x)) + x
        out: Tensor = self.head(functional.relu(x + self.last(x)).flatten(1))
        return out


def problem_of(model: nn.Module) -> Problem:
    update = lm.Client(model, *examples(), lr=0.1).gradient()
    return Problem.of(model, update, None)


def test_convolutions_are_found_in_the_order_they_are_applied() -> None:
    found = convolutions(problem_of(Odd()))
    assert list(found) == ["first.weight", "smooth.weight", "last.weight"]
    assert [found[name].relu for name in found] == [True, False, True]
    assert {"norm.weight", "norm.bias"} <= set(found["first.weight"].norms)


def test_resnet20_has_the_21_convolutions_that_agic_counts() -> None:
    model = lm.models.build("resnet20-4", classes=10)
    images, labels = examples(count=1, classes=10, channels=3, size=32)
    update = lm.Client(model, images, labels).gradient()
    found = convolutions(Problem.of(model, update, None))
    assert len(found) == 21
    assert all(convolution.relu for convolution in found.values())


def test_agic_weighs_later_convolutions_and_those_with_zeros_more() -> None:
    problem = problem_of(Odd())
    weights = ReluLinear(beta=5.0).of(problem)

    def moved(*names: str) -> float:
        seen = torch.cat([problem.observed[name].flatten() for name in names])
        return (seen != 0).double().mean().item()

    assert weights["first.weight"] == pytest.approx(1 / moved("first.weight"))
    assert weights["smooth.weight"] == weights["smooth.bias"] == 3
    assert weights["last.weight"] == pytest.approx(5 / moved("last.weight", "last.bias"))
    assert weights["norm.weight"] == 1
    assert weights["head.weight"] == weights["head.bias"] == 3


def test_depth_weights_fall_from_the_first_layer() -> None:
    problem = Problem.of(*victim())
    assert list(Falling().of(problem).values()) == [1, 1, 0.5, 0.5]
    assert list(Exponential().of(problem).values()) == pytest.approx([1, 1, *[math.exp(-1)] * 2])


def victim() -> Any:
    from victims import tiny

    return tiny(), tiny_update(), None


def test_distances_follow_their_formulas_with_layer_weights() -> None:
    problem = Problem.of(*victim())
    generator = torch.Generator().manual_seed(0)
    guess = {n: torch.randn(t.shape, generator=generator) for n, t in problem.observed.items()}
    seen, mean, weight = problem.observed, problem.mean_gradient(), Exponential().of(problem)

    def total(part: Any) -> float:
        return float(sum(weight[n] * part(n) for n in seen))

    dot = total(lambda n: (guess[n] * seen[n]).sum())
    norms = [total(lambda n, side=side: side[n].square().sum()) ** 0.5 for side in (guess, seen)]
    found = Cosine(layers=Exponential()).against(problem)(guess)
    assert found.item() == pytest.approx(1 - dot / (norms[0] * norms[1]), rel=1e-4)
    steps = problem.protocol.steps(problem.num_examples)
    squares = total(lambda n: (steps * guess[n] - steps * mean[n]).square().sum()) / steps
    found = Euclidean(layers=Exponential(), summed=True).against(problem)(guess)
    assert found.item() == pytest.approx(squares, rel=1e-4)
    kernel = total(
        lambda n: (1 - (-(guess[n] - mean[n]).square() / mean[n].var(correction=0)).exp()).sum()
    )
    found = GaussianKernel(layers=Exponential()).against(problem)(guess)
    assert found.item() == pytest.approx(kernel, rel=1e-4)


def test_partial_matching_looks_at_the_largest_entries_only() -> None:
    problem = Problem.of(*victim())
    compare = Partial(Euclidean(), keep=0.25).against(problem)
    guess = {n: t.clone() for n, t in problem.mean_gradient().items()}
    name = "3.weight"
    small = problem.observed[name].abs() < problem.observed[name].abs().quantile(0.7)
    guess[name][small] += 1
    assert compare(guess) == 0
    guess[name][problem.observed[name].abs().argmax() // 576, :] += 1
    assert compare(guess) > 0
    with pytest.raises(lm.LeakmeterError, match="keep is 0"):
        Partial(Cosine(), keep=0)
