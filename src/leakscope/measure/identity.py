"""Re-identification: could someone pick the original out of a line-up?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.errors import LeakscopeError
from leakscope.measure.image import squared_errors


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
    found: Tensor, truth: Tensor, labels: Tensor, pool: Tensor, pool_labels: Tensor
) -> Identification:
    """Whether each original is the nearest to its reconstruction among images of its class.

    Args:
        found: reconstructions in the order of the originals, [N, C, H, W].
        truth: originals, [N, C, H, W].
        labels: their classes, [N].
        pool: images the client did not have, [M, C, H, W].
        pool_labels: their classes, [M]. A class with none there is set beside the whole pool.
    """
    if len(pool) == 0:
        raise LeakscopeError("pool is empty: a line-up needs images the client did not have")
    hits, chances = [], []
    for reconstruction, original, label in zip(found, truth, labels, strict=True):
        same = pool_labels == label
        others = pool[same] if same.any() else pool
        lineup = torch.cat([original[None], others])
        errors = squared_errors(reconstruction[None], lineup)[0]
        hits.append(bool((errors[0] < errors[1:]).all()))
        chances.append(1 / len(lineup))
    return Identification(hits=torch.tensor(hits), chance=sum(chances) / len(chances))
