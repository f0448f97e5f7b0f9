"""Local training: the client's own loop, on the user's own module."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from leakmeter.errors import LeakmeterError
from leakmeter.state import State, digest
from leakmeter.update import Protocol

if TYPE_CHECKING:
    from leakmeter.federated.defenses.base import Defense


def loss_of(protocol: Protocol, logits: Tensor, targets: Tensor) -> Tensor:
    """The client's loss: cross-entropy of ``logits`` [N, classes] with labels or probabilities."""
    return functional.cross_entropy(
        logits,
        targets,
        reduction=protocol.reduction,
        label_smoothing=protocol.label_smoothing,
    )


def per_channel(values: tuple[float, ...], like: Tensor) -> Tensor:
    """``values`` as a [C, 1, 1] tensor of the type and device of ``like``."""
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)


def normalized(images: Tensor, protocol: Protocol) -> Tensor:
    """Images [N, C, H, W] in [0, 1] as the network sees them."""
    normalize = protocol.need("normalize").normalize
    mean, std = (per_channel(values, images) for values in normalize)
    return (images - mean) / std


def set_mode(model: nn.Module, protocol: Protocol) -> None:
    """Switch dropout off and batch norm to the protocol's mode."""
    model.eval()
    if protocol.batchnorm == "train":
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.train()


def logits_of(output: Any) -> Tensor:
    """Extract the logits from a classifier's output: a tensor, a dict, or an object."""
    found = output.get("logits") if isinstance(output, Mapping) else output
    found = getattr(found, "logits", found)
    if not isinstance(found, Tensor):
        raise LeakmeterError("model must return logits [N, classes], alone or as .logits")
    return found


def answer(model: nn.Module, x: Tensor) -> Tensor:
    """Logits [N, classes, ...] of any image classifier for images ``x`` [N, C, H, W]."""
    return logits_of(model(**{PIXELS: x}) if takes_pixels(model) else model(x))


PIXELS = "pixel_values"


def takes_pixels(model: nn.Module) -> bool:
    """Whether images go to the argument that Hugging Face's networks have for them."""
    return PIXELS in inspect.signature(model.forward).parameters


def output_shape(model: nn.Module, images: Tensor) -> tuple[int, ...]:
    """(classes, ...) of the answer of ``model`` to one of ``images`` [N, C, H, W], in eval mode.

    A network with one output per example has only classes; one with outputs at several places, such
    as a language model with one per word, appends the number of places.
    """
    probe = copy.deepcopy(model).eval()
    try:
        with torch.no_grad():
            logits = answer(probe, images)
    except Exception as error:  # the user's own code may raise anything
        raise LeakmeterError(
            f"model does not take images of shape {tuple(images.shape[1:])}: "
            f"{' '.join(str(error).split()) or type(error).__name__}"
        ) from None
    if logits.shape[:1] != images.shape[:1] or logits.ndim < 2:
        raise LeakmeterError("model must return logits [N, classes]")
    return tuple(logits.shape[1:])


def behavior(model: nn.Module, shape: tuple[int, ...]) -> str:
    """Return a SHA-256 of what ``model`` does: weights, frozen names, output for noise.

    Args:
        model: any module; its source may have changed while its weights have not.
        shape: (C, H, W) of an image.
    """
    some = next(model.parameters())
    noise = torch.rand((2, *shape), generator=torch.Generator().manual_seed(0)).to(some)
    with torch.no_grad():
        try:
            # Processors differ in the last bits, so only the leading digits are used.
            told = answer(copy.deepcopy(model).double().eval(), noise.double())
            told = (told / told.abs().max().clamp_min(1e-30)).mul(1e6).round().long()
        except Exception:  # not made for double precision
            told = answer(copy.deepcopy(model).eval(), noise)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return digest({**model.state_dict(), "answer": told}, repr(trained))


def make_optimizer(model: nn.Module, protocol: Protocol) -> torch.optim.Optimizer:
    """The client's optimizer over the parameters that are not frozen."""
    known = protocol.need("lr", "optimizer")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise LeakmeterError("model has no trainable parameter: all are frozen")
    lr, weight_decay = known.lr, protocol.weight_decay
    if protocol.optimizer == "sgd":
        return torch.optim.SGD(
            trained,
            lr=lr,
            momentum=protocol.momentum,
            nesterov=protocol.nesterov,
            weight_decay=weight_decay,
        )
    adam = torch.optim.AdamW if protocol.optimizer == "adamw" else torch.optim.Adam
    return adam(trained, lr=lr, betas=protocol.betas, eps=protocol.eps, weight_decay=weight_decay)


