"""One honest client: trains on its own data and sends back weights, or one gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from leakmeter.data import normalization
from leakmeter.errors import LeakmeterError, validation_errors
from leakmeter.federated.defenses.base import Defense, defended
from leakmeter.federated.local import (
    check_batch,
    normalized,
    output_shape,
    snapshot,
    train_locally,
    whole_gradient,
)
from leakmeter.pixels import as_images, as_labels
from leakmeter.state import State
from leakmeter.update import Normalization, Protocol, Update

DRAWS = 5_000_000_000
"""First seed for what defenses draw, separate from the seeds for the order of examples."""


class Client:
    """A client with ``images`` and ``labels`` that has received ``model``.

    The module is copied: training never changes the caller's.

    Args:
        model: any ``nn.Module`` that maps images [N, C, H, W] to logits [N, classes].
        images: float [N, C, H, W] in [0, 1], or what :func:`~leakmeter.pixels.as_images` takes.
        labels: integers [N], or [N, ...] for a network with several answers per example.
        epochs: passes over the data.
        batch_size: examples per step; all of them if not given.
        lr: step size.
        optimizer: ``sgd``, ``adam`` or ``adamw``.
        normalize: a data set's name, a (mean, std) pair, or ``None`` for the identity.
        batchnorm: ``eval`` (running statistics) or ``train`` (those of the batch).
        seed: decides the order of the examples, and what defenses draw.
        defenses: what the client does, in order, so that its update reveals less. A defense that
            changes the network changes :attr:`model`: attack that network.
        settings: any other field of :class:`~leakmeter.update.Protocol`, such as ``momentum``.

    Example:
        >>> from leakmeter import data, models
        >>> photos = data.load("photos", size=16)
        >>> model = models.build("lenet-zhu", classes=photos.classes, size=16)
        >>> Client(model, photos.images[:4], photos.labels[:4], epochs=2, batch_size=2).train()
        Update(weights of 4 examples, 9,680 numbers, sgd, epochs 2, batch_size 2, lr 0.01)
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor | NDArray[Any],
        labels: Tensor | NDArray[Any],
        *,
        epochs: int = 1,
        batch_size: int | None = None,
        lr: float = 0.01,
        optimizer: str = "sgd",
        normalize: str | Normalization | None = None,
        batchnorm: str = "eval",
        seed: int = 0,
        defenses: Sequence[Defense] = (),
        **settings: Any,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise LeakmeterError(
                f"model is a {type(model).__name__}: give a torch.nn.Module, such as "
                "leakmeter.models.build(name, classes=...)"
            )
        for defense in defenses:
            if not isinstance(defense, Defense):
                raise LeakmeterError(
                    f"defenses has {defense!r}: give defenses with their options, such as "
                    "leakmeter.federated.DEFENSES['top_k'](keep=0.1)"
                )
        images, labels = as_images(images), as_labels(labels)
        _check_images(images)
        model = defended(model, defenses)
        first = next(model.parameters(), None)
        if first is None:
            raise LeakmeterError("model has no parameters: nothing could be trained")
        self.model = model
        self.images = images.to(first.device, first.dtype)
        self.labels = labels.to(first.device, torch.int64)
        self.seed = seed
        self.defenses = tuple(defenses)
        channels = images.shape[1]
        classes, *places = output_shape(model, self.images[:2])
        _check_labels(labels, (len(images), *places))
        if labels.min() < 0 or labels.max() >= classes:
            raise LeakmeterError(
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
            raise LeakmeterError(f"client {validation_errors(error, Protocol)[0]}") from None
        for defense in self.defenses:
            defense.check(model, self.protocol, self.defenses)

    def __repr__(self) -> str:
        protocol, count = self.protocol, len(self.images)
        shape = "x".join(map(str, self.images.shape[1:]))
        names = [type(each).__name__ for each in self.defenses]
        return (
            f"Client({count} image{'s' if count > 1 else ''} {shape}, {protocol.words}"
            + (f", {', '.join(names)}" if names else "")
            + ")"
        )

    def train(self, on_step: Callable[[State], None] | None = None) -> Update:
        """Train locally and return the weights before and after.

        Args:
            on_step: called with a copy of the state after every local step, e.g. ``list.append``
                to record the trajectory.
        """
        model, draws = copy.deepcopy(self.model), self._draws()
        train_locally(
            model,
            self._inputs(draws),
            self.labels,
            self.protocol,
            seed=self.seed,
            on_step=on_step,
            defenses=self.defenses,
            draws=draws,
        )
        return self._sent(self.protocol, draws, after=snapshot(model))

    def gradient(self) -> Update:
        """Return one gradient of the loss over all examples at the received weights."""
        protocol = self.sharing_a_gradient()
        draws = self._draws()
        gradient = whole_gradient(
            copy.deepcopy(self.model),
            self._inputs(draws),
            self.labels,
            self.protocol,
            defenses=self.defenses,
            draws=draws,
        )
        return self._sent(protocol, draws, gradient=gradient)

    def sharing_a_gradient(self) -> Protocol:
        """Return what the server knows if it gets only a gradient; raise an error if impossible."""
        unused = dict.fromkeys(("epochs", "batch_size", "lr", "optimizer"))
        protocol = self.protocol.model_copy(update=unused)
        check_batch(self.model, protocol, len(self.images))
        for defense in self.defenses:
            defense.check(self.model, protocol, self.defenses)
        return protocol

    def without_defenses(self) -> Client:
        """Return the same client without defenses; a network they changed stays changed."""
        plain = copy.copy(self)
        plain.defenses = ()
        return plain

    def _draws(self) -> torch.Generator:
        return torch.Generator().manual_seed(DRAWS + self.seed)

    def _inputs(self, draws: torch.Generator) -> Tensor:
        images = self.images
        for defense in self.defenses:
            images = defense.images(images, draws)
        return normalized(images, self.protocol)

    def _sent(self, protocol: Protocol, draws: torch.Generator, **sent: State) -> Update:
        update = Update(
            before=snapshot(self.model),
            num_examples=len(self.images),
            protocol=protocol,
            **sent,
        )
        for defense in self.defenses:
            update = defense.send(update, self.model, draws)
        return update


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
        raise LeakmeterError(
            f"images must be float [N, C, H, W] in [0, 1], not {images.dtype} {tuple(images.shape)}"
        )
    if len(images) == 0:
        raise LeakmeterError("images is empty: a client needs at least one example")
    low, high = images.min().item(), images.max().item()
    if not 0 <= low <= high <= 1:
        raise LeakmeterError(
            f"images span [{low:.3g}, {high:.3g}]: give pixels in [0, 1], "
            "and the normalization by normalize="
        )


def _check_labels(labels: Tensor, expected: tuple[int, ...]) -> None:
    if labels.shape != expected or labels.is_floating_point():
        raise LeakmeterError(
            f"labels must be {' x '.join(map(str, expected))} integers, one per image, "
            f"not {labels.dtype} {tuple(labels.shape)}"
        )
