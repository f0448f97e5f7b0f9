"""What an attack found."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from leakmeter.errors import LeakmeterError, StorageError
from leakmeter.state import State, named, read_safetensors, under, write_safetensors

if TYPE_CHECKING:
    from leakmeter.attacks.drawing import Drawing


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Images and labels read out of an update.

    Attributes:
        images: float [N, C, H, W] in [0, 1].
        labels: integers [N].
        history: ``loss`` and ``match`` [iterations] of the best restart.
        seconds: time the attack took.
        attack: the recipe as a Python expression.
        seed: the seed of the random start.
        labels_known: whether the labels were given (an assumption) or recovered.
        parameters: single numbers that the trajectory learned, such as ``alpha``.
        compiled: whether the attack's step was compiled, which changes the last bits.
        why: the reason for this attack, where several were tried.
        match: distance of what was found, as the attack measures it; NaN if unknown.
        recipe: name of the attack; empty if it has none.
        replay: how well training on what was found explains the update (1: fully), or ``None``.
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
    recipe: str = ""
    replay: float | None = None

    def __repr__(self) -> str:
        count, shape = len(self.images), "x".join(map(str, self.images.shape[1:]))
        facts = [f"{count} image{'s' if count > 1 else ''} {shape}"]
        facts += [self.recipe] if self.recipe else []
        facts += [] if self.replay is None else [f"replay score {self.replay:.3f}"]
        facts.append(f"labels {'known' if self.labels_known else 'recovered'}")
        return f"Reconstruction({', '.join(facts)}, {self.seconds:.0f} s)"

    def show(self, originals: object = None) -> Drawing:
        """Draw the images as a matplotlib figure, each below its original if these are given.

        Args:
            originals: tensor [N, C, H, W] in [0, 1], numpy array or PIL images; each is paired
                with the reconstruction nearest to it.
        """
        from leakmeter.attacks.drawing import drawn  # matplotlib is slow to import

        return drawn(self.images, originals)

    def to_png(self, path: str | Path, originals: object = None) -> None:
        """Write the figure of :meth:`show` as a PNG file."""
        path = Path(path)
        if path.suffix.lower() != ".png":
            raise LeakmeterError(f"{path}: to_png writes PNG files: let the name end in .png")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.show(originals).savefig(path, format="png")
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from None

    def _repr_png_(self) -> bytes:
        """Return the picture that a notebook displays."""
        return self.show()._repr_png_()

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all."""
        if Path(path).suffix.lower() in (".png", ".jpg", ".jpeg"):
            raise LeakmeterError(
                f"{path}: save writes a safetensors file; for a picture use to_png"
            )
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
            "recipe": self.recipe,
            "replay": self.replay,
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
