"""Evidence put together by attack, the strongest first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from leakscope.audit.evidence import Evidence
from leakscope.measure import Finding


@dataclass(frozen=True, eq=False)
class AttackEvidence:
    """One attack on all its clients.

    Attributes:
        name: of the recipe.
        runs: one per client, by client.
    """

    name: str
    runs: tuple[Evidence, ...]

    @property
    def findings(self) -> list[Finding]:
        """The measurements; none where the truth is missing."""
        return [run.finding for run in self.runs if run.finding is not None]

    @property
    def iterations(self) -> int:
        """The most that were spent on one client."""
        return max(len(run.found.history["match"]) for run in self.runs)

    @property
    def psnr(self) -> list[float]:
        """Of every original, over all clients."""
        return [value for finding in self.findings for value in finding.scores.psnr]

    @property
    def baseline_psnr(self) -> list[float]:
        """The same for the attack on an update without signal."""
        return [value for finding in self.findings for value in finding.baseline.psnr]

    @property
    def recognised(self) -> int:
        """How many originals were recognised."""
        return sum(sum(finding.scores.recognised) for finding in self.findings)

    @property
    def baseline_recognised(self) -> int:
        """The same for the attack on an update without signal."""
        return sum(sum(finding.baseline.recognised) for finding in self.findings)

    @property
    def reidentified(self) -> int:
        """How many originals were picked out of their line-up, close or not."""
        return sum(sum(finding.scores.reidentified) for finding in self.findings)

    @property
    def baseline_reidentified(self) -> int:
        """The same for the attack on an update without signal."""
        return sum(sum(finding.baseline.reidentified) for finding in self.findings)

    @property
    def strength(self) -> tuple[float, float]:
        """Share recognised beyond the baseline's, then mean PSNR; unmeasured attacks come last."""
        if not self.findings:
            return (-math.inf, 0.0)
        excess = self.recognised - self.baseline_recognised
        return (excess / len(self.psnr), fmean(self.psnr))


def strongest_first(evidence: Sequence[Evidence]) -> list[AttackEvidence]:
    """All evidence by attack; attacks of equal strength keep the order they came in."""
    by_name: dict[str, list[Evidence]] = {}
    for run in evidence:
        by_name.setdefault(run.attack, []).append(run)
    attacks = [
        AttackEvidence(name, tuple(sorted(runs, key=lambda run: run.client)))
        for name, runs in by_name.items()
    ]
    return sorted(attacks, key=lambda attack: attack.strength, reverse=True)
