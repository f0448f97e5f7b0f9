"""Where the labels come from: given, learned, or read from the last layer of the update.

With mean predictions p, the gradient of the last layer's bias is ``b_i = p_i - n_i / N`` for class
i, and row i of its weight's gradient is the same sum with each example weighted by its embedding
(the layer's input). All recoveries below read the counts n_i off these two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from leakmeter.attacks.problem import Problem
from leakmeter.attacks.solver import Variable
from leakmeter.errors import LeakmeterError

COARSE = 4
"""Number of bits up to which rounding hides small differences between classes."""

TINY = 1e-12
"""Divisors stay this far from zero."""


class Labels:
    """Base of the sources of labels that the attack works with."""

    def variable(self, problem: Problem, generator: torch.Generator) -> Variable:
        """Return labels [N] as a constant, or logits [N, classes, ...] to be learned.

        Recovered labels come in random order because the client's own order is unknown; sorted
        labels would fill a simulated batch with examples of one class.
        """
        if problem.output_shape[1:]:
            raise LeakmeterError(
                "labels of a network with more than one answer per example cannot be read off: "
                "use an attack that learns them, such as sapag, or pass them as labels="
            )
        labels = self.recover(problem)
        order = torch.randperm(len(labels), generator=generator)
        return Variable(labels[order.to(labels.device)])

    def recover(self, problem: Problem) -> Tensor:
        """Recover the labels [N] in ascending order, repeats included."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Known(Labels):
    """Labels that the attacker is assumed to know, [N, ...] integers."""

    labels: Tensor

    def variable(self, problem: Problem, generator: torch.Generator) -> Variable:
        """The given labels, checked."""
        labels = self.labels.to(problem.low.device)
        expected = (problem.num_examples, *problem.output_shape[1:])
        if labels.shape != expected or labels.is_floating_point():
            raise LeakmeterError(
                f"labels must be {' x '.join(map(str, expected))} integers (the update's "
                f"num_examples), not {labels.dtype} {tuple(labels.shape)}"
            )
        if labels.min() < 0 or labels.max() >= problem.classes:
            raise LeakmeterError(f"labels must lie in 0..{problem.classes - 1}")
        return Variable(labels.long())


@dataclass(frozen=True)
class Joint(Labels):
    """Soft labels learned together with the images (DLG): logits that start as N(0, 1).

    Attributes:
        lr: step size of the logits; L-BFGS uses one for all variables.
    """

    lr: float = 0.1

    def variable(self, problem: Problem, generator: torch.Generator) -> Variable:
        """Logits [N, classes, ...]."""
        shape = (problem.num_examples, *problem.output_shape)
        return Variable(torch.randn(shape, generator=generator).to(problem.low), lr=self.lr)


@dataclass(frozen=True)
class Single(Labels):
    """The label of one example: the only class with a negative gradient (iDLG, equation 4)."""

    def recover(self, problem: Problem) -> Tensor:
        """The class with the smallest gradient."""
        if problem.num_examples != 1:
            raise LeakmeterError(
                f"the update has {problem.num_examples} examples, but iDLG reads the label of one: "
                "use dlg, or pass labels="
            )
        return _signal(problem, last_layer(problem)).argmin()[None]


