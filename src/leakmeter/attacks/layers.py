"""How much each layer counts when an update is matched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from leakmeter.attacks.problem import Problem
from leakmeter.errors import require


class LayerWeights(Protocol):
    """Assigns a factor to every trainable parameter."""

    def of(self, problem: Problem) -> dict[str, float]:
        """Return the factors by parameter name."""
        ...


@dataclass(frozen=True)
class Falling:
    """``(L - l) / L`` for layer l = 0 .. L-1: SAPAG's factor Q, which falls with depth.

    The paper says that it falls but not how; this is the simplest choice.
    """

    def of(self, problem: Problem) -> dict[str, float]:
        """Return factors from 1 for the first layer to 1/L for the last."""
        depth = _depths(problem.observed)
        layers = max(depth.values()) + 1
        return {name: (layers - level) / layers for name, level in depth.items()}


@dataclass(frozen=True)
class Exponential:
    """``exp(-l)`` for layer l, 0 for the first; kernel and bias share it (DLFA)."""

    def of(self, problem: Problem) -> dict[str, float]:
        """Return factors that fall from 1 for the first layer."""
        levels = torch.tensor(list(_depths(problem.observed).values()), dtype=torch.float64)
        return dict(zip(problem.observed, (-levels).exp().tolist(), strict=True))


@dataclass(frozen=True)
class ReluLinear:
    """AGIC's layer weights (equations 7 and 8).

    Convolution i of n gets ``l_i / (1 - p_i)`` with ``l_i = 1 + (beta - 1)(i - 1)/(n - 1)`` and
    p_i the share of exact zeros in its observed gradient, if a ReLU follows it, else l_i. What is
    not a convolution gets the mean of all l_i. The paper leaves batch norm out; here a norm gets
    the l_i of the convolution before it.

    Attributes:
        beta: weight of the last convolution: 50 for untrained networks, 2 for trained ones.
    """

    beta: float

    def __post_init__(self) -> None:
        require("beta", self.beta, above=0)

    def of(self, problem: Problem) -> dict[str, float]:
        """Compute the weights from a trace of the user's model."""
        trace = convolutions(problem)
        last = max(len(trace) - 1, 1)
        linear = {name: 1 + (self.beta - 1) * i / last for i, name in enumerate(trace)}
        mean = sum(linear.values()) / len(linear) if linear else 1.0
        weights = {}
        for name in problem.observed:
            owner = next((kernel for kernel in linear if _owns(kernel, trace[kernel], name)), None)
            weights[name] = mean if owner is None else linear[owner]
            if owner is not None and trace[owner].relu and name in _layer(owner):
                weights[name] /= max(1 - _share_of_zeros(problem, owner), 1e-3)
        return weights


@dataclass
class Convolution:
    """The parameters of the normalization after a convolution, and whether a ReLU follows."""

    norms: list[str]
    relu: bool = False


def convolutions(problem: Problem) -> dict[str, Convolution]:
    """Return the network's convolutions by kernel name, in the order they are applied.

    Found by running the model once and following each output through normalization and residual
    sums to a ReLU, whether that is a module or a function.
    """
    trace = _Trace(problem)
    with trace, torch.no_grad():
        problem.logits(problem.before, problem.low.new_zeros((2, *problem.shape)))
    return trace.found


_PASSING = {"batch_norm", "group_norm", "instance_norm", "layer_norm", "dropout"}
_PASSING |= {"add", "add_", "__add__", "__iadd__", "__radd__"}
_CONVOLUTIONS = {"conv1d", "conv2d", "conv3d"}
_RELUS = {"relu", "relu_", "relu6", "leaky_relu", "leaky_relu_"}
_KINKED = _RELUS | {"max_pool2d", "adaptive_max_pool2d", "maximum", "amax", "clamp", "hardtanh"}


def smooth(problem: Problem) -> bool:
    """Return whether the network has second derivatives everywhere: no ReLU and no maximum."""
    calls = _Calls()
    with calls, torch.no_grad():
        problem.logits(problem.before, problem.low.new_zeros((2, *problem.shape)))
    return not calls.names & _KINKED


class _Calls(TorchFunctionMode):
    """Records the names of all functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.add(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


class _Trace(TorchFunctionMode):
    """Records convolutions, and which of them each tensor still carries on its way to a ReLU."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        everything = {**problem.fixed, **problem.before}
        self.names = {id(tensor): name for name, tensor in everything.items()}
        self.found: dict[str, Convolution] = {}
        self.carried: dict[int, tuple[Tensor, list[str]]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        parameters = [self.names[id(each)] for each in tensors if id(each) in self.names]
        carried = [kernel for each in tensors for kernel in self._carried_by(each)]
        if name in _CONVOLUTIONS and parameters:
            self.found.setdefault(parameters[0], Convolution([]))
            carried = parameters[:1]
        elif name in _RELUS:
            for kernel in carried:
                self.found[kernel].relu = True
            self.carried.pop(id(output), None)  # in place: it carries nothing anymore
        elif name in _PASSING:
            for kernel in carried:
                self.found[kernel].norms += parameters
        else:
            return output
        if isinstance(output, Tensor) and name not in _RELUS:
            self.carried[id(output)] = (output, carried)  # kept alive, so that ids stay unique
        return output

    def _carried_by(self, tensor: Tensor) -> Iterable[str]:
        return self.carried.get(id(tensor), (tensor, []))[1]


def _owns(kernel: str, convolution: Convolution, name: str) -> bool:
    """Return whether ``name`` is the kernel, its bias, or a parameter of the norm after it."""
    return name in (*_layer(kernel), *convolution.norms)


def _layer(kernel: str) -> tuple[str, str]:
    """Return the names of a convolution's kernel and bias."""
    return kernel, kernel.removesuffix("weight") + "bias"


def _share_of_zeros(problem: Problem, kernel: str) -> float:
    seen = [problem.observed[name].flatten() for name in _layer(kernel) if name in problem.observed]
    return (torch.cat(seen) == 0).double().mean().item()


def _depths(names: Iterable[str]) -> dict[str, int]:
    """Return the layer of every parameter, counted from 0; a module's parameters share one."""
    depth: dict[str, int] = {}
    layers: dict[str, int] = {}
    for name in names:
        depth[name] = layers.setdefault(name.rpartition(".")[0], len(layers))
    return depth
