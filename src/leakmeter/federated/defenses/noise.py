"""Noise on the update as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from leakmeter.errors import LeakmeterError, require
from leakmeter.federated.defenses.accounting import gaussian
from leakmeter.federated.defenses.base import Defense, Guarantee, moved
from leakmeter.state import State
from leakmeter.update import Protocol, Update

KINDS = ("gaussian", "laplace")


@dataclass(frozen=True)
class UpdateNoise(Defense):
    """The update is clipped as a whole and sent with noise (McMahan et al. 2018).

    All floating-point tensors that moved make one long vector, ``u = w0 - wT`` or the gradient. It
    is scaled down to the norm ``clip`` if it is longer. Then noise of mean zero and standard
    deviation ``multiplier * clip`` is added to every entry, whatever its kind.

    With Gaussian noise this is the Gaussian mechanism with sensitivity ``clip``, and the guarantee
    is about the client as a whole: whoever sees the updates can hardly tell them from those of a
    client whose contribution is zero. (To tell it from any other client the sensitivity is twice
    as large.) It assumes that which tensors move at all does not depend on the data. Laplace noise
    with this clipping, in the Euclidean norm, has no such guarantee.

    Attributes:
        clip: the largest norm.
        multiplier: standard deviation of the noise in an entry, in units of ``clip``.
        kind: ``gaussian`` or ``laplace``.
        delta: probability that the guarantee does not hold.
    """

    known: ClassVar[str] = "The server knows that every entry carries noise of the same size."
    adaptive: ClassVar[str] = (
        "For attacks that match by cosine there is nothing to adapt: that is the most likely "
        "estimate under Gaussian noise of unknown size."
    )

    clip: float
    multiplier: float
    kind: Literal["gaussian", "laplace"] = "gaussian"
    delta: float = 1e-5

    def __post_init__(self) -> None:
        require("clip", self.clip, above=0)
        require("multiplier", self.multiplier)
        require("delta", self.delta, above=0, most=0.5)
        if self.kind not in KINDS:
            raise LeakmeterError(f"kind is {self.kind!r}: use {' or '.join(KINDS)}")

    def send(self, update: Update, model: nn.Module, draws: torch.Generator) -> Update:
        """Clip the update and add noise."""

        def change(movement: State) -> State:
            squares = sum(float(t.double().square().sum()) for t in movement.values())
            scale = min(1.0, self.clip / max(math.sqrt(squares), 1e-300))
            return {name: t * scale + self._noise(t, draws) for name, t in movement.items()}

        if not self.multiplier:
            return moved(update, change)
        # With noise, nothing stays zero or rounded.
        return moved(update, change, sparse=False, bits=None)

    def guarantee(self, protocol: Protocol, examples: int, rounds: int = 1) -> Guarantee | None:
        """Return the guarantee of Gaussian noise for a client that sends one update per round."""
        if self.kind != "gaussian" or not self.multiplier:
            return None
        return Guarantee(*gaussian(self.multiplier, rounds, self.delta), self.delta, "client")

    def _noise(self, like: Tensor, draws: torch.Generator) -> Tensor:
        deviation = self.multiplier * self.clip
        if self.kind == "gaussian":
            noise = torch.randn(like.shape, generator=draws)
        else:
            # The difference of two exponential draws has the variance 2.
            drawn = torch.empty((2, *like.shape)).exponential_(generator=draws)
            noise = (drawn[0] - drawn[1]) / math.sqrt(2)
        return deviation * noise.to(like)