@dataclass(frozen=True)
class RowMinima(Labels):
    """Distinct labels: the N rows of the weight's gradient that reach lowest (Yin et al. 2021).

    It cannot see repeats. With more examples than classes, it names each class about equally often.
    """

    def recover(self, problem: Problem) -> Tensor:
        """The classes of the smallest row minima."""
        lowest = problem.observed[last_layer(problem).weight].amin(1)
        order = lowest.argsort(stable=True)
        repeats = -(-problem.num_examples // len(order))
        return order.repeat(repeats)[: problem.num_examples].sort().values


@dataclass(frozen=True)
class SignCounts(Labels):
    """Every class with a negative gradient once, then the most negative again and again.

    Each example is assumed to lower its class by the same amount, the sum of all negative entries
    over N times ``1 + 1 / classes``; whichever class is still lowest gets the next label (LLG,
    Wainakh et al. 2022).
    """

    def recover(self, problem: Problem) -> Tensor:
        """Count greedily."""
        total = problem.num_examples
        left = _signal(problem, last_layer(problem)).clone()
        impact = left.clamp_max(0).sum() / total * (1 + 1 / problem.classes)
        lowest = left.argsort(stable=True)[:total]
        found = lowest[left[lowest] < 0].tolist()
        left[found] -= impact
        while len(found) < total:
            found.append(int(left.argmin()))
            left[found[-1]] -= impact
        return torch.tensor(sorted(found), device=left.device)


@dataclass(frozen=True)
class EmbeddingCounts(Labels):
    """Counts that explain the bias gradient, with predictions per class (iLRG, Ma et al. 2023).

    The ratio of a class's row to its bias gradient is about the embedding of its examples; the last
    layer then tells their predictions, and ``N b_j = sum_i n_i (p_ij - [i = j])`` is linear in n.
    """

    def recover(self, problem: Problem) -> Tensor:
        """Solve non-negative least squares and round to whole counts."""
        layer = last_layer(problem)
        if layer.bias is None or problem.step_scale() is None:
            raise LeakmeterError(
                "embedding-based label counts need a bias in the last layer and a known number "
                "and size of local steps"
            )
        gradient = problem.mean_gradient()
        signal = gradient[layer.bias]
        present = _visible(signal).nonzero().flatten()
        embeddings = gradient[layer.weight][present] / signal[present, None].clamp_max(-TINY)
        columns = _columns(problem, layer, embeddings, present)
        counts, _ = _explain(signal, columns, present, problem.num_examples, sums_to_total=True)
        return _round_to_counts(counts, problem.num_examples)


@dataclass(frozen=True)
class InterpolatedCounts(Labels):
    """``n_i = N (p_i - r_i / O)`` from the row sums r of the weight's gradient (DLFA, section 4).

    The mean prediction p and the mean sum O of an embedding are measured on noise at both known
    ends of the path and averaged, as if they moved evenly over the local steps.
    """

    def recover(self, problem: Problem) -> Tensor:
        """Interpolate the counts between both ends."""
        layer = last_layer(problem)
        prediction, size = _answer_to_noise(problem, layer)
        share = prediction - problem.mean_gradient()[layer.weight].sum(1) / size
        return _round_to_counts(share * problem.num_examples, problem.num_examples)


@dataclass(frozen=True)
class Counts(Labels):
    """:class:`EmbeddingCounts` for any update: its equations plus further constraints.

    - A class with a negative gradient is visible: it has at least one example.
    - Counts are scaled to sum to N. So the step size need not be known, and predictions may move
      unevenly over the steps.
    - A class with fewer examples than the network predicts is hidden. That is likely where
      visible classes are more than one in ``few`` of all classes or of N, whichever is less.
      Hidden classes are included with the mean embedding; the gradient's scale gives their share.
    - If then N is at least the number of classes, nearly balanced examples leave little in the
      gradient but noise of the embeddings: the smaller its negative part, the more the network's
      response to noise is used for p.
    - Without a bias, the row sums of the weight's gradient over the sum of an embedding are used
      instead. That sum is measured on noise and multiplied by whichever of ``factors`` explains the
      gradient best.
    """

    few: float = 4.0
    factors: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)

    def recover(self, problem: Problem) -> Tensor:
        """Take the counts from the best explanation."""
        layer = last_layer(problem)
        scale = problem.step_scale() or 1.0
        rows = problem.observed[layer.weight] / scale
        if layer.bias is None:
            _, size = _answer_to_noise(problem, layer)
            signals = [rows.sum(1) / (size * factor) for factor in self.factors]
        else:
            signals = [problem.observed[layer.bias] / scale]
        fits = [self._fit(problem, layer, rows, signal) for signal in signals]
        counts, visible, _ = min(fits, key=lambda fit: fit[2])
        return _round_to_counts(counts, problem.num_examples, visible)

    def _fit(
        self, problem: Problem, layer: LastLayer, rows: Tensor, signal: Tensor
    ) -> tuple[Tensor, Tensor, float]:
        """Return expected counts [classes], classes certainly present [classes], and misfit."""
        total = problem.num_examples
        known = problem.step_scale() is not None
        smoothing = problem.protocol.label_smoothing / problem.classes if known else 0.0
        visible = _visible(signal + smoothing)
        present = visible.nonzero().flatten()
        embeddings = rows[present] / signal[present, None].clamp_max(-TINY)
        likely = len(present) < min(total, problem.classes) < self.few * len(present)
        seek_hidden = likely and known and layer.bias is not None
        if seek_hidden:
            hidden = (~visible).nonzero().flatten()
            mean = rows[present].sum(0) / signal[present].sum().clamp_max(-TINY)
            embeddings = torch.cat([embeddings, mean.expand(len(hidden), -1)])
            present = torch.cat([present, hidden])
        columns = _columns(problem, layer, embeddings, present)
        counts, misfit = _explain(signal, columns, present, total, sums_to_total=seek_hidden)
        if seek_hidden and total >= problem.classes:
            trust = signal.clamp_max(0).sum().neg().clamp_max(1).sqrt()
            share = _answer_to_noise(problem, layer)[0] - signal - smoothing
            counts = (share.clamp_min(0) * total).to(counts).lerp(counts, trust.to(counts))
        return counts, visible, misfit


