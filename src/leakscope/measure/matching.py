"""Whether images of several updates were paired rightly."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def matching_rate(pairs: Tensor, first: Sequence[int], second: Sequence[int]) -> float:
    """Share of images whose partner in another epoch shows the same original (AGIC, table V).

    Args:
        pairs: [M], image i of the first epoch was paired with image ``pairs[i]`` of the second.
        first: which original each image of the first epoch shows, by :func:`images`' pairing.
        second: the same for the second epoch.
    """
    hits = [first[i] == second[j] for i, j in enumerate(pairs.tolist())]
    return float(sum(hits) / len(hits))
