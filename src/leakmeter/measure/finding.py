"""One attack on one client, measured."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.measure.identity import reidentify
from leakmeter.measure.image import images, label_accuracy
from leakmeter.measure.lpips import Lpips

RECOGNIZABLE_DB = 18.0
"""Below this PSNR an image is visibly corrupted."""


class Scores(BaseModel):
    """Numbers for one set of reconstructions; lists have one value per original.

    Attributes:
        pairs: original ``i`` is set beside reconstruction ``pairs[i]``.
        psnr: in dB.
        ssim: structural similarity.
        mse: mean squared error.
        reidentified: whether the original was the nearest of its line-up.
        label_accuracy: share of true labels found.
        lpips: how different the two look, 0 being the same, or ``None`` if it was not measured.
    """

    model_config = ConfigDict(frozen=True)

    pairs: list[int]
    psnr: list[float]
    ssim: list[float]
    mse: list[float]
    reidentified: list[bool]
    label_accuracy: float
    lpips: list[float] | None = None

    @property
    def recognized(self) -> list[bool]:
        """Images both close to the original (18 dB) and picked out of the line-up."""
        return [
            close >= RECOGNIZABLE_DB and hit
            for close, hit in zip(self.psnr, self.reidentified, strict=True)
        ]


class Finding(BaseModel):
    """What one attack found at one client.

    Attributes:
        scores: scores of the attack.
        baseline: scores of the same attack on an update that carries no signal.
        chance: re-identification rate of a blind guess.
    """

    model_config = ConfigDict(frozen=True)

    scores: Scores
    baseline: Scores
    chance: float


def score(
    found: Reconstruction,
    truth: Tensor,
    labels: Tensor,
    pool: Tensor,
    pool_labels: Tensor,
    lpips: Lpips | None = None,
) -> tuple[Scores, float]:
    """Score a reconstruction against the truth; also return a blind guess's re-identification rate.

    Args:
        found: what an attack found.
        truth: the client's images, [N, C, H, W] in [0, 1].
        labels: their classes, [N].
        pool: images the client did not have, for the line-ups, [M, C, H, W].
        pool_labels: their classes, [M].
        lpips: decides pairing and the nearest image, in place of the squared error.
    """
    scores = images(found.images, truth, lpips)
    paired = found.images[scores.pairs]
    line_ups = reidentify(paired, truth, labels, pool, pool_labels, lpips)
    numbers = Scores(
        pairs=scores.pairs.tolist(),
        psnr=scores.psnr.tolist(),
        ssim=scores.ssim.tolist(),
        mse=scores.mse.tolist(),
        reidentified=line_ups.hits.tolist(),
        label_accuracy=label_accuracy(found.labels, labels),
        lpips=None if scores.lpips is None else scores.lpips.tolist(),
    )
    return numbers, line_ups.chance


def measure(
    found: Reconstruction,
    baseline: Reconstruction,
    truth: Tensor,
    labels: Tensor,
    pool: Tensor,
    pool_labels: Tensor,
    lpips: Lpips | None = None,
) -> Finding:
    """Score a reconstruction and its no-update baseline against the truth; see :func:`score`."""
    scores, chance = score(found, truth, labels, pool, pool_labels, lpips)
    nothing, _ = score(baseline, truth, labels, pool, pool_labels, lpips)
    return Finding(scores=scores, baseline=nothing, chance=chance)
