"""One honest client: trains on its own data and sends back weights, or one gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from leakscope.data import normalization
from leakscope.errors import LeakscopeError
from leakscope.federated.local import (
    check_batch,
    loss_of,
    normalized,
    output_shape,
    set_mode,
    snapshot,
    train_locally,
)
from leakscope.update import Normalization, Protocol, State, Update


class Client:
    """A client with ``images`` and ``labels`` that has received ``model``.

    The module is copied: training never changes the caller's.

    Args:
        model: any ``nn.Module`` that maps images [N, C, H, W] to logits [N, classes].
        images: float [N, C, H, W] in [0, 1].
        labels: integers [N], or [N, ...] for a network with several answers per example.
        epochs: passes over the data.
        batch_size: examples a step; all of them if not given.
        lr: step size.
        optimizer: ``sgd``, ``adam`` or ``adamw``.
        normalize: a data set's name, a (mean, std) pair, or ``None`` for the identity.
        batchnorm: ``eval`` (running statistics) or ``train`` (those of the batch).
        seed: decides the order of the examples.
        settings: any other field of :class:`~leakscope.update.Protocol`, such as ``momentum``.
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        *,
        epochs: int = 1,
        batch_size: int | None = None,
        lr: float = 0.01,
        optimizer: str = "sgd",
        normalize: str | Normalization | None = None,
        batchnorm: str = "eval",
        seed: int = 0,
        **settings: Any,
    ) -> None:
        _check_images(images)
        first = next(model.parameters(), None)
        if first is None:
            raise LeakscopeError("model has no parameters: nothing could be trained")
        self.model = model
        self.images = images.to(first.device, first.dtype)
        self.labels = labels.to(first.device, torch.int64)
        self.seed = seed
        channels = images.shape[1]
        classes, *places = output_shape(model, self.images[:2])
        _check_labels(labels, (len(images), *places))
        if labels.min() < 0 or labels.max() >= classes:
            raise LeakscopeError(
                f"labels span {labels.min().item()}..{labels.max().item()} "
                f"but the model has {classes} outputs: build it with more classes"
            )
        try:
            self.protocol = Protocol(
                epochs=epochs,
                batch_size=len(images) if batch_size is None else batch_size,
                lr=lr,
                optimizer=optimizer,
                normalize=resolve_normalization(normalize, channels),
                loss="cross_entropy",
                batchnorm=batchnorm,
                input_shape=images.shape[1:],
                classes=classes,
                **settings,
            )
        except ValidationError as error:
            first_error = error.errors()[0]
            field = ".".join(str(part) for part in first_error["loc"]) or "protocol"
            raise LeakscopeError(f"client {field}: {first_error['msg']}") from None

    def train(self, on_step: Callable[[State], None] | None = None) -> Update:
        """Train locally and return the weights before and after.

        Args:
            on_step: called with a copy of the state after every local step, e.g. ``list.append``
                to record the trajectory.
        """
        model = copy.deepcopy(self.model)
        inputs = normalized(self.images, self.protocol)
        train_locally(model, inputs, self.labels, self.protocol, seed=self.seed, on_step=on_step)
        return self._update(self.protocol, after=snapshot(model))

    def gradient(self) -> Update:
        """One gradient of the loss over all examples at the received weights."""
        model = copy.deepcopy(self.model)
        check_batch(model, self.protocol, len(self.images))
        set_mode(model, self.protocol)
        loss = loss_of(self.protocol, model(normalized(self.images, self.protocol)), self.labels)
        trained = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        if not trained:
            raise LeakscopeError("model has no trainable parameter: all are frozen")
        gradients = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
        unused = dict.fromkeys(("epochs", "batch_size", "lr", "optimizer"))
        return self._update(
            self.protocol.model_copy(update=unused),
            gradient=dict(zip(trained, gradients, strict=True)),
        )

    def _update(self, protocol: Protocol, **sent: State) -> Update:
        return Update(
            before=snapshot(self.model),
            num_examples=len(self.images),
            protocol=protocol,
            **sent,
        )


def resolve_normalization(normalize: str | Normalization | None, channels: int) -> Normalization:
    """(mean, std) for a data set's name, a pair, or ``None`` (the identity)."""
    if normalize is None:
        return (0.0,) * channels, (1.0,) * channels
    if isinstance(normalize, str):
        return normalization(normalize)
    mean, std = normalize
    return tuple(mean), tuple(std)


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise LeakscopeError(
            f"images must be float [N, C, H, W] in [0, 1], not {images.dtype} {tuple(images.shape)}"
        )
    if len(images) == 0:
        raise LeakscopeError("images is empty: a client needs at least one example")
    low, high = images.min().item(), images.max().item()
    if not 0 <= low <= high <= 1:
        raise LeakscopeError(
            f"images span [{low:.3g}, {high:.3g}]: give pixels in [0, 1], "
            "and the normalisation by normalize="
        )


def _check_labels(labels: Tensor, expected: tuple[int, ...]) -> None:
    if labels.shape != expected or labels.is_floating_point():
        raise LeakscopeError(
            f"labels must be {' x '.join(map(str, expected))} integers, one per image, "
            f"not {labels.dtype} {tuple(labels.shape)}"
        )
