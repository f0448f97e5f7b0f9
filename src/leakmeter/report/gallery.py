"""Originals beside their reconstructions, as pictures embedded in the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from leakmeter.judge import Evidence
from leakmeter.measure import Scores

SHOWN = 128
"""Longest side, in CSS pixels, to which small images are enlarged; two fit on a phone."""

MOST_SHOWN = 200
"""Pictures of one attack on one configuration."""

MOST_LOSSLESS = 12_000_000
"""Above this many pixel values, an audit of several configurations shows compressed pictures."""


@dataclass(frozen=True)
class Picture:
    """An image ready for the page.

    Attributes:
        uri: the file itself, as a data URI.
        width: in CSS pixels, a whole multiple of the image's own.
        height: likewise.
        enlarged: whether it is shown larger than it is.
    """

    uri: str
    width: int
    height: int
    enlarged: bool


@dataclass(frozen=True)
class Likeness:
    """How much of one original leaked; ``lpips`` only if it was measured."""

    psnr: float
    ssim: float
    recognized: bool
    lpips: float | None = None


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
    score: Likeness | None = None


def exhibits(
    runs: Sequence[Evidence], class_names: Sequence[str], lossless: bool = True
) -> list[Exhibit]:
    """Return the images of one attack, the most leaked first, up to a limit."""
    places = [(run, index) for run in runs for index in range(count(run))]
    places.sort(key=lambda place: _leaked(*place), reverse=True)
    make = (_exhibit(run, index, class_names, lossless) for run, index in places[:MOST_SHOWN])
    return list(make)


def count(run: Evidence) -> int:
    """Count the originals, or the reconstructions if there is no truth."""
    return len(run.found.images) if run.truth is None else len(run.truth.images)


def _leaked(run: Evidence, index: int) -> float:
    """Return the PSNR, or a constant if there is no truth, which keeps the order."""
    return run.finding.scores.psnr[index] if run.finding else 0.0


def few(evidence: Sequence[Evidence]) -> bool:
    """Return whether the page stays reasonably small with every picture uncompressed."""
    return sum(run.found.images.numel() for run in evidence) <= MOST_LOSSLESS


def same_image(exhibit: Exhibit, shown: Sequence[Exhibit]) -> Exhibit | None:
    """Return the exhibit among ``shown`` that has the same original."""
    return next((each for each in shown if each.original == exhibit.original), None)


def clearest(shown: Sequence[Exhibit]) -> Exhibit | None:
    """Return the pair most alike in structure; PSNR alone would favor dark and empty images."""
    scored = [(each.score.ssim, each) for each in shown if each.score and each.original]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


def picture(image: Tensor, lossless: bool = True) -> Picture:
    """Encode a float image [C, H, W] in [0, 1]: gray, or its first three channels as colors."""
    pixels = image.detach().cpu().clamp(0, 1).mul(255).round().byte()
    array = pixels[0] if len(pixels) < 3 else pixels[:3].permute(1, 2, 0)
    file = io.BytesIO()
    shown = Image.fromarray(array.contiguous().numpy())
    if lossless:
        shown.save(file, format="PNG", optimize=True)
    else:
        shown.save(file, format="WEBP", quality=80)
    kind = "png" if lossless else "webp"
    height, width = pixels.shape[1:]
    zoom = max(1, SHOWN // max(height, width))
    return Picture(
        uri=f"data:image/{kind};base64," + base64.b64encode(file.getvalue()).decode(),
        width=width * zoom,
        height=height * zoom,
        enlarged=zoom > 1,
    )


def _exhibit(run: Evidence, index: int, class_names: Sequence[str], lossless: bool) -> Exhibit:
    place = index if run.finding is None else run.finding.scores.pairs[index]
    labels = run.found.labels if run.truth is None else run.truth.labels
    return Exhibit(
        client=run.client,
        index=index,
        class_name=_class_name(int(labels[place if run.truth is None else index]), class_names),
        found=picture(run.found.images[place], lossless),
        original=None if run.truth is None else picture(run.truth.images[index], lossless),
        score=None if run.finding is None else _likeness(run.finding.scores, index),
    )


def _likeness(scores: Scores, index: int) -> Likeness:
    lpips = None if scores.lpips is None else scores.lpips[index]
    return Likeness(scores.psnr[index], scores.ssim[index], scores.recognized[index], lpips)


def _class_name(label: int, class_names: Sequence[str]) -> str:
    return class_names[label] if label < len(class_names) else f"class {label}"
