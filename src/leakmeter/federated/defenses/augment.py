"""Training on transformed images in place of one's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from leakmeter.errors import LeakmeterError, require
from leakmeter.federated.defenses.base import Defense


@dataclass(frozen=True)
class Augment(Defense):
    """Images are shifted, turned and recolored before training, as in ATS (Gao et al. 2021).

    Each image is changed once, by the full strength of every transformation, each in its own random
    direction. ATS searches for the best sequence of transformations; here the sequence is fixed and
    uses the kinds that ATS finds. Areas from outside the image are black.

    Attributes:
        shift: along both axes, as a share of the side.
        rotate: angle in degrees.
        contrast: the share by which differences from the mean brightness grow or shrink.
        brightness: the brightness added or subtracted, on a scale of 0 to 1.
    """

    known: ClassVar[str] = "The server knows that images were transformed, but not how each was."

    shift: float = 1 / 3
    rotate: float = 30.0
    contrast: float = 0.4
    brightness: float = 0.2

    def __post_init__(self) -> None:
        require("rotate", self.rotate, most=180)
        for name in ("shift", "contrast", "brightness"):
            require(name, getattr(self, name))
            if getattr(self, name) >= 1:
                raise LeakmeterError(
                    f"{name} is {getattr(self, name)}: use less than 1, else nothing is left"
                )

    def images(self, images: Tensor, draws: torch.Generator) -> Tensor:
        """All of them transformed, in [0, 1]."""
        signs = 2.0 * torch.randint(2, (5, len(images)), generator=draws) - 1
        right, down, turn, contrast, brightness = signs.to(images).unbind()
        changed = self._placed(images, right, down, turn)
        mean = changed.mean((1, 2, 3), keepdim=True)
        factor = 1 + self.contrast * contrast.view(-1, 1, 1, 1)
        offset = self.brightness * brightness.view(-1, 1, 1, 1)
        changed = (changed - mean) * factor + mean + offset
        return changed.clamp(0, 1)

    def _placed(self, images: Tensor, right: Tensor, down: Tensor, turn: Tensor) -> Tensor:
        """Turned, then shifted, by the signs [N] of each image."""
        height, width = images.shape[2:]
        angle = math.radians(self.rotate) * turn
        cos, sin = angle.cos(), angle.sin()
        # affine_grid maps places in the result to places in the source, on a square of side 2.
        x, y = -2 * self.shift * right, -2 * self.shift * down
        first = torch.stack([cos, -sin * height / width, cos * x - sin * y * height / width], 1)
        second = torch.stack([sin * width / height, cos, sin * x * width / height + cos * y], 1)
        where = torch.stack([first, second], 1)
        grid = functional.affine_grid(where, list(images.shape), align_corners=False)
        return functional.grid_sample(images, grid, align_corners=False)
