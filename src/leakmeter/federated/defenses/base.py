"""What a client can do so that its update tells less: the interface of all defenses.

A defense overrides what it changes and leaves the rest alone. Several of them compose, in order.
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
    """Base of all defenses: changes nothing.

    Attributes:
        known: what the attacker is assumed to know about it, a sentence.
        adaptive: how the attacks make use of that, a sentence; empty if they do not, and then the
            report says that the defense was only tested against attacks that ignore it.
    """

    known: ClassVar[str]
    adaptive: ClassVar[str] = ""

    @property
    def clients(self) -> int:
        """How many clients' updates the server sees only the sum of."""
        return 1

    def network(self, model: nn.Module) -> nn.Module:
        """The network that clients train, known to all; ``model`` itself must not change."""
        return model

    def check(self, model: nn.Module, protocol: Protocol, defenses: Sequence[Defense]) -> None:
        """Raise a :class:`LeakmeterError` if this cannot be done, before any training.

        Args:
            model: the client's network.
            protocol: of the client; without ``epochs`` if it shares one gradient.
            defenses: all of the client's, this one included.
        """

    def images(self, images: Tensor, draws: torch.Generator) -> Tensor:
        """What the client trains on in place of its ``images`` [N, C, H, W] in [0, 1]."""
        return images

    def training(
        self,
        training: Training,
        inputs: Tensor,
        labels: Tensor,
        protocol: Protocol,
        draws: torch.Generator,
    ) -> Training:
        """Another model, optimizer or order of batches for the client's loop.

        What it hangs on the model, it takes off again by ``training.undo``. A client that shares
        one gradient comes through here too; its optimizer never steps.

        Args:
            training: as it would be without this defense.
            inputs: all of the client's normalized images [N, C, H, W].
            labels: [N].
            protocol: of the client.
            draws: source of all randomness.
        """
        return training

    def penalty(self, model: nn.Module) -> Tensor | float:
        """Mean over a batch of what is added to each example's loss, after the network's call."""
        return 0.0

    def gradient(self, model: nn.Module, inputs: Tensor, draws: torch.Generator) -> None:
        """Change the gradients of a batch of ``inputs``, in place, before the optimizer's step."""

    def send(self, update: Update, model: nn.Module, draws: torch.Generator) -> Update:
        """What the client sends in place of ``update``.

        Args:
            update: weights or a gradient, as the defenses before this one made it.
            model: the network as it was received.
            draws: source of all randomness.
        """
        return update

    def guarantee(self, protocol: Protocol, examples: int, rounds: int = 1) -> Guarantee | None:
        """What is proven about ``rounds`` updates of a client with so many examples, if anything.

        Args:
            protocol: of that client itself, not of a sum over several.
            examples: its N.
            rounds: in which it takes part.
        """
        return None


_MADE_BY = "_leakmeter_defenses"


def defended(model: nn.Module, defenses: Sequence[Defense]) -> nn.Module:
    """The network that clients with ``defenses`` train; ``model`` itself, if they made it already.

    So rounds of training can hand on a network that clients changed once.
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
    """``update`` with its movement changed.

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
