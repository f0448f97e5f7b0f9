"""Measures how alike reconstructions and originals are, image by image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from skimage.metrics import structural_similarity
from torch import Tensor

from leakmeter.errors import LeakmeterError
from leakmeter.pixels import as_images

if TYPE_CHECKING:
    from leakmeter.measure.lpips import Lpips

Images = Tensor | NDArray[Any] | Sequence[Any]
"""Whatever :func:`~leakmeter.pixels.as_images` takes."""

SMALLEST_MSE = 1e-12
"""Images closer than this count as 120 dB, so that a perfect copy does not make a mean infinite."""

SSIM_WINDOW = 11


@dataclass(frozen=True, eq=False)
class ImageScores:
    """One value per original image, [N] float64.

    Attributes:
        pairs: [N] integers; original ``i`` is set beside reconstruction ``pairs[i]``.
        mse: mean squared error.
        psnr: peak signal-to-noise ratio in dB, data range 1, per image.
        ssim: structural similarity, gaussian window of sigma 1.5.
        lpips: how different the two look, 0 being the same, or ``None`` if it was not measured.
    """

    pairs: Tensor
    mse: Tensor
    psnr: Tensor
    ssim: Tensor
    lpips: Tensor | None = None

    def __repr__(self) -> str:
        mean, ssim, count = self.psnr.mean().item(), self.ssim.mean().item(), len(self.psnr)
        return (
            f"ImageScores({count} image{'s' if count > 1 else ''}, PSNR {mean:.1f} dB "
            f"({self.psnr.min().item():.1f} to {self.psnr.max().item():.1f}), SSIM {ssim:.2f})"
        )

    def to_frame(self) -> Any:
        """Return a pandas data frame with one row per original; pandas must be installed."""
        try:
            from pandas import DataFrame
        except ImportError:
            raise LeakmeterError("to_frame needs the package pandas: pip install pandas") from None
        columns = {name: getattr(self, name) for name in ("pairs", "psnr", "ssim", "mse", "lpips")}
        return DataFrame({n: t.tolist() for n, t in columns.items() if t is not None})

    @property
    def worst(self) -> int:
        """The original that leaked most: the highest PSNR."""
        return int(self.psnr.argmax())

    @property
    def best(self) -> int:
        """The original that leaked least."""
        return int(self.psnr.argmin())

    def share_above(self, psnr: float) -> float:
        """Share of originals reconstructed at ``psnr`` dB or better."""
        return (self.psnr >= psnr).double().mean().item()


def images(found: Images, truth: Images, lpips: Lpips | None = None) -> ImageScores:
    """Pair reconstructions with originals and score every pair.

    An update does not tell the order of the examples, so each original gets the reconstruction
    that makes the total squared error (or LPIPS) smallest (linear sum assignment).

    Args:
        found: reconstructions, float [N, C, H, W] in [0, 1].
        truth: originals, same shape.
        lpips: decides the pairing in place of the squared error, and is measured too.

    Example:
        >>> pictures = torch.rand((2, 3, 16, 16))
        >>> images(pictures.flip(0), pictures).pairs.tolist()
        [1, 0]
    """
    found, truth = as_images(found), as_images(truth)
    if found.shape != truth.shape or found.ndim != 4 or len(found) == 0:
        raise LeakmeterError(
            f"found {tuple(found.shape)} and truth {tuple(truth.shape)} must be images "
            "[N, C, H, W] of the same shape"
        )
    check_measurable(found.shape[1:])
    found, truth = found.detach().cpu().double(), truth.detach().cpu().double()
    errors = squared_errors(truth, found)
    costs = errors if lpips is None else lpips.distances(truth, found)
    rows, columns = linear_sum_assignment(costs.numpy())
    pairs = torch.as_tensor(columns)
    mse = errors[rows, columns]
    ssim = [_ssim(a, b) for a, b in zip(found[pairs], truth, strict=True)]
    return ImageScores(
        pairs=pairs,
        mse=mse,
        psnr=-10 * mse.clamp_min(SMALLEST_MSE).log10(),
        ssim=torch.tensor(ssim, dtype=torch.float64),
        lpips=None if lpips is None else costs[rows, columns],
    )


def check_measurable(shape: Sequence[int]) -> None:
    """Refuse images of ``shape`` (C, H, W) that are smaller than SSIM's window."""
    if min(shape[1:]) < SSIM_WINDOW:
        raise LeakmeterError(
            f"images of {tuple(shape[1:])} are too small for SSIM: "
            f"use at least {SSIM_WINDOW} pixels a side"
        )


def squared_errors(a: Tensor, b: Tensor) -> Tensor:
    """Return the mean squared error of each image of ``a`` [N, ...] with each of ``b``: [N, M]."""
    return torch.stack([(b - image).square().flatten(1).mean(1) for image in a])


def label_accuracy(found: Tensor, truth: Tensor) -> float:
    """Share of the true labels that were found, order aside and repeats counted."""
    classes = int(max(found.max(), truth.max())) + 1
    counts = (torch.bincount(side.cpu(), minlength=classes) for side in (found, truth))
    return torch.minimum(*counts).sum().item() / len(truth)


def matching_rate(pairs: Tensor, first: Sequence[int], second: Sequence[int]) -> float:
    """Share of images whose partner in another epoch shows the same original (AGIC, table V).

    Args:
        pairs: [M], image i of the first epoch was paired with image ``pairs[i]`` of the second.
        first: which original each image of the first epoch shows, by :func:`images`' pairing.
        second: the same for the second epoch.
    """
    hits = [first[i] == second[j] for i, j in enumerate(pairs.tolist())]
    return float(sum(hits) / len(hits))


def _ssim(a: Tensor, b: Tensor) -> float:
    return float(
        structural_similarity(
            a.numpy(),
            b.numpy(),
            channel_axis=0,
            data_range=1.0,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
    )
