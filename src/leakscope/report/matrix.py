"""The matrix at a glance: a row per configuration, a column per attack, and what each row costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.report.advice import Judged
from leakscope.report.costs import WHOSE, epsilon, percent, size, spread
from leakscope.report.grouping import AttackEvidence
from leakscope.report.summary import Summary
from leakscope.report.verdict import Verdict


@dataclass(frozen=True)
class Cell:
    """One attack on one configuration, ready to print.

    Attributes:
        panel: id of its pictures.
        share: recognised beyond the baseline, from 0 to 1: the colour.
        recognised: "6 of 8"; empty where nothing could be measured.
        baseline: the same on noise, where that is not none.
        reidentified: share picked out of line-ups.
        strongest: whether it decides the row.
    """

    panel: str
    share: float = 0.0
    recognised: str = ""
    baseline: str = ""
    reidentified: str = ""
    strongest: bool = False


@dataclass(frozen=True)
class Line:
    """One configuration, ready to print.

    Attributes:
        name: of the configuration.
        verdict: on it.
        ignored: names of its defences that attacks make nothing of.
        recommended: whether it is what to do.
        cells: one per attack; ``None`` where it was not tried.
        accuracy: mean, or empty.
        spread: of the repetitions, or empty.
        epsilon: or empty.
        protects: what epsilon is about, or empty.
        sent: bytes by one client in one round, or empty.
    """

    name: str
    verdict: Verdict
    ignored: tuple[str, ...]
    recommended: bool
    cells: tuple[Cell | None, ...]
    accuracy: str
    spread: str
    epsilon: str
    protects: str
    sent: str


def matrix(summary: Summary, columns: Sequence[str]) -> list[Line]:
    """Every configuration in order.

    Args:
        summary: of the audit.
        columns: names of the attacks.
    """
    return [_line(number, each, summary, columns) for number, each in enumerate(summary.judged)]


def panel_id(row: int, column: int) -> str:
    """Where the pictures of one cell are."""
    return f"panel-{row}-{column}"


def _line(number: int, each: Judged, summary: Summary, columns: Sequence[str]) -> Line:
    configuration, proven = each.group.configuration, each.group.configuration.guarantee
    attacks = {attack.name: attack for attack in each.group.attacks}
    cells = [
        _cell(panel_id(number, column), attacks[name], attacks[name] is each.group.strongest)
        if name in attacks
        else None
        for column, name in enumerate(columns)
    ]
    return Line(
        name=each.group.name,
        verdict=each.verdict,
        ignored=configuration.ignored,
        recommended=configuration.label == summary.recommended,
        cells=tuple(cells),
        accuracy="" if each.group.accuracy is None else percent(each.group.accuracy),
        spread="" if each.utility is None else spread(each.utility),
        epsilon=epsilon(proven),
        protects="" if proven is None else WHOSE[proven.protects],
        sent=size(configuration.bytes_sent),
    )


def _cell(panel: str, attack: AttackEvidence, strongest: bool) -> Cell:
    if not attack.findings:
        return Cell(panel)
    total, lucky = len(attack.psnr), attack.baseline_recognised
    return Cell(
        panel=panel,
        share=max(0.0, (attack.recognised - lucky) / total),
        recognised=f"{attack.recognised} of {total}",
        baseline=f"{lucky} of {total}" if lucky else "",
        reidentified=percent(attack.reidentified / total),
        strongest=strongest,
    )
