"""What an attack found."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from leakmeter.errors import LeakmeterError
from leakmeter.state import State, named, read_safetensors, under, write_safetensors


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Images and labels read out of an update.

    Attributes:
        images: float [N, C, H, W] in [0, 1].
        labels: integers [N].
        history: ``loss`` and ``match`` [iterations] of the best restart.
        seconds: time the attack took.
        attack: the recipe, as Python reads it.
        seed: of the random start.
        labels_known: whether the labels were given (an assumption) or recovered.
        parameters: single numbers that the trajectory learned, such as ``alpha``.
        compiled: whether the attack's step was compiled, which changes the last bits.
        why: the reason for this attack, where several were tried.
        match: distance of what was found, as the attack measures it; not a number if not told.
    """

    images: Tensor
    labels: Tensor
    history: dict[str, Tensor]
    seconds: float
    attack: str
    seed: int
    labels_known: bool
    parameters: State = field(default_factory=dict)
    compiled: bool = False
    why: str = ""
    match: float = math.nan

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all."""
        tensors = {"images": self.images, "labels": self.labels}
        tensors |= {f"history/{name}": tensor for name, tensor in self.history.items()}
        tensors |= {f"parameters/{name}": tensor for name, tensor in self.parameters.items()}
        header = {
            "seconds": self.seconds,
            "attack": self.attack,
            "seed": self.seed,
            "labels_known": self.labels_known,
            "compiled": self.compiled,
            "why": self.why,
            "match": self.match,
        }
        write_safetensors(tensors, {"leakmeter.reconstruction": json.dumps(header)}, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Reconstruction:
        """Read a file written by :meth:`save`."""
        tensors, metadata = read_safetensors(Path(path))
        try:
            return cls(
                images=tensors.pop("images"),
                labels=tensors.pop("labels"),
                history=under(tensors, "history/"),
                parameters=under(tensors, "parameters/"),
                **json.loads(named(metadata, "reconstruction") or ""),
            )
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise LeakmeterError(f"{path} is not a reconstruction: {error!r}") from None
