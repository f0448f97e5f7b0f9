"""Draw images side by side as a matplotlib figure."""

from __future__ import annotations

import io

import torch
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakmeter.errors import LeakmeterError
from leakmeter.pixels import as_images

MOST = 16
"""The number of images in a row."""


class Drawing(Figure):
    """A figure that a notebook displays without further ado."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def drawn(found: Tensor, originals: object = None) -> Drawing:
    """Draw reconstructions [N, C, H, W], each below its original if ``originals`` are given."""
    rows = [("found", found)]
    if originals is not None:
        truth = as_images(originals).to(found)
        if truth.shape != found.shape:
            raise LeakmeterError(
                f"originals have shape {tuple(truth.shape)}, the reconstructions "
                f"{tuple(found.shape)}: give one image for each"
            )
        gaps = torch.cdist(truth.flatten(1), found.flatten(1))
        pairs = torch.as_tensor(linear_sum_assignment(gaps.cpu().double().numpy())[1])
        rows = [("original", truth), ("found", found[pairs])]
    columns = min(MOST, len(found))
    bands = -(-len(found) // columns)
    figure = Drawing(figsize=(1.1 * columns + 0.5, 1.25 * bands * len(rows)), layout="constrained")
    grid = figure.subplots(bands * len(rows), columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for number in range(len(found)):
        for row, (title, images) in enumerate(rows):
            axes = grid[number // columns * len(rows) + row, number % columns]
            image = images[number].detach().cpu().clamp(0, 1)
            shown = image[0] if len(image) < 3 else image[:3].permute(1, 2, 0)
            axes.imshow(shown.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            if number % columns == 0 and len(rows) > 1:
                axes.set_title(title, fontsize=8, loc="left")
    return figure