def check_batch(model: nn.Module, protocol: Protocol, smallest: int) -> None:
    """Refuse batch statistics of a single example: they do not exist, or say nothing."""
    normed = any(isinstance(module, _BatchNorm) for module in model.modules())
    if normed and protocol.batchnorm == "train" and smallest == 1:
        raise LeakmeterError(
            "batchnorm is train but a batch has one example: choose a batch_size that leaves "
            "no single one over, or batchnorm eval"
        )


def snapshot(model: nn.Module) -> State:
    """A copy of the whole state, detached."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


class Training(NamedTuple):
    """What a client's training loop uses; a defense may replace any of it.

    Attributes:
        model: what is called; its parameters are those of the client's network.
        optimizer: over the parameters that are trained.
        batches: gives (inputs [B, C, H, W], labels [B]) of one epoch at a time.
        undo: closed when the training is over, which restores the client's network.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]
    undo: ExitStack


def train_locally(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    protocol: Protocol,
    *,
    seed: int,
    on_step: Callable[[State], None] | None = None,
    defenses: Sequence[Defense] = (),
    draws: torch.Generator | None = None,
) -> None:
    """Train ``model`` in place for E epochs of batches of B, shuffled anew in every epoch.

    Args:
        model: changed in place.
        inputs: [N, C, H, W], already normalized.
        labels: [N] integers.
        protocol: epochs, batch size, optimizer, loss and batch-norm mode.
        seed: decides the order of the examples.
        on_step: called with a copy of the whole state after every step.
        defenses: of the client, which may change how it trains.
        draws: what they draw from.
    """
    known = protocol.need("epochs", "batch_size")
    last = len(inputs) % known.batch_size or min(known.batch_size, len(inputs))
    check_batch(model, protocol, last)
    set_mode(model, protocol)
    order = torch.Generator().manual_seed(seed)
    draws = torch.Generator() if draws is None else draws

    def batches() -> Iterable[tuple[Tensor, Tensor]]:
        shuffled = torch.randperm(len(inputs), generator=order).to(inputs.device)
        for batch in shuffled.split(known.batch_size):
            yield inputs[batch], labels[batch]

    with ExitStack() as undo:
        training = Training(model, make_optimizer(model, protocol), batches, undo)
        for defense in defenses:
            training = defense.training(training, inputs, labels, protocol, draws)
        for _ in range(known.epochs):
            for x, y in training.batches():
                training.optimizer.zero_grad()
                descend(training.model, model, x, y, protocol, defenses, draws)
                training.optimizer.step()
                if on_step is not None:
                    on_step(snapshot(model))


def whole_gradient(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    protocol: Protocol,
    *,
    defenses: Sequence[Defense] = (),
    draws: torch.Generator,
) -> State:
    """The gradient of the loss over all examples, by name, as the defenses make it.

    Args:
        model: switched to the protocol's mode, else not changed.
        inputs: [N, C, H, W], already normalized.
        labels: [N] integers.
        protocol: optimizer, loss and batch-norm mode.
        defenses: of the client.
        draws: what they draw from.
    """
    check_batch(model, protocol, len(inputs))
    set_mode(model, protocol)
    with ExitStack() as undo:
        optimizer = make_optimizer(model, protocol)
        training = Training(model, optimizer, lambda: [(inputs, labels)], undo)
        for defense in defenses:
            training = defense.training(training, inputs, labels, protocol, draws)
        training.optimizer.zero_grad()
        descend(training.model, model, inputs, labels, protocol, defenses, draws)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in trained.items()}


def descend(
    called: nn.Module,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    protocol: Protocol,
    defenses: Sequence[Defense],
    draws: torch.Generator,
) -> None:
    """Leave the gradient of one batch in the parameters, as the defenses make it.

    Args:
        called: ``model``, or what a defense wrapped around it.
        model: the client's network.
        x: normalized images [B, C, H, W].
        y: labels [B].
        protocol: of the client.
        defenses: of the client.
        draws: what they draw from.
    """
    if len(x):  # a defense that samples batches may leave one empty
        loss = loss_of(protocol, answer(called, x), y)
        for defense in defenses:
            loss = loss + defense.penalty(model) * (len(x) if protocol.reduction == "sum" else 1)
        loss.backward()
    for defense in defenses:
        defense.gradient(model, x, draws)