@dataclass(frozen=True)
class Automatic(Labels):
    """The default: the method that finds the most labels on average for this kind of update.

    ``benchmarks/labels.py`` compares the methods. For skewed clients of a network with few classes
    another method can be better, but the update does not show that.

    - One example: :class:`Single`, exact.
    - At least as many examples as classes, no bias, known step size: :class:`InterpolatedCounts`,
      which sees classes whose share is below their mean prediction.
    - Else: :class:`Counts`, which itself considers bias, step size, and examples per class.

    A bias is ignored if some of its entries were left out, or if it was rounded coarsely and there
    are at least as many examples as classes: sums over the many weights of a row suffer less. If
    the last layer was not sent at all, labels are learned along with the images (:class:`Joint`).
    """

    def variable(self, problem: Problem, generator: torch.Generator) -> Variable:
        """Return labels that were read off, or logits to be learned if there is nothing to read."""
        try:
            return super().variable(problem, generator)
        except NotSentError:
            return Joint().variable(problem, generator)

    def recover(self, problem: Problem) -> Tensor:
        """Recover the labels by the method that suits the update."""
        if problem.num_examples == 1:
            return Single().recover(problem)
        crowded = problem.num_examples >= problem.classes
        protocol, bias = problem.protocol, last_layer(problem).bias
        coarse = crowded and protocol.bits is not None and protocol.bits <= COARSE
        if protocol.sparse or coarse:
            rest = {name: seen for name, seen in problem.observed.items() if name != bias}
            problem = replace(problem, observed=rest)
        if crowded and last_layer(problem).bias is None and problem.step_scale() is not None:
            return InterpolatedCounts().recover(problem)
        return Counts().recover(problem)


class NotSentError(LeakmeterError):
    """The network has a last layer, but the client did not send it."""


class LastLayer(NamedTuple):
    """Names of the classifier's trainable parameters."""

    weight: str
    bias: str | None


def last_layer(problem: Problem) -> LastLayer:
    """Find the fully connected layer that outputs the logits, else the last one of that width."""
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
    if outputs:
        raise NotSentError(
            "labels cannot be recovered: the last layer was not sent; use an attack that learns "
            "them, such as dlg_adam, or pass labels= (or --labels) as an explicit assumption"
        )
    raise LeakmeterError(
        "labels cannot be recovered: the model has no trainable fully connected layer with "
        f"{problem.classes} outputs; pass labels= (or --labels) as an explicit assumption"
    )


