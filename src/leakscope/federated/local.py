"""Local training: the client's own loop, on the user's own module."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from leakscope.errors import LeakscopeError
from leakscope.update import Protocol, State, digest


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
    protocol.need("normalize")
    assert protocol.normalize is not None
    mean, std = (per_channel(values, images) for values in protocol.normalize)
    return (images - mean) / std


def set_mode(model: nn.Module, protocol: Protocol) -> None:
    """Switch dropout off and batch norm to the protocol's mode."""
    model.eval()
    if protocol.batchnorm == "train":
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.train()


def output_shape(model: nn.Module, images: Tensor) -> tuple[int, ...]:
    """(classes, ...) of the answer of ``model`` to one of ``images`` [N, C, H, W], in eval mode.

    A network that answers once per example has only classes; one that answers at several places,
    as a language model does for every word, has their number behind.
    """
    probe = copy.deepcopy(model).eval()
    try:
        with torch.no_grad():
            logits = probe(images)
    except Exception as error:  # the user's own code may raise anything
        raise LeakscopeError(
            f"model does not take images of shape {tuple(images.shape[1:])}: "
            f"{' '.join(str(error).split()) or type(error).__name__}"
        ) from None
    if not isinstance(logits, Tensor) or logits.shape[:1] != images.shape[:1] or logits.ndim < 2:
        raise LeakscopeError("model must return logits [N, classes]")
    return tuple(logits.shape[1:])


def behaviour(model: nn.Module, shape: tuple[int, ...]) -> str:
    """SHA-256 of what ``model`` computes and trains: weights, frozen names, answer to noise.

    Args:
        model: any module; its source may have changed while its weights have not.
        shape: (C, H, W) of an image.
    """
    some = next(model.parameters())
    noise = torch.randn((2, *shape), generator=torch.Generator().manual_seed(0)).to(some)
    with torch.no_grad():
        answer = copy.deepcopy(model).eval()(noise)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return digest({**model.state_dict(), "answer": answer}, repr(trained))


def make_optimizer(model: nn.Module, protocol: Protocol) -> torch.optim.Optimizer:
    """The client's optimiser over the parameters that are not frozen."""
    protocol.need("lr", "optimizer")
    assert protocol.lr is not None
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise LeakscopeError("model has no trainable parameter: all are frozen")
    lr, weight_decay = protocol.lr, protocol.weight_decay
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
        raise LeakscopeError(
            "batchnorm is train but a batch has one example: choose a batch_size that leaves "
            "no single one over, or batchnorm eval"
        )


def snapshot(model: nn.Module) -> State:
    """A copy of the whole state, detached."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def train_locally(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    protocol: Protocol,
    *,
    seed: int,
    on_step: Callable[[State], None] | None = None,
) -> None:
    """Train ``model`` in place for E epochs of batches of B, shuffled anew in every epoch.

    Args:
        model: changed in place.
        inputs: [N, C, H, W], already normalised.
        labels: [N] integers.
        protocol: epochs, batch size, optimiser, loss and batch-norm mode.
        seed: decides the order of the examples.
        on_step: called with a copy of the whole state after every step.
    """
    protocol.need("epochs", "batch_size")
    assert protocol.epochs is not None
    assert protocol.batch_size is not None
    last = len(inputs) % protocol.batch_size or min(protocol.batch_size, len(inputs))
    check_batch(model, protocol, last)
    set_mode(model, protocol)
    optimizer = make_optimizer(model, protocol)
    order = torch.Generator().manual_seed(seed)
    for _ in range(protocol.epochs):
        shuffled = torch.randperm(len(inputs), generator=order).to(inputs.device)
        for batch in shuffled.split(protocol.batch_size):
            optimizer.zero_grad()
            loss_of(protocol, model(inputs[batch]), labels[batch]).backward()
            optimizer.step()
            if on_step is not None:
                on_step(snapshot(model))
