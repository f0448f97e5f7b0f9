"""Evidence put together by configuration and attack, the strongest attack first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from leakscope.audit.evidence import Configuration, Evidence, Provenance
from leakscope.errors import LeakscopeError
from leakscope.measure import Finding, Interval
from leakscope.report.shares import excess


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
    def replay(self) -> tuple[float, float] | None:
        """Mean replay score and that of the baseline, where clients can be replayed."""
        pairs = [
            (run.replay, run.baseline_replay)
            for run in self.runs
            if run.replay is not None and run.baseline_replay is not None
        ]
        return (fmean(p[0] for p in pairs), fmean(p[1] for p in pairs)) if pairs else None

    @property
    def agreement(self) -> list[float]:
        """PSNR between two attempts, of every image that was looked for twice."""
        return [value for run in self.runs for value in run.agreement]

    @property
    def leakage(self) -> Interval:
        """Share recognised beyond the baseline's; only where the truth is known."""
        return excess(self.recognised, self.baseline_recognised, len(self.psnr))

    @property
    def strength(self) -> tuple[float, float]:
        """Share recognised beyond the baseline's, then mean PSNR; unmeasured attacks come last."""
        if not self.findings:
            return (-math.inf, 0.0)
        beyond = self.recognised - self.baseline_recognised
        return (beyond / len(self.psnr), fmean(self.psnr))


@dataclass(frozen=True, eq=False)
class Group:
    """One configuration and everything that was tried on its clients.

    Attributes:
        configuration: how the clients trained and sent.
        attacks: the strongest first.
    """

    configuration: Configuration
    attacks: tuple[AttackEvidence, ...]

    @property
    def name(self) -> str:
        """The label in words: a reader wonders what ``none`` is."""
        label = self.configuration.label
        return "no defence" if label == "none" else label

    @property
    def evidence(self) -> list[Evidence]:
        """Of all attacks."""
        return [run for attack in self.attacks for run in attack.runs]

    @property
    def strongest(self) -> AttackEvidence:
        """The attack that decides."""
        return self.attacks[0]

    @property
    def accuracy(self) -> float | None:
        """Mean over the repetitions, or ``None`` if it was not measured."""
        utility = self.configuration.utility
        return None if utility is None else fmean(utility.accuracy)


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


def grouped(evidence: Sequence[Evidence], provenance: Provenance) -> list[Group]:
    """All evidence by configuration, in the order of ``provenance``."""
    if not evidence:
        raise LeakscopeError("evidence is empty: run at least one attack on one client")
    runs: dict[str, list[Evidence]] = {}
    for run in evidence:
        runs.setdefault(run.configuration, []).append(run)
    known = {each.label: each for each in provenance.configurations}
    for label in runs:
        if label not in known:
            raise LeakscopeError(
                f"evidence of configuration {label!r}, but provenance.configurations has only "
                f"{', '.join(map(repr, known))}"
            )
    return [
        Group(configuration, tuple(strongest_first(runs[label])))
        for label, configuration in known.items()
        if label in runs
    ]
