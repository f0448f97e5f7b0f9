"""Re-identification: could someone pick the original out of a line-up?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakmeter.errors import LeakmeterError
from leakmeter.measure.image import squared_errors
from leakmeter.measure.lpips import ROUNDING, Lpips


@dataclass(frozen=True, eq=False)
class Identification:
    """Result of one line-up per original.

    Attributes:
        hits: [N] booleans: the original was the nearest of its line-up.
        chance: the mean rate a blind guess would reach.
    """

    hits: Tensor
    chance: float

    @property
    def rate(self) -> float:
        """Share of originals that were picked out."""
        return self.hits.double().mean().item()


def reidentify(
    found: Tensor,
    truth: Tensor,
    labels: Tensor,
    pool: Tensor,
    pool_labels: Tensor,
    lpips: Lpips | None = None,
) -> Identification:
    """Test whether each original is the nearest to its reconstruction among images of its class.

    Args:
        found: reconstructions in the order of the originals, [N, C, H, W].
        truth: originals, [N, C, H, W].
        labels: their classes, [N].
        pool: images the client did not have, [M, C, H, W].
        pool_labels: their classes, [M]. A class with none there is set beside the whole pool.
        lpips: decides which image is nearest, in place of the squared error. It costs one forward
            pass for each image of the line-ups.
    """
    if len(pool) == 0:
        raise LeakmeterError("pool is empty: a line-up needs images the client did not have")
    same = [pool_labels == label for label in labels]
    others = [mask if mask.any() else torch.ones_like(mask) for mask in same]
    if lpips is None:
        hits = _nearest_by_error(found, truth, pool, others)
    else:
        hits = _nearest_by_lpips(found, truth, pool, others, lpips)
    chances = [1 / (1 + int(mask.sum())) for mask in others]
    return Identification(hits=torch.tensor(hits), chance=sum(chances) / len(chances))


def _nearest_by_error(
    found: Tensor, truth: Tensor, pool: Tensor, others: list[Tensor]
) -> list[bool]:
    hits = []
    for reconstruction, original, mask in zip(found, truth, others, strict=True):
        lineup = torch.cat([original[None], pool[mask]])
        errors = squared_errors(reconstruction[None], lineup)[0]
        hits.append(bool((errors[0] < errors[1:]).all()))
    return hits


def _nearest_by_lpips(
    found: Tensor, truth: Tensor, pool: Tensor, others: list[Tensor], lpips: Lpips
) -> list[bool]:
    """Do the same with LPIPS; each pool image is embedded once, however many line-ups it is in."""
    seen = torch.stack(others).any(0)
    distances = lpips.distances(found, pool[seen])
    own = lpips.distance(found, truth) + ROUNDING
    return [
        bool((mine < row[mask[seen].cpu()]).all())
        for mine, row, mask in zip(own, distances, others, strict=True)
    ]
