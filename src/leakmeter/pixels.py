"""Convert images and labels from common formats to tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from leakmeter.errors import LeakmeterError

CHANNELS = (1, 3, 4)
"""Of pictures; an axis of another size is none of channels."""


def as_images(images: object) -> Tensor:
    """Return the images as a float tensor [N, C, H, W] in [0, 1].

    Args:
        images: such a tensor; or a numpy array of bytes [N, H, W] or [N, H, W, C], or of floats
            with the channels first or last; or PIL images, all of the same size.

    Example:
        >>> as_images(np.full((2, 4, 5, 3), 255, np.uint8)).shape
        torch.Size([2, 3, 4, 5])
    """
    if isinstance(images, Tensor):
        return images
    if isinstance(images, Image.Image):
        images = [images]
    if isinstance(images, Sequence) and images and isinstance(images[0], Image.Image):
        if len({(each.size, each.mode) for each in images}) > 1:
            raise LeakmeterError("images: PIL images must have one size and one mode: resize them")
        images = np.stack([np.asarray(each) for each in images])
    if not isinstance(images, np.ndarray):
        raise LeakmeterError(
            f"images: give a tensor, a numpy array or PIL images, not {type(images).__name__}"
        )
    if images.dtype == np.uint8:
        if images.ndim not in (3, 4):
            raise LeakmeterError(
                f"images: bytes must be [N, H, W] or [N, H, W, C], not {images.shape}"
            )
        values = torch.from_numpy(images.astype(np.float32)).div_(255)
        return values.unsqueeze(1) if images.ndim == 3 else values.permute(0, 3, 1, 2).contiguous()
    values = torch.from_numpy(images)
    last = values.ndim == 4 and values.shape[-1] in CHANNELS and values.shape[1] not in CHANNELS
    return values.permute(0, 3, 1, 2).contiguous() if last else values


def as_labels(labels: Any) -> Tensor:
    """Return the labels as an integer tensor."""
    return labels if isinstance(labels, Tensor) else torch.as_tensor(np.asarray(labels))
