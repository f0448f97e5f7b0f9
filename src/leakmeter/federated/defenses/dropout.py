"""A defense that leaves out random entries of every gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakmeter.errors import LeakmeterError, require
from leakmeter.federated.defenses.base import Defense
from leakmeter.update import Update


@dataclass(frozen=True)
class GradientDropout(Defense):
    """Random entries of every step's gradient are zero, the rest is scaled up (Wei et al. 2020).

    Unlike ``prune``, it draws anew in every local step, so after several steps few entries have not
    moved at all.

    Attributes:
        rate: probability that an entry is zero; the others are divided by ``1 - rate``.
    """

    known: ClassVar[str] = "The server sees which entries did not move at all."
    adaptive: ClassVar[str] = (
        "Entries that are zero in one gradient, or after one step, count on neither side of the "
        "comparison; after several steps nothing is made of it."
    )

    rate: float

    def __post_init__(self) -> None:
        require("rate", self.rate)
        if self.rate >= 1:
            raise LeakmeterError(f"rate is {self.rate}: use less than 1, else nothing is learned")

    def gradient(self, model: nn.Module, inputs: Tensor, draws: torch.Generator) -> None:
        """Drop entries of every trained parameter's gradient."""
        for parameter in model.parameters():
            if parameter.grad is not None:
                kept = torch.rand(parameter.shape, generator=draws) >= self.rate
                parameter.grad.mul_(kept.to(parameter.grad)).div_(1 - self.rate)

    def send(self, update: Update, model: nn.Module, draws: torch.Generator) -> Update:
        """Send the same update, marked as sparse if its zeros are those of a single step."""
        one = update.gradient is not None or update.protocol.steps(update.num_examples) == 1
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        entries = torch.cat([tensor.flatten() for tensor in update.observed(names).values()])
        zeros = (entries == 0).double().mean()
        # Weight decay, or noise of another defense, may have filled them in.
        if not one or not zeros or zeros < self.rate / 2:
            return update
        return replace(update, protocol=update.protocol.model_copy(update={"sparse": True}))
