"""Pixels: decoding picture files, scaling bytes to the unit interval, and square resizing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from leakmeter.data.files import reading
from leakmeter.errors import LeakmeterError

# Listed because Pillow would otherwise also try formats that start other programs (EPS).
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_MOST_PIXELS = 50_000_000  # a false size in a header must not fill the memory
_GRAY = ("1", "L")
_COLOR = ("P", "PA", "LA", "RGB", "RGBA", "CMYK", "YCbCr")


def decode(path: Path) -> NDArray[np.uint8]:
    """A picture file's pixels: uint8 [H, W] for grayscale, [H, W, 3] for anything else."""
    with reading(path, "picture"), Image.open(path, formats=_FORMATS) as picture:
        if picture.mode not in _GRAY + _COLOR:
            raise LeakmeterError(
                f"{path}: pixel format {picture.mode!r} is not supported: save it with 8 bits"
            )
        if picture.width * picture.height > _MOST_PIXELS:
            raise LeakmeterError(
                f"{path}: {picture.width}x{picture.height} is more than {_MOST_PIXELS} pixels"
            )
        return np.array(picture.convert("L" if picture.mode in _GRAY else "RGB"))


def resized(images: Tensor, size: int | None) -> Tensor:
    """Images [N, C, H, W] as [N, C, size, size]: cropped to the center square, then resized.

    Resizing is anti-aliased. Images are unchanged if `size` is None.
    """
    if size is None:
        return images
    height, width = images.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = images[..., top : top + side, left : left + side]
    if side == size:
        return square.contiguous()
    scaled = functional.interpolate(
        square, (size, size), mode="bilinear", align_corners=False, antialias=True
    )
    return scaled.clamp(0, 1)  # the interpolation weights sum to one only up to rounding
