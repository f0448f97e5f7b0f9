"""Measures how much of a sentence was read out of an update."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakmeter.errors import LeakmeterError
from leakmeter.measure.image import label_accuracy


@dataclass(frozen=True)
class TextScores:
    """Means over the true sentences, 0 to 1.

    Attributes:
        token_accuracy: share of words found in their correct place.
        word_recall: share of words found anywhere in the sentence, repeats counted.
    """

    token_accuracy: float
    word_recall: float


def sentences(found: Tensor, truth: Tensor) -> TextScores:
    """Score reconstructed sentences; meaningful only beside those of :func:`signal_free`.

    An update does not tell the order of its sentences, so each true one is set beside the
    reconstruction that makes the total token accuracy largest.

    Args:
        found: tokens [N, words].
        truth: tokens, same shape.
    """
    if found.shape != truth.shape or found.ndim != 2 or 0 in found.shape:
        raise LeakmeterError(
            f"found {tuple(found.shape)} and truth {tuple(truth.shape)} must be tokens "
            "[N, words] of the same shape"
        )
    found, truth = found.cpu(), truth.cpu()
    accuracy = (truth[:, None] == found[None]).double().mean(2)
    rows, columns = linear_sum_assignment(accuracy.numpy(), maximize=True)
    recalls = [label_accuracy(found[b], truth[a]) for a, b in zip(rows, columns, strict=True)]
    return TextScores(
        token_accuracy=accuracy[rows, columns].mean().item(),
        word_recall=sum(recalls) / len(recalls),
    )