def _visible(signal: Tensor) -> Tensor:
    """Return where ``signal`` is negative by more than rounding error, or is the smallest."""
    rounding = 1e-4 * signal.abs().max()
    return (signal < -rounding) | (signal == signal.min())


def _signal(problem: Problem, layer: LastLayer) -> Tensor:
    """Return the observed bias gradient [classes], or the weight's row sums if there is none."""
    if layer.bias is None:
        return problem.observed[layer.weight].sum(1)
    return problem.observed[layer.bias]


def _answer_to_noise(problem: Problem, layer: LastLayer) -> tuple[Tensor, Tensor]:
    """Return the mean softmax [classes] on noise and mean embedding sum, over the known ends."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn((64, *problem.shape), generator=generator).to(problem.low)
    embeddings: list[Tensor] = []
    last = problem.model.get_submodule(layer.weight.rpartition(".")[0])
    hook = last.register_forward_hook(lambda module, inputs, output: embeddings.append(inputs[0]))
    with torch.no_grad():
        answers = [problem.logits(end, noise).softmax(1).mean(0) for end in problem.ends()]
    hook.remove()
    size = torch.stack([inputs.sum(1).mean() for inputs in embeddings]).mean()
    # Noise may activate no unit at all; then any size is as good as another.
    return torch.stack(answers).mean(0), torch.where(size == 0, 1.0, size)


def _columns(problem: Problem, layer: LastLayer, embeddings: Tensor, classes: Tensor) -> Tensor:
    """Return what an example of each class adds to N b: prediction minus target, [all, K]."""
    answers = []
    for end in problem.ends():
        logits = embeddings @ end[layer.weight].T
        answers.append((logits if layer.bias is None else logits + end[layer.bias]).softmax(1))
    smoothing = problem.protocol.label_smoothing
    columns = torch.stack(answers).mean(0).T - smoothing / problem.classes
    own = (classes, torch.arange(len(classes), device=classes.device))
    # A column that vanishes could stand for any number of examples.
    columns[own] = (columns[own] - 1 + smoothing).clamp_max(-1e-6)
    return columns


def _explain(
    signal: Tensor, columns: Tensor, classes: Tensor, total: int, *, sums_to_total: bool
) -> tuple[Tensor, float]:
    """Return non-negative counts [all classes] that best explain ``signal``, and their misfit."""
    wanted = signal * total
    if sums_to_total:
        columns = torch.cat([columns, columns.new_ones((1, len(classes)))])
        wanted = torch.cat([wanted, wanted.new_tensor([total])])
    counts, misfit = nnls(columns.double().cpu().numpy(), wanted.double().cpu().numpy())
    expected = torch.zeros(len(signal), dtype=torch.float64, device=signal.device)
    expected[classes] = torch.as_tensor(counts).to(expected)
    return expected, misfit / max(float(wanted.double().norm()), TINY)


def _round_to_counts(expected: Tensor, total: int, present: Tensor | None = None) -> Tensor:
    """Round to whole counts that sum to ``total``, by largest remainder, as labels [total].

    Each class that is ``present`` [classes] gets at least one, unless there are too many.
    """
    expected = expected.double().clamp(0, total)
    expected = expected * (total / expected.sum().clamp_min(TINY))
    counts = torch.zeros_like(expected, dtype=torch.int64)
    if present is not None and present.sum() <= total:
        counts += present
        expected = (expected - counts).clamp_min(0)
        expected = expected * ((total - counts.sum()) / expected.sum().clamp_min(TINY))
    counts += expected.floor().long()
    left = total - int(counts.sum())
    order = (expected - expected.floor()).argsort(descending=True, stable=True)
    counts += left // len(counts)
    counts[order[: left % len(counts)]] += 1
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
