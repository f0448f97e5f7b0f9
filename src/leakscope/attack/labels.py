"""Where the labels come from: told, or read out of the last layer of the update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from leakscope.attack.problem import Problem
from leakscope.attack.solver import Variable
from leakscope.errors import LeakscopeError
from leakscope.update import State


class Labels(Protocol):
    """Gives the labels that the attack works with."""

    def variable(self, problem: Problem) -> Variable:
        """Labels [N], integers, as a constant."""
        ...


@dataclass(frozen=True, eq=False)
class Known:
    """Labels that the attacker is assumed to know, [N] integers."""

    labels: Tensor

    def variable(self, problem: Problem) -> Variable:
        """The given labels, checked."""
        device = next(iter(problem.before.values())).device
        labels = self.labels.to(device)
        if labels.shape != (problem.num_examples,) or labels.is_floating_point():
            raise LeakscopeError(
                f"labels must be {problem.num_examples} integers (the update's num_examples), "
                f"not {labels.dtype} {tuple(labels.shape)}"
            )
        if labels.min() < 0 or labels.max() >= problem.classes:
            raise LeakscopeError(f"labels must lie in 0..{problem.classes - 1}")
        return Variable(labels.long())


@dataclass(frozen=True)
class Counts:
    """Class counts from the last layer's gradient, repeated labels included.

    With mean predictions p, the bias gradient of class i is ``b_i = p_i - n_i / N``; hence every
    count n_i. What is not seen is estimated, at both ends of the path for weights after many
    steps (as DLFA interpolates):

    - p lies between two guesses. The network's answer to noise is good where classes are balanced
      and b is small. The last layer's answer to the mean embedding is good where they are not:
      the ratio of a weight row's gradient to its bias gradient is the layer's input (IG,
      proposition 3.1). The imbalance ``sum |b_i|`` over negative b weighs the two.
    - the scale of b is ``eta T`` for weights after plain SGD. Where it is unknown, or where row
      sums of the weight's gradient stand in for a missing bias, it follows from
      ``sum |b_i| = 1 - sum p_i`` over negative b, which holds when present classes are rare.
    """

    def variable(self, problem: Problem) -> Variable:
        """Labels [N] in ascending order; their order among the images carries no meaning."""
        layer = last_layer(problem)
        ends = problem.ends()
        guess = torch.stack([_answer_to_noise(problem, end) for end in ends]).mean(0)
        if layer.bias is not None and problem.step_scale() is not None:
            signal = problem.mean_gradient()[layer.bias]
            answers = [_answer_to_mean_embedding(problem, end, layer) for end in ends]
            imbalance = signal.clamp_max(0).abs().sum().clamp_max(1)
            share = guess.lerp(torch.stack(answers).mean(0), imbalance) - signal
        else:
            signal = problem.observed[layer.bias or layer.weight]
            signal = signal.sum(1) if layer.bias is None else signal
            negative = _negative(signal)
            scale = signal[negative].abs().sum() / (1 - guess[negative].sum()).clamp_min(1e-3)
            share = torch.where(negative, guess - signal / scale, torch.zeros_like(signal))
        smoothing = problem.protocol.label_smoothing
        share = (share - smoothing / problem.classes) / (1 - smoothing)
        return Variable(_round_to_counts(share * problem.num_examples, problem.num_examples))


class LastLayer(NamedTuple):
    """Names of the classifier's trainable parameters."""

    weight: str
    bias: str | None


def last_layer(problem: Problem) -> LastLayer:
    """The fully connected layer whose output is the logits, else the last one of that width."""
    outputs: dict[str, Tensor] = {}

    def note(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, inputs, output: outputs.update({name: output})

    hooks = [
        module.register_forward_hook(note(f"{name}." if name else ""))
        for name, module in problem.model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == problem.classes
    ]
    with torch.no_grad():
        logits = problem.logits(problem.before, problem.low.new_zeros((2, *problem.shape)))
    for hook in hooks:
        hook.remove()
    makers = [prefix for prefix, output in outputs.items() if output is logits]
    for prefix in (*makers, *reversed(outputs)):
        if f"{prefix}weight" in problem.observed:
            bias = f"{prefix}bias"
            return LastLayer(f"{prefix}weight", bias if bias in problem.observed else None)
    raise LeakscopeError(
        "labels cannot be recovered: the model has no trainable fully connected layer with "
        f"{problem.classes} outputs; pass labels= (or --labels) as an explicit assumption"
    )


def _negative(signal: Tensor) -> Tensor:
    """Where ``signal`` is negative, or at least smallest."""
    return signal <= signal.min().clamp_min(0)


def _answer_to_noise(problem: Problem, weights: State) -> Tensor:
    """Mean softmax [classes] of the network on white noise."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn((64, *problem.shape), generator=generator).to(problem.low)
    with torch.no_grad():
        return problem.logits(weights, noise).softmax(1).mean(0)


def _answer_to_mean_embedding(problem: Problem, weights: State, layer: LastLayer) -> Tensor:
    """Softmax [classes] of the last layer on the mean input that its gradient gives away."""
    assert layer.bias is not None
    signal = problem.observed[layer.bias]
    negative = _negative(signal)
    rows = problem.observed[layer.weight][negative].sum(0)
    embedding = rows / signal[negative].sum().clamp_max(-1e-12)
    return torch.softmax(weights[layer.weight] @ embedding + weights[layer.bias], 0)


def _round_to_counts(expected: Tensor, total: int) -> Tensor:
    """Whole counts that sum to ``total``, by largest remainder, as a list of labels [total]."""
    expected = expected.double().clamp(0, total)
    expected = expected * (total / expected.sum().clamp_min(1e-12))
    counts = expected.floor().long()
    left = total - int(counts.sum())
    order = (expected - counts).argsort(descending=True, stable=True)
    counts += left // len(counts)
    counts[order[: left % len(counts)]] += 1
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
