"""A defense that trains through a random bottleneck."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakmeter.errors import LeakmeterError, require
from leakmeter.federated.defenses.base import Defense
from leakmeter.federated.defenses.parts import SEED, exchanged
from leakmeter.federated.local import Training
from leakmeter.models.factory import seeded
from leakmeter.update import Protocol, Update

LARGEST = 10.0
"""Logarithm of the largest variance, and of one over the smallest."""


@dataclass(frozen=True)
class Precode(Defense):
    """A variational bottleneck before the last layer makes gradients random (Scheliga et al. 2022).

    The features of the last fully connected layer are encoded as a normal distribution, drawn from
    it, and decoded again, so that the gradient depends on draws that only the client knows. They
    are drawn while a client trains; anywhere else the mean takes their place.

    Attributes:
        width: of the bottleneck; the paper uses 256.
        weight: of the divergence from N(0, I) in the loss, beta in the paper.
    """

    known: ClassVar[str] = (
        "The server knows the network with its bottleneck, but not what is drawn."
    )
    adaptive: ClassVar[str] = (
        "The attack puts the mean in place of the unknown draw, and ignores the gradients of the "
        "bottleneck and of the layer behind it, where the draw tells most."
    )

    width: int = 64
    weight: float = 1e-3

    def __post_init__(self) -> None:
        require("width", self.width, least=1)
        require("weight", self.weight)

    def network(self, model: nn.Module) -> nn.Module:
        """Return a copy with the bottleneck."""
        model = copy.deepcopy(model)
        inside: set[nn.Module] = set()
        last = None
        for module in model.modules():
            if isinstance(module, nn.Linear) and module not in inside:
                last = module
                inside |= set(module.modules())
        if last is None:
            raise LeakmeterError("precode: the network has no fully connected layer")
        with seeded(SEED):
            return exchanged(model, {last: VariationalBottleneck(last, self.width)})

    def training(
        self,
        training: Training,
        inputs: Tensor,
        labels: Tensor,
        protocol: Protocol,
        draws: torch.Generator,
    ) -> Training:
        """Draw at random from now on until the training is over."""
        for module in _bottlenecks(training.model):
            module.draws = draws
            training.undo.callback(module.rest)
        return training

    def penalty(self, model: nn.Module) -> Tensor | float:
        """``weight`` times the divergence of what was encoded from N(0, I)."""
        found = [each.divergence for each in _bottlenecks(model) if each.divergence is not None]
        return self.weight * torch.stack(found).sum() if found else 0.0

    def send(self, update: Update, model: nn.Module, draws: torch.Generator) -> Update:
        """Send the same update, naming the tensors that depend directly on the draws."""
        inside = {
            f"{name}.{inner}".lstrip(".")
            for name, module in model.named_modules()
            if isinstance(module, VariationalBottleneck)
            for inner, _ in module.named_parameters()
        }
        protocol = update.protocol.model_copy(update={"distorted": tuple(sorted(inside))})
        return replace(update, protocol=protocol)


class VariationalBottleneck(nn.Module):
    """Linear encoder, a draw, linear decoder, and then ``head``: [..., in] -> [..., out].

    Args:
        head: the layer whose input goes through the bottleneck.
        width: of the bottleneck.
    """

    draws: torch.Generator | None
    divergence: Tensor | None

    def __init__(self, head: nn.Linear, width: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(head.in_features, 2 * width).to(head.weight)
        self.decoder = nn.Linear(width, head.in_features).to(head.weight)
        self.head = head
        self.rest()

    def rest(self) -> None:
        """Use the mean, as everyone except a training client does."""
        self.draws = self.divergence = None

    def forward(self, features: Tensor) -> Tensor:
        """Return the output of ``head`` for the decoded features."""
        mean, log_variance = self.encoder(features).chunk(2, dim=-1)
        code = mean
        if self.draws is not None:
            noise = torch.randn(mean.shape, generator=self.draws).to(mean)
            # Features of a deep untrained network can be so large that the variance overflows.
            log_variance = log_variance.clamp(-LARGEST, LARGEST)
            code = mean + noise * (log_variance / 2).exp()
            terms = mean.square() + log_variance.exp() - 1 - log_variance
            self.divergence = terms.sum(-1).mean() / 2
        answer: Tensor = self.head(self.decoder(code))
        return answer


def _bottlenecks(model: nn.Module) -> list[VariationalBottleneck]:
    return [module for module in model.modules() if isinstance(module, VariationalBottleneck)]
