"""Sets that need no download: real pictures in scikit-image's wheel.

The files are opened from the package's own folder, not through ``skimage.data``, which may access
the network.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import skimage
import torch
from torch import Tensor

from leakmeter.data.constants import normalization
from leakmeter.data.dataset import Dataset
from leakmeter.data.files import reading
from leakmeter.data.image import decode, resized
from leakmeter.pixels import as_images

FOLDER = Path(skimage.__file__).parent / "data"

_PICTURES = {
    "astronaut": "astronaut.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "rocket": "rocket.jpg",
    "retina": "retina.jpg",
    "immunohistochemistry": "ihc.png",
    "hubble_deep_field": "hubble_deep_field.jpg",
    "motorcycle": "motorcycle_left.png",
}
# (side as a share of the picture's shorter side, positions per axis, number of squares to keep).
_CROPS = ((1.0, 1, 1), (0.7, 2, 4), (0.4, 4, 11))
_FACES = 100  # the first 100 of the file's 200 are faces


def photos(folder: Path, size: int | None) -> Dataset:
    """Color crops [128, 3, size, size] of 8 photographs, labeled by photograph.

    Each photograph gives 16: its whole central square, then smaller ones. They are interleaved, so
    any 8 in a row that start at a multiple of 8 show all photographs, and the first 8 show them
    whole.

    Args:
        folder: where the picture files are.
        size: side in pixels; None: 32.
    """
    per_picture = [_crops(folder / file, size or 32) for file in _PICTURES.values()]
    images = torch.stack(per_picture, dim=1)
    rounds, classes = images.shape[:2]
    return Dataset(
        name="photos",
        images=images.flatten(0, 1),
        labels=torch.arange(classes).repeat(rounds),
        class_names=tuple(_PICTURES),
        normalization=normalization("photos"),
    )


def _crops(path: Path, size: int) -> Tensor:
    """The crops of one picture, float32 [16, 3, size, size]."""
    picture = as_images(decode(path)[None])
    crops = []
    for share, positions, keep in _CROPS:
        squares = _grid(picture, share, positions)
        # Empty sky and black borders make poor examples, so drop the flattest squares.
        contrast = [float(square.std(dim=(-2, -1)).mean()) for square in squares]
        best = sorted(range(len(squares)), key=contrast.__getitem__, reverse=True)[:keep]
        crops += [resized(squares[i], size) for i in sorted(best)]
    return torch.cat(crops)


def _grid(picture: Tensor, share: float, positions: int) -> list[Tensor]:
    """Squares of a picture [1, 3, H, W] at evenly spread positions, row by row."""
    height, width = picture.shape[-2:]
    side = round(share * min(height, width))
    # A single position is the center; several extend from edge to edge.
    steps = [0.5] if positions == 1 else [i / (positions - 1) for i in range(positions)]
    corners = [
        (round(y * (height - side)), round(x * (width - side))) for y in steps for x in steps
    ]
    return [picture[..., top : top + side, left : left + side] for top, left in corners]


def faces(folder: Path, size: int | None) -> Dataset:
    """200 grayscale crops [200, 1, 25, 25] from LFW: 100 faces, then 100 backgrounds.

    Args:
        folder: where ``lfw_subset.npy`` is.
        size: side in pixels; None: 25, as stored.
    """
    path = folder / "lfw_subset.npy"
    with reading(path, "npy file"):
        stored = np.load(path, allow_pickle=False)
    images = torch.from_numpy(stored.astype(np.float32)).unsqueeze(1)
    return Dataset(
        name="faces",
        images=resized(images, size),
        labels=(torch.arange(len(images)) >= _FACES).long(),
        class_names=("face", "not face"),
        normalization=normalization("faces"),
    )
