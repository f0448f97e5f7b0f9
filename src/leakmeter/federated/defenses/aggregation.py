"""Adding up updates so that the server sees none of them alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakmeter.errors import require
from leakmeter.federated.defenses.base import Defense


@dataclass(frozen=True)
class SecureAggregation(Defense):
    """The server sees only the sum of several clients' updates (Bonawitz et al. 2017).

    Only what the server sees is simulated, by ``federated.aggregate``, not the cryptography.

    Attributes:
        clients: that are added up.
    """

    known: ClassVar[str] = "The server knows how many clients, with how many examples, are summed."
    adaptive: ClassVar[str] = "The attack reconstructs the images of all of them from the sum."

    clients: int = 8  # the default hides the property of the base, which has no setter

    def __post_init__(self) -> None:
        require("clients", self.clients, least=2)
