"""The table of numbers: one row per attack, over all clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

import torch

from leakscope.measure import interval
from leakscope.report.grouping import AttackEvidence


@dataclass(frozen=True)
class Mean:
    """A mean and its interval, ready to print; no bounds for a single value."""

    mean: str
    bounds: str


@dataclass(frozen=True)
class Quality:
    """How good the reconstructions of one attack are, ready to print.

    Attributes:
        recognised: "8 of 10".
        baseline_recognised: the same on an update without signal.
        psnr: mean and interval in dB.
        baseline_psnr: mean on an update without signal.
        most_leaked: highest PSNR of one image.
        ssim: mean and interval.
        reidentified: share of originals picked out of their line-ups.
        chance: the same for a blind guess.
        labels: share of true labels found, or that they were given.
        lpips: mean and interval, or ``None`` if it was not measured.
    """

    recognised: str
    baseline_recognised: str
    psnr: Mean
    baseline_psnr: str
    most_leaked: str
    ssim: Mean
    reidentified: str
    chance: str
    labels: str
    lpips: Mean | None


@dataclass(frozen=True)
class Row:
    """One attack.

    Attributes:
        attack: its name.
        iterations: spent on one client.
        match: final distance, mean over clients.
        seconds: spent on all clients.
        quality: what needs the truth, or ``None``.
        replay: mean replay score, or empty.
        baseline_replay: the same without an update.
        agreement: mean PSNR between two attempts, or empty.
    """

    attack: str
    iterations: str
    match: str
    seconds: str
    quality: Quality | None
    replay: str = ""
    baseline_replay: str = ""
    agreement: str = ""


def row(attack: AttackEvidence) -> Row:
    """The numbers of one attack."""
    replay, baseline = attack.replay or (None, None)
    finals = [run.found.history["match"][-1].item() for run in attack.runs]
    return Row(
        attack=attack.name,
        iterations=f"{attack.iterations:,}",
        match=f"{fmean(finals):.3g}",
        seconds=f"{sum(run.found.seconds for run in attack.runs):,.0f}",
        quality=_quality(attack) if attack.findings else None,
        replay="" if replay is None else f"{replay:.3f}",
        baseline_replay="" if baseline is None else f"{baseline:.3f}",
        agreement=f"{fmean(attack.agreement):.1f}" if attack.agreement else "",
    )


def _quality(attack: AttackEvidence) -> Quality:
    findings, total = attack.findings, len(attack.psnr)
    hits = [hit for finding in findings for hit in finding.scores.reidentified]
    ssim = [value for finding in findings for value in finding.scores.ssim]
    lpips = [value for finding in findings for value in finding.scores.lpips or ()]
    # Clients may have different numbers of images: weigh each by them.
    weights = [len(finding.scores.psnr) for finding in findings]
    chance = fmean((finding.chance for finding in findings), weights)
    labels = fmean((finding.scores.label_accuracy for finding in findings), weights)
    return Quality(
        recognised=f"{attack.recognised} of {total}",
        baseline_recognised=f"{attack.baseline_recognised} of {total}",
        psnr=_with_interval(attack.psnr, ".1f"),
        baseline_psnr=f"{fmean(attack.baseline_psnr):.1f}",
        most_leaked=f"{max(attack.psnr):.1f}",
        ssim=_with_interval(ssim, ".2f"),
        reidentified=f"{fmean(hits):.0%}",
        chance=f"{chance:.0%}",
        labels="given" if attack.runs[0].found.labels_known else f"{labels:.0%}",
        lpips=_with_interval(lpips, ".2f") if lpips else None,
    )


def _with_interval(values: list[float], form: str) -> Mean:
    found = interval(torch.tensor(values, dtype=torch.float64))
    bounds = "" if math.isnan(found.low) else f"[{found.low:{form}}, {found.high:{form}}]"
    return Mean(f"{found.mean:{form}}", bounds)
