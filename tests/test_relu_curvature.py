"""A second derivative for the units of a ReLU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad

import leakmeter as lm
from leakmeter.attacks.distance import Cosine
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.relu_curvature import ReluCurvature
from leakmeter.attacks.retrace import Retrace
from leakmeter.attacks.simulation import Simulation
from leakmeter.attacks.solver import Moment, Phase
from leakmeter.attacks.trajectory import Trajectory
from victims import examples

Relu = Callable[[Tensor], Tensor]
RELUS: list[Relu] = [
    torch.relu,
    lambda z: torch.relu(input=z),
    nn.functional.relu,
    nn.ReLU(),
    nn.ReLU(inplace=True),
    Tensor.relu,
]


def slope(relu: Relu, z: Tensor) -> Tensor:
    found: Tensor = grad(lambda here: relu(here * 1).sum())(z)
    return found


@pytest.mark.parametrize("relu", RELUS)
def test_value_and_slope_are_those_of_the_relu(relu: Relu) -> None:
    z = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    with ReluCurvature(0.3):
        assert torch.equal(relu(z.clone()), z.relu())
        assert torch.equal(slope(relu, z), (z > 0).float())


@pytest.mark.parametrize("relu", RELUS)
def test_the_second_derivative_is_the_strength_over_the_spread(relu: Relu) -> None:
    z = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert not grad(lambda here: slope(relu, here).sum())(z).any()
    with ReluCurvature(0.3):
        second = grad(lambda here: slope(relu, here).sum())(z)
    torch.testing.assert_close(second, (0.3 / z.std(correction=0)).expand_as(z))


def test_convolutions_and_other_functions_are_left_alone() -> None:
    maps = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    with ReluCurvature(0.3):
        assert not grad(lambda here: slope(torch.relu, here).sum())(maps).any()
        assert not grad(lambda here: slope(nn.functional.leaky_relu, here).sum())(maps[0, 0]).any()


def test_equal_units_have_no_spread_to_divide_by() -> None:
    with ReluCurvature(0.3):
        assert not grad(lambda here: slope(torch.relu, here).sum())(torch.ones(2, 3)).any()
        assert not grad(lambda here: slope(torch.relu, here).sum())(torch.ones(1, 1)).any()


@pytest.mark.parametrize("trajectory", [Retrace(), Retrace(unroll=0), Simulation()])
def test_it_counts_on_every_way_to_the_derivative(trajectory: Trajectory) -> None:
    """Also where the inside of local steps is computed again on the way back."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 5))
    images, labels = examples()
    problem = Problem.of(model, lm.Client(model, images, labels, epochs=4, lr=0.01).train(), None)
    phase = trajectory.refresh(problem, images, labels, Phase(), Moment(0, range(1))) or Phase()
    now = trajectory.during(*phase.names) if phase.names else trajectory
    compare = Cosine().against(problem)
    x = images + 0.1 * torch.randn(images.shape)
    slopes = []
    for strength in (0.0, 0.3):
        felt = replace(problem, relu_curvature=strength)
        predict = partial(now.predict, felt, y=labels, theta=phase.constants)
        slopes.append(grad(lambda x, predict=predict: compare(predict(x)))(x))
    assert (slopes[1] - slopes[0]).norm() > 0.1 * slopes[0].norm()
