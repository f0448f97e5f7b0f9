"""What an attack has to work with: the update, prepared once. No ground truth reaches this far."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from leakscope.errors import LeakscopeError
from leakscope.federated.local import loss_of, per_channel
from leakscope.update import Protocol, State, Update


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
        classes: outputs of the network.
        low: [C, 1, 1], black in normalised pixels.
        high: [C, 1, 1], white in normalised pixels.
    """

    model: nn.Module = field(repr=False)
    before: State
    after: State | None
    observed: State
    fixed: State
    protocol: Protocol
    num_examples: int
    shape: tuple[int, int, int]
    classes: int
    low: Tensor
    high: Tensor

    def logits(self, weights: State, x: Tensor) -> Tensor:
        """Network output [N, classes] for normalised images [N, C, H, W]."""
        output: Tensor = functional_call(self.model, {**self.fixed, **weights}, (x,))
        return output

    def gradient(self, weights: State, x: Tensor, y: Tensor) -> State:
        """g(w, x, y): gradient of the client's loss with respect to ``weights``.

        Args:
            weights: trainable parameters by name.
            x: normalised images [N, C, H, W].
            y: labels [N], or class probabilities [N, classes].
        """
        # The fused attention kernels have no second derivative; the plain one has.
        with sdpa_kernel(SDPBackend.MATH):
            result: State = grad(lambda w: loss_of(self.protocol, self.logits(w, x), y))(weights)
        return result

    def ends(self) -> list[State]:
        """The known weights on the client's path: w0, and wT if it was sent."""
        return [self.before] if self.after is None else [self.before, self.after]

    def step_scale(self) -> float | None:
        """``eta T``, by which the update exceeds the mean gradient of a step, or ``None``.

        1 for a single gradient; unknown unless the client is known to use plain SGD.
        """
        protocol = self.protocol
        if protocol.reduction != "mean":
            return None
        if self.after is None:
            return 1.0
        if (
            protocol.optimizer != "sgd"
            or protocol.momentum
            or None
            in (
                protocol.lr,
                protocol.epochs,
                protocol.batch_size,
            )
        ):
            return None
        assert protocol.lr is not None
        return protocol.lr * protocol.steps(self.num_examples)

    def mean_gradient(self) -> State:
        """Mean gradient of a local step, ``u / (eta T)``."""
        scale = self.step_scale()
        if scale is None:
            self.protocol.need("lr", "epochs", "batch_size", "optimizer")
            raise LeakscopeError(
                "the mean gradient of a step needs a client with plain SGD and a mean loss: "
                "use an attack with a distance that is blind to scale, such as sme"
            )
        return {name: tensor / scale for name, tensor in self.observed.items()}

    @classmethod
    def of(cls, model: nn.Module, update: Update, device: torch.device | str | None) -> Problem:
        """Check ``update`` against ``model`` and move what the attack needs to ``device``."""
        update.check(model)
        update.protocol.need("input_shape", "normalize")
        first = next(model.parameters())
        device = first.device if device is None else _usable(device)
        model = _frozen_copy(model, update.protocol).to(device)
        trained = [name for name, p in model.named_parameters() if p.requires_grad]
        if not trained:
            raise LeakscopeError("model has no trainable parameter: all are frozen")
        # A state_dict names tied weights twice; the module itself names them once.
        aliases = {name for name, _ in model.named_parameters()}
        aliases |= {name for name, _ in model.named_buffers()}

        def move(state: State, names: list[str]) -> State:
            return {name: state[name].to(device) for name in names}

        fixed = [name for name in update.before if name in aliases and name not in trained]
        observed = move(update.observed(trained), trained)
        if not any(tensor.any() for tensor in observed.values()):
            raise LeakscopeError(
                "the update is zero (after equals before): nothing was learned, nothing can leak"
            )
        model.requires_grad_(False)
        protocol = update.protocol
        assert protocol.input_shape is not None
        assert protocol.normalize is not None
        mean, std = (per_channel(v, first.detach()).to(device) for v in protocol.normalize)
        return cls(
            model=model,
            before=move(update.before, trained),
            after=None if update.after is None else move(update.after, trained),
            observed=observed,
            fixed=move(update.before, fixed),
            protocol=protocol,
            num_examples=update.num_examples,
            shape=protocol.input_shape,
            classes=_count_classes(model, protocol, first.to(device)),
            low=(0 - mean) / std,
            high=(1 - mean) / std,
        )


def _usable(device: torch.device | str) -> torch.device:
    try:
        return torch.zeros((), device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise LeakscopeError(f"device {device} cannot be used: {reason}") from None


def _frozen_copy(model: nn.Module, protocol: Protocol) -> nn.Module:
    """A copy in eval mode; train-mode batch norm uses batch statistics and keeps none."""
    model = copy.deepcopy(model).eval()
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        protocol.need("batchnorm")
        if protocol.batchnorm == "train":
            replace_all_batch_norm_modules_(model)
    return model


def _count_classes(model: nn.Module, protocol: Protocol, like: Tensor) -> int:
    assert protocol.input_shape is not None
    blank = like.new_zeros((2, *protocol.input_shape))
    try:
        with torch.no_grad():
            classes = int(model(blank).shape[1])
    except (RuntimeError, ValueError, TypeError) as error:
        raise LeakscopeError(
            f"model does not take protocol.input_shape {protocol.input_shape}: {error}"
        ) from None
    if protocol.classes not in (None, classes):
        raise LeakscopeError(
            f"protocol.classes is {protocol.classes} but the model has {classes} outputs"
        )
    return classes
