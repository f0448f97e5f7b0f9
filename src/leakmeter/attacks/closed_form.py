"""Compute the input of a fully connected layer without a search (IG, proposition 3.1)."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from leakmeter.attacks.attack import Attack, RunOptions
from leakmeter.attacks.distance import Cosine
from leakmeter.attacks.labels import Known, Single
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.errors import LeakmeterError
from leakmeter.update import Update


@dataclass(frozen=True)
class ClosedForm(Attack):
    """The image itself, if the network's first layer is fully connected and N = 1.

    Gradients of such a layer are ``dL/dW = delta x^T`` and ``dL/db = delta``. With a bias, x is
    their quotient, after any number of steps of SGD, with or without momentum. Without one, x is
    known up to its length, which follows from how the layers above respond to it; that takes one
    gradient or one local step.
    """

    needs: ClassVar[str] = "one gradient, or weights before and after SGD, of one example"

    def reconstruct(self, model: nn.Module, update: Update, options: RunOptions) -> Reconstruction:
        """Compute the example; nothing is random or compiled."""
        began = time.perf_counter()
        # Double precision: the length of x is the root of a function that float32 blurs.
        problem = Problem.of(copy.deepcopy(model).double(), update, options.device)
        y = label(problem, options.labels)
        x = layer_input(problem, pixel_layer(problem), y).view(1, *problem.shape)
        gap = Cosine().against(problem)(problem.gradient(problem.before, x, y))
        if options.on_progress is not None:
            options.on_progress(1, 1, gap)
        return Reconstruction(
            images=problem.pixels(x).clamp(0, 1).float().cpu(),
            labels=y.cpu(),
            history={"loss": gap[None].float().cpu(), "match": gap[None].float().cpu()},
            seconds=time.perf_counter() - began,
            attack=repr(self),
            seed=options.seed,
            labels_known=options.labels is not None,
            match=gap.item(),
        )


def label(problem: Problem, told: Tensor | None) -> Tensor:
    """Return the label of the only example, [1], as given or as read off the last layer."""
    if problem.num_examples != 1:
        raise LeakmeterError(
            f"the update has {problem.num_examples} examples, but the closed form is exact for one "
            "only: use ig or sme"
        )
    source = Single() if told is None else Known(told)
    return source.variable(problem, torch.Generator()).value


def pixel_layer(problem: Problem) -> str:
    """Find a fully connected layer whose input is the pixels, preferably one with a bias."""
    generator = torch.Generator().manual_seed(0)
    probe = torch.rand((1, *problem.shape), generator=generator).to(problem.low)
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, inputs, output: seen.update({name: inputs[0]})

    hooks = [
        module.register_forward_hook(note(name))
        for name, module in problem.model.named_modules()
        if isinstance(module, nn.Linear) and f"{name}.weight".lstrip(".") in problem.observed
    ]
    with torch.no_grad():
        problem.logits(problem.before, probe)
    for hook in hooks:
        hook.remove()
    direct = [name for name, tensor in seen.items() if torch.equal(tensor, probe.flatten(1))]
    if not direct:
        raise LeakmeterError(
            "the network has no fully connected layer that sees the image itself: "
            "use ig, or leakmeter.attacks.closed_form.layer_input for the input of a later layer"
        )
    biased = [name for name in direct if f"{name}.bias".lstrip(".") in problem.observed]
    return (biased or direct)[0]


def layer_input(problem: Problem, layer: str, y: Tensor) -> Tensor:
    """Return the input [width] of the fully connected layer ``layer`` for the only example.

    Args:
        problem: an update of one example; with a later layer than the first, one gradient or one
            local step, since later layers' inputs change as the network trains.
        layer: its name in ``model.named_modules()``.
        y: [1], the label; only used where the layer has no bias.
    """
    protocol = problem.protocol
    if problem.after is not None:
        protocol.need("optimizer")
    if problem.adaptive or (problem.after is not None and protocol.weight_decay):
        raise LeakmeterError(
            "the closed form needs a gradient, or weights after SGD without weight decay: use ig"
        )
    prefix = f"{layer}." if layer else ""
    weight, bias = f"{prefix}weight", f"{prefix}bias"
    if weight not in problem.observed:
        raise LeakmeterError(f"layer {layer!r} has no trained weight in this update")
    if bias in problem.observed:
        delta = problem.observed[bias]
        return problem.observed[weight].T @ delta / (delta @ delta)
    return _without_bias(problem, layer, weight, y)


def _without_bias(problem: Problem, layer: str, weight: str, y: Tensor) -> Tensor:
    """Take the direction of x from the rank-one gradient, its length from the layers above.

    ``dL/dW = delta x^T`` with ``x = c v``, |v| = 1, so ``a = (dL/dW) v = c delta``; and delta is
    the derivative of the loss at the layer's output ``c W v + b``: one equation for c. The bias b
    is known because it did not move.
    """
    if problem.after is not None and problem.protocol.steps(problem.num_examples) > 1:
        raise LeakmeterError(
            f"layer {layer!r} has no bias: its input follows from one gradient or one local step "
            "only, not from several: use sme"
        )
    gradient = problem.mean_gradient()[weight]
    direction: Tensor = torch.linalg.svd(gradient, full_matrices=False).Vh[0]
    scaled = gradient @ direction
    output = problem.before[weight] @ direction
    frozen = problem.fixed.get(weight.removesuffix("weight") + "bias", torch.zeros_like(output))

    def residual(length: float) -> float:
        delta = _derivative_at(problem, layer, length * output + frozen, y)
        return float((length * delta - scaled).norm() / scaled.norm())

    # Lengths of either sign, over eight orders of magnitude around that of the image range.
    sizes = math.sqrt(len(direction)) * torch.logspace(-4, 4, 161).double()
    tried = [(residual(sign * size), sign, size) for size in sizes.tolist() for sign in (1, -1)]
    _, sign, size = min(tried)
    step = 10 ** (8 / 160)
    found = minimize_scalar(
        lambda length: residual(sign * length),
        bounds=(size / step, size * step),
        method="bounded",
        options={"xatol": 1e-12 * size},
    )
    return direction * (sign * float(found.x))


def _derivative_at(problem: Problem, layer: str, output: Tensor, y: Tensor) -> Tensor:
    """Return dL/dz [width] with the layer's output z [width] replaced by ``output``."""
    replaced = output[None].detach().requires_grad_()

    def replace(module: nn.Module, inputs: Any, original: Tensor) -> Tensor:
        return replaced

    hook = problem.model.get_submodule(layer).register_forward_hook(replace)
    try:
        # The layers below do not matter because their result is replaced.
        anything = problem.low.new_zeros((1, *problem.shape))
        loss = problem.loss(problem.before, anything, y)
        slope: Tensor = torch.autograd.grad(loss, replaced)[0]
        return slope[0]
    finally:
        hook.remove()
