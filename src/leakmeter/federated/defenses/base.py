"""The interface of all defenses: what a client can do so that its update reveals less.

A defense overrides what it changes and leaves the rest alone. Several defenses apply in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from leakmeter.federated.local import Training
from leakmeter.state import State
from leakmeter.update import Protocol, Update


class Guarantee(NamedTuple):
    """(epsilon, delta)-differential privacy, by two accountants.

    Attributes:
        rdp: epsilon by Renyi moments.
        prv: epsilon by privacy loss random variables, which is tighter.
        delta: the probability that it does not hold.
        protects: whose presence it hides: one ``example`` of a client, or the whole ``client``.
    """

    rdp: float
    prv: float
    delta: float
    protects: Literal["example", "client"] = "example"


class Defense:
    """Base of all defenses; it changes nothing.

    Attributes:
        known: what the attacker is assumed to know about it, a sentence.
        adaptive: how the attacks make use of that, a sentence; empty if they do not, and then the
            report says that the defense was only tested against attacks that ignore it.
    """

    known: ClassVar[str]
    adaptive: ClassVar[str] = ""

    @property
    def clients(self) -> int:
        """The number of clients whose updates the server sees only as a sum."""
        return 1

    def network(self, model: nn.Module) -> nn.Module:
        """Return the network that clients train, known to all; ``model`` itself must not change."""
        return model

    def check(self, model: nn.Module, protocol: Protocol, defenses: Sequence[Defense]) -> None:
        """Raise a :class:`LeakmeterError` if this cannot be done, before any training.

        Args:
            model: the client's network.
            protocol: of the client; without ``epochs`` if it shares one gradient.
            defenses: all of the client's, this one included.
        """

    def images(self, images: Tensor, draws: torch.Generator) -> Tensor:
        """Return what the client trains on in place of its ``images`` [N, C, H, W] in [0, 1]."""
        return images

    def training(
        self,
        training: Training,
        inputs: Tensor,
        labels: Tensor,
        protocol: Protocol,
        draws: torch.Generator,
    ) -> Training:
        """Return another model, optimizer or order of batches for the client's loop.

        Hooks that it adds to the model are removed again by ``training.undo``. It is also called
        for a client that shares one gradient, whose optimizer never steps.

        Args:
            training: as it would be without this defense.
            inputs: all of the client's normalized images [N, C, H, W].
            labels: [N].
            protocol: of the client.
            draws: source of all randomness.
        """
        return training

    def penalty(self, model: nn.Module) -> Tensor | float:
        """Return the batch mean of what is added to each example's loss, after the forward pass."""
        return 0.0

    def gradient(self, model: nn.Module, inputs: Tensor, draws: torch.Generator) -> None:
        """Change the gradients of a batch of ``inputs``, in place, before the optimizer's step."""

    def send(self, update: Update, model: nn.Module, draws: torch.Generator) -> Update:
        """Return what the client sends in place of ``update``.

        Args:
            update: weights or a gradient, as the defenses before this one made it.
            model: the network as it was received.
            draws: source of all randomness.
        """
        return update

    def guarantee(self, protocol: Protocol, examples: int, rounds: int = 1) -> Guarantee | None:
        """Return what is proven, if anything, about ``rounds`` updates of a client.

        Args:
            protocol: of that client itself, not of a sum over several.
            examples: the client's number of examples, N.
            rounds: the number of rounds in which it takes part.
        """
        return None


_MADE_BY = "_leakmeter_defenses"


def defended(model: nn.Module, defenses: Sequence[Defense]) -> nn.Module:
    """Return the network that clients with ``defenses`` train, or ``model`` if already changed.

    This way rounds of training can pass on a network that clients changed once.
    """
    if getattr(model, _MADE_BY, None) == tuple(defenses):
        return model
    made = model
    for defense in defenses:
        made = defense.network(made)
    if made is not model:
        setattr(made, _MADE_BY, tuple(defenses))
    return made


def moved(update: Update, change: Callable[[State], State], **learned: object) -> Update:
    """Return ``update`` with its movement changed.

    Args:
        update: weights or a gradient.
        change: maps what was learned, ``u = w0 - wT`` or the gradient, of all tensors that moved
            at all, to what takes its place. Counters and other whole numbers are left alone.
        learned: fields of the protocol that this makes known to the server.
    """
    protocol = update.protocol.model_copy(update=learned)
    if update.gradient is not None:
        return replace(update, gradient=change(update.gradient), protocol=protocol)
    floats = [name for name, tensor in update.before.items() if tensor.is_floating_point()]
    movement = {n: t for n, t in update.observed(floats).items() if t.any()}
    returned = update.returned
    after = dict(returned)
    for name, new in change(movement).items():
        # w0 - (w0 - wT) is not wT to the last bit: what did not change is sent as it was learned.
        after[name] = torch.where(new == movement[name], returned[name], update.before[name] - new)
        if name.rpartition(".")[2] == "running_var":
            # Batch norm has no use for a variance that noise or rounding made negative.
            after[name] = after[name].clamp_min(0)
    return replace(update, after=after, protocol=protocol)
