"""What an attack has to work with: the update, prepared once. No ground truth reaches this far."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from leakmeter.attacks.relu_curvature import ReluCurvature
from leakmeter.errors import LeakmeterError
from leakmeter.federated.local import (
    PIXELS,
    logits_of,
    loss_of,
    output_shape,
    per_channel,
    takes_pixels,
)
from leakmeter.state import State
from leakmeter.update import Protocol, Update

MOST_PIXELS = 2**31
"""If the dummy images would hold more numbers than this, the update is mistaken."""


@dataclass(frozen=True, eq=False)
class Problem:
    """An update, ready to be attacked.

    Attributes:
        model: a copy of the user's module in the protocol's mode; its weights are never used.
        before: trainable parameters the client received, w0.
        after: trainable parameters it sent back, wT, or ``None`` if it sent one gradient.
        observed: what the dummy data must explain, with the sign of a gradient: u = w0 - wT.
        fixed: buffers and frozen parameters.
        protocol: what the server knows.
        num_examples: N.
        shape: (C, H, W) of one image.
        output_shape: (classes, ...) of the network's output for one example.
        low: [C, 1, 1], black in normalized pixels.
        high: [C, 1, 1], white in normalized pixels.
        layout: how images and kernels lie in memory.
        relu_curvature: strength of :class:`ReluCurvature` in gradients; with 0 a ReLU has no second
            derivative.
    """

    model: nn.Module = field(repr=False)
    before: State
    after: State | None
    observed: State
    fixed: State
    protocol: Protocol
    num_examples: int
    shape: tuple[int, int, int]
    output_shape: tuple[int, ...]
    low: Tensor
    high: Tensor
    layout: torch.memory_format = torch.contiguous_format
    relu_curvature: float = 0.0

    @property
    def classes(self) -> int:
        """The number of classes that the network tells apart."""
        return self.output_shape[0]

    @property
    def adaptive(self) -> bool:
        """Whether weights were sent that Adam moved, which does not simply add up gradients."""
        return self.after is not None and self.protocol.optimizer in ("adam", "adamw")

    def laid_out(self, tensor: Tensor) -> Tensor:
        """Return images or kernels in the layout best for convolutions, other tensors unchanged."""
        return tensor.contiguous(memory_format=self.layout) if tensor.ndim == 4 else tensor

    def logits(self, weights: State, x: Tensor) -> Tensor:
        """Return the network's output [N, classes, ...] for normalized images [N, C, H, W]."""
        named = takes_pixels(self.model)
        state = {**self.fixed, **weights}
        given = ((), {PIXELS: x}) if named else ((x,), {})
        return logits_of(functional_call(self.model, state, *given))

    def loss(self, weights: State, x: Tensor, y: Tensor) -> Tensor:
        """The client's loss, a scalar; arguments as for :meth:`gradient`."""
        return loss_of(self.protocol, self.logits(weights, x), y)

    def gradient(self, weights: State, x: Tensor, y: Tensor) -> State:
        """g(w, x, y): gradient of the client's loss with respect to ``weights``.

        Weight decay is part of what a client minimizes, so it is part of a step's gradient (but not
        of a gradient that is shared, nor of AdamW's, which is decoupled).

        Args:
            weights: trainable parameters by name.
            x: normalized images [N, C, H, W].
            y: labels [N, ...], or class probabilities [N, classes, ...].
        """
        relu_curvature = (
            ReluCurvature(self.relu_curvature) if self.relu_curvature else nullcontext()
        )
        # The fused attention kernels have no second derivative; the plain one has.
        with sdpa_kernel(SDPBackend.MATH), relu_curvature:
            result: State = grad(lambda w: self.loss(w, x, y))(weights)
        if self.after is not None and self.protocol.optimizer != "adamw":
            decay = self.decay(len(x))
            return {n: t + decay * weights[n] for n, t in result.items()} if decay else result
        return result

    def decay(self, examples: int) -> float:
        """Weight decay beside a loss over ``examples``.

        A loss that sums over several of the client's batches needs the decay of as many steps.
        """
        size = self.protocol.batch_size
        batches = -(-examples // size) if size and self.protocol.reduction == "sum" else 1
        return self.protocol.weight_decay * batches

    def pixels(self, x: Tensor) -> Tensor:
        """Convert normalized images to pixels, which are in [0, 1] where valid."""
        return (x - self.low) / (self.high - self.low)

    def normalized(self, images: Tensor) -> Tensor:
        """Normalize pixels in [0, 1] as the network expects them; undoes :meth:`pixels`."""
        return self.low.lerp(self.high, images.to(self.low))

    def ends(self) -> list[State]:
        """Return the known weights on the client's path: w0, and wT if it was sent."""
        return [self.before] if self.after is None else [self.before, self.after]

    def step_scale(self) -> float | None:
        """``eta T``, the ratio of the update to the mean gradient of a step, or ``None``.

        1 for a single gradient; unknown unless the client is known to use plain SGD.
        """
        protocol = self.protocol
        if protocol.reduction != "mean":
            return None
        if self.after is None:
            return 1.0
        plain = protocol.optimizer == "sgd" and not protocol.momentum
        if not plain or None in (protocol.lr, protocol.epochs, protocol.batch_size):
            return None
        return protocol.need("lr").lr * protocol.steps(self.num_examples)

    def mean_gradient(self) -> State:
        """Mean gradient of a local step, ``u / (eta T)``."""
        scale = self.step_scale()
        if scale is None:
            self.protocol.need("lr", "epochs", "batch_size", "optimizer")
            raise LeakmeterError(
                "the mean gradient of a step needs a client with plain SGD and a mean loss: "
                "use an attack with a distance that is blind to scale, such as sme"
            )
        return {name: tensor / scale for name, tensor in self.observed.items()}

    @classmethod
    def of(cls, model: nn.Module, update: Update, device: torch.device | str | None) -> Problem:
        """Check ``update`` against ``model`` and move what the attack needs to ``device``."""
        update.check(model)
        protocol = update.protocol
        known = protocol.need("input_shape", "normalize")
        _check_size(update.num_examples, known.input_shape)
        first = next(model.parameters())
        device = first.device if device is None else usable(device)
        model = _frozen_copy(model, _batchnorm_mode(model, update)).to(device)
        named = dict(model.named_parameters())
        layout = _layout(model, known.input_shape)

        def move(state: State, names: Iterable[str]) -> State:
            # Clone, since the memory layout of a file's tensors could otherwise change last bits.
            moved = {name: state[name].detach().to(device).clone() for name in names}
            moved = {n: t.to(first.dtype) if t.is_floating_point() else t for n, t in moved.items()}
            return {
                n: t.contiguous(memory_format=layout) if t.ndim == 4 else t
                for n, t in moved.items()
            }

        trainable = [name for name, parameter in named.items() if parameter.requires_grad]
        if not trainable:
            raise LeakmeterError("model has no trainable parameter: all are frozen")
        # What did not move was frozen on the client, whatever this copy of the model says.
        observed = move(update.observed(trainable), trainable)
        observed = {name: tensor for name, tensor in observed.items() if tensor.any()}
        if not observed:
            raise LeakmeterError(
                "the update is zero (after equals before): if before is model.state_dict(), "
                "copy it before training, it changes with the model; else nothing was learned"
            )
        # A state_dict names tied weights twice; the module itself names them once.
        once = {*named, *dict(model.named_buffers())}
        fixed = [name for name in update.before if name in once and name not in observed]
        model.requires_grad_(False)
        mean, std = (per_channel(v, first.detach()).to(device) for v in known.normalize)
        return cls(
            model=model,
            before=move(update.before, observed),
            after=None if update.after is None else move(update.after, observed),
            observed=observed,
            fixed=move(update.before, fixed),
            protocol=protocol,
            num_examples=update.num_examples,
            shape=known.input_shape,
            output_shape=_output_shape(model, protocol, mean.new_zeros((2, *known.input_shape))),
            low=(0 - mean) / std,
            high=(1 - mean) / std,
            layout=layout,
        )


@torch.no_grad()
def _layout(model: nn.Module, shape: tuple[int, int, int]) -> torch.memory_format:
    """Channels last, 1.0 to 1.4 times as fast, where there are convolutions and they can use it.

    A network that reshapes its features with ``view`` cannot.
    """
    kernels = {name: p for name, p in model.named_parameters() if p.ndim == 4}
    if not kernels or next(iter(kernels.values())).device.type == "mps":
        return torch.contiguous_format
    turned = {n: k.contiguous(memory_format=torch.channels_last) for n, k in kernels.items()}
    image = next(iter(kernels.values())).new_zeros((2, *shape))
    try:
        functional_call(model, turned, (image.contiguous(memory_format=torch.channels_last),))
    except Exception:  # a network that fails in any layout is reported elsewhere
        return torch.contiguous_format
    return torch.channels_last


def _check_size(examples: int, shape: tuple[int, int, int]) -> None:
    if examples * math.prod(shape) > MOST_PIXELS:
        raise LeakmeterError(
            f"num_examples {examples} images of input_shape {shape} are more than "
            "any machine holds: is one of them wrong?"
        )


def usable(device: torch.device | str) -> torch.device:
    """Return ``device``, or raise a :class:`LeakmeterError` if it cannot compute anything."""
    try:
        some = torch.zeros(1, device=device)
        some.item()  # fails on a device that holds no values, such as meta
        return some.device
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise LeakmeterError(f"device {device} cannot be used: {reason}") from None


def _batchnorm_mode(model: nn.Module, update: Update) -> str:
    """Return how the client used batch norm: as it says, or as its running statistics show."""
    told = update.protocol.batchnorm
    norms = [name for name, m in model.named_modules() if isinstance(m, _BatchNorm)]
    if not norms:
        return "eval"
    moved = update.after is not None and any(
        not torch.equal(update.before[key], update.after[key])
        for name in norms
        if (key := f"{name}.running_mean".lstrip(".")) in update.before
    )
    if moved and told == "eval":
        raise LeakmeterError(
            "protocol.batchnorm is eval but the running statistics moved: the client used train"
        )
    if told is None and update.after is None:
        update.protocol.need("batchnorm")
    return told or ("train" if moved else "eval")


def _frozen_copy(model: nn.Module, batchnorm: str) -> nn.Module:
    """Return a copy in eval mode; train-mode batch norm uses batch statistics and keeps none."""
    model = copy.deepcopy(model).eval()
    if batchnorm == "train":
        replace_all_batch_norm_modules_(model)
    return model


def _output_shape(model: nn.Module, protocol: Protocol, images: Tensor) -> tuple[int, ...]:
    shape = output_shape(model, images)
    if protocol.classes not in (None, shape[0]):
        raise LeakmeterError(
            f"protocol.classes is {protocol.classes} but the model has {shape[0]} outputs"
        )
    return shape
