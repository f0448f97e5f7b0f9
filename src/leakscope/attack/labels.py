"""Where the labels come from: told, or read out of the last layer of the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

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
    count n_i. What is not seen is estimated:

    - p, as the last layer's own answer to the mean embedding ``sum W'_i / sum b_i`` over rows with
      negative b (the ratio of a weight row's gradient to its bias gradient is its input: IG,
      proposition 3.1). Without a bias, as the network's answer to noise. For weights after many
      steps, at both ends of the path (DLFA's interpolation).
    - the scale of b, for weights ``eta T`` of plain SGD. Where that is unknown, or the layer has no
      bias and row sums stand in for b, from ``sum |b_i| = 1 - sum p_i`` over the negative entries,
      which holds when present classes are rare.
    """

    def variable(self, problem: Problem) -> Variable:
        """Labels [N] in ascending order; their order among the images carries no meaning."""
        layer = last_layer(problem)
        guess = torch.stack([_predictions(problem, w, layer) for w in problem.ends()]).mean(0)
        if layer.bias is not None and problem.step_scale() is not None:
            share = guess - problem.mean_gradient()[layer.bias]
        else:
            signal = problem.observed[layer.weight].sum(1)
            if layer.bias is not None:
                signal = problem.observed[layer.bias]
            present = signal <= signal.min().clamp_min(0)
            scale = signal[present].abs().sum() / (1 - guess[present].sum()).clamp_min(1e-3)
            share = torch.where(present, guess - signal / scale, torch.zeros_like(signal))
        return Variable(_round_to_counts(share * problem.num_examples, problem.num_examples))


class LastLayer(NamedTuple):
    """Names of the classifier's trainable parameters."""

    weight: str
    bias: str | None


def last_layer(problem: Problem) -> LastLayer:
    """The last fully connected layer with as many outputs as there are classes."""
    for name, module in reversed(list(problem.model.named_modules())):
        prefix = f"{name}." if name else ""
        if (
            isinstance(module, nn.Linear)
            and module.out_features == problem.classes
            and f"{prefix}weight" in problem.observed
        ):
            bias = f"{prefix}bias"
            return LastLayer(f"{prefix}weight", bias if bias in problem.observed else None)
    raise LeakscopeError(
        "labels cannot be recovered: the model has no trainable fully connected layer with "
        f"{problem.classes} outputs; pass labels= (or --labels) as an explicit assumption"
    )


def _predictions(problem: Problem, weights: State, layer: LastLayer) -> Tensor:
    """Estimated mean softmax [classes] of the client's images under ``weights``."""
    if layer.bias is not None:
        signal = problem.observed[layer.bias]
        negative = signal <= signal.min().clamp_min(0)
        rows = problem.observed[layer.weight][negative].sum(0)
        embedding = rows / signal[negative].sum().clamp_max(-1e-12)
        return torch.softmax(weights[layer.weight] @ embedding + weights[layer.bias], 0)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn((64, *problem.shape), generator=generator).to(problem.low)
    with torch.no_grad():
        return problem.logits(weights, noise).softmax(1).mean(0)


def _round_to_counts(expected: Tensor, total: int) -> Tensor:
    """Whole counts that sum to ``total``, by largest remainder, as a list of labels [total]."""
    counts = expected.floor().long().clamp_min(0)
    while counts.sum() > total:
        counts[(counts - expected).masked_fill(counts == 0, -torch.inf).argmax()] -= 1
    while counts.sum() < total:
        counts[(expected - counts).argmax()] += 1
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
