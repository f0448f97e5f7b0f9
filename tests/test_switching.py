"""A second derivative for the units of a ReLU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad

from leakscope.attack.switching import Switching

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
    with Switching(0.3):
        assert torch.equal(relu(z.clone()), z.relu())
        assert torch.equal(slope(relu, z), (z > 0).float())


@pytest.mark.parametrize("relu", RELUS)
def test_the_second_derivative_is_the_strength_over_the_spread(relu: Relu) -> None:
    z = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert not grad(lambda here: slope(relu, here).sum())(z).any()
    with Switching(0.3):
        second = grad(lambda here: slope(relu, here).sum())(z)
    torch.testing.assert_close(second, (0.3 / z.std(correction=0)).expand_as(z))


def test_convolutions_and_other_functions_are_left_alone() -> None:
    maps = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    with Switching(0.3):
        assert not grad(lambda here: slope(torch.relu, here).sum())(maps).any()
        assert not grad(lambda here: slope(nn.functional.leaky_relu, here).sum())(maps[0, 0]).any()


def test_equal_units_have_no_spread_to_divide_by() -> None:
    with Switching(0.3):
        assert not grad(lambda here: slope(torch.relu, here).sum())(torch.ones(2, 3)).any()
        assert not grad(lambda here: slope(torch.relu, here).sum())(torch.ones(1, 1)).any()
