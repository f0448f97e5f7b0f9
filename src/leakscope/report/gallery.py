"""Originals beside their reconstructions, as pictures that live inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from leakscope.audit.evidence import Evidence
from leakscope.measure import Scores
from leakscope.report.grouping import AttackEvidence

SHOWN = 128
"""Longest side in CSS pixels that small images are enlarged to; two fit on a phone."""


@dataclass(frozen=True)
class Picture:
    """An image ready for the page.

    Attributes:
        uri: the PNG itself, as a data URI.
        width: in CSS pixels, a whole multiple of the image's own.
        height: likewise.
        enlarged: whether it is shown larger than it is.
    """

    uri: str
    width: int
    height: int
    enlarged: bool


@dataclass(frozen=True)
class Score:
    """How much of one original leaked."""

    psnr: float
    ssim: float
    recognised: bool


@dataclass(frozen=True)
class Exhibit:
    """One reconstruction, with its original and score where the truth is known.

    Attributes:
        client: index of the client.
        index: of the original in the client's data, or of the reconstruction if there is none.
        class_name: of the original, or what the attacker took it for.
        found: the reconstruction.
        original: what the client had.
        score: how alike they are.
    """

    client: int
    index: int
    class_name: str
    found: Picture
    original: Picture | None = None
    score: Score | None = None

    @property
    def leakage(self) -> float:
        """PSNR; equal where there is no truth, which keeps the order."""
        return self.score.psnr if self.score else 0.0


def exhibits(attack: AttackEvidence, class_names: Sequence[str]) -> list[Exhibit]:
    """Every image of one attack, the most leaked first."""
    shown: list[Exhibit] = []
    for run in attack.runs:
        shown += _alone(run, class_names) if run.finding is None else _pairs(run, class_names)
    return sorted(shown, key=lambda exhibit: exhibit.leakage, reverse=True)


def clearest(shown: Sequence[Exhibit]) -> Exhibit | None:
    """The pair most alike in structure: highest PSNR alone would favour dark and empty images."""
    scored = [(exhibit.score.ssim, exhibit) for exhibit in shown if exhibit.score]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


def picture(image: Tensor) -> Picture:
    """A float image [C, H, W] in [0, 1] as PNG: grey, or its first three channels as colours."""
    pixels = image.detach().cpu().clamp(0, 1).mul(255).round().byte()
    array = pixels[0] if len(pixels) < 3 else pixels[:3].permute(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(array.contiguous().numpy()).save(file, format="PNG", optimize=True)
    height, width = pixels.shape[1:]
    zoom = max(1, SHOWN // max(height, width))
    return Picture(
        uri="data:image/png;base64," + base64.b64encode(file.getvalue()).decode(),
        width=width * zoom,
        height=height * zoom,
        enlarged=zoom > 1,
    )


def _pairs(run: Evidence, class_names: Sequence[str]) -> list[Exhibit]:
    assert run.truth is not None
    assert run.finding is not None
    scores = run.finding.scores
    return [
        Exhibit(
            client=run.client,
            index=index,
            class_name=_class_name(label, class_names),
            found=picture(run.found.images[scores.pairs[index]]),
            original=picture(run.truth.images[index]),
            score=_score(scores, index),
        )
        for index, label in enumerate(run.truth.labels.tolist())
    ]


def _alone(run: Evidence, class_names: Sequence[str]) -> list[Exhibit]:
    return [
        Exhibit(run.client, index, _class_name(label, class_names), picture(image))
        for index, (image, label) in enumerate(
            zip(run.found.images, run.found.labels.tolist(), strict=True)
        )
    ]


def _score(scores: Scores, index: int) -> Score:
    return Score(scores.psnr[index], scores.ssim[index], scores.recognised[index])


def _class_name(label: int, class_names: Sequence[str]) -> str:
    return class_names[label] if label < len(class_names) else f"class {label}"
