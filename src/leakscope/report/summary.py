"""The first screen: what leaks, under which assumptions, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.audit.evidence import Evidence, Provenance
from leakscope.report.advice import IGNORED, Advice, Judged, advise
from leakscope.report.assumptions import in_short
from leakscope.report.grouping import AttackEvidence, grouped, strongest_first
from leakscope.report.verdict import Level, efforts

MOST_NAMED = 5
"""So many leaking configurations are named on the first screen; the matrix has them all."""

_WORST_FIRST: tuple[Level, ...] = (
    "leaks",
    "leaks in part",
    "could not break it",
    "not measured",
)


@dataclass(frozen=True, eq=False)
class Summary:
    """What an audit found, in plain words.

    Attributes:
        level: of the configuration that leaks most.
        sentence: the finding.
        detail: what it rests on.
        assumptions: what the attacker was given, in short; empty for one configuration.
        advice: what to do; empty for one configuration.
        recommended: label of the configuration that ``advice`` names, or ``None``.
        judged: every configuration with its verdict.
    """

    level: Level
    sentence: str
    detail: str
    assumptions: str
    advice: str
    recommended: str | None
    judged: tuple[Judged, ...]

    @property
    def worst(self) -> Judged:
        """The configuration that leaks most."""
        return min(self.judged, key=_mildness)


def summary(evidence: Sequence[Evidence], provenance: Provenance) -> Summary:
    """Judge every configuration by its strongest attack, and all of them together.

    Args:
        evidence: every attack on every client of every configuration, at least one.
        provenance: names the configurations.
    """
    judged = tuple(Judged(group) for group in grouped(evidence, provenance))
    worst = min(judged, key=_mildness)
    if len(judged) == 1:
        detail = worst.verdict.detail
        for name in worst.group.configuration.ignored:
            detail += f" The defence {name} was {IGNORED}."
        found = worst.verdict
        return Summary(found.level, found.sentence, detail, "", "", None, judged)
    level = worst.verdict.level
    measured = level != "not measured"
    advice = advise(judged) if measured else Advice("")
    attacks = strongest_first(evidence)
    return Summary(
        level=level,
        sentence=_sentence(judged, worst) if measured else worst.verdict.sentence,
        detail=_detail(judged) if measured else worst.verdict.detail,
        assumptions=f"{in_short(attacks)} {_tried(attacks)}.",
        advice=advice.text,
        recommended=advice.label,
        judged=judged,
    )


def _tried(attacks: Sequence[AttackEvidence]) -> str:
    """All attacks; a budget they share is said once."""
    budgets = {attack.iterations for attack in attacks}
    if len(attacks) == 1 or len(budgets) > 1:
        return f"Tried: {efforts(attacks)}"
    names = ", ".join(attack.name for attack in attacks)
    return f"Tried, each with {budgets.pop():,} iterations: {names}"


def _mildness(each: Judged) -> tuple[int, float, float]:
    """Sorts what leaks most first."""
    share, psnr = each.group.strongest.strength
    return (_WORST_FIRST.index(each.verdict.level), -share, -psnr)


def _sentence(judged: Sequence[Judged], worst: Judged) -> str:
    leaking = [each for each in judged if each.leaks]
    measured = [each for each in judged if each.leaks or each.held]
    those = "" if len(measured) == len(judged) else " that could be measured"
    if not leaking:
        them = f"any of the {len(measured)}" if len(measured) > 1 else "the only one of the"
        return f"No attack tried here could break {them} configurations{those}."
    if len(measured) == 1:
        count = f"The only configuration{those} leaks"
    elif len(leaking) == len(measured):
        count = f"All {len(measured)} configurations{those} leak"
    else:
        count = f"{len(leaking)} of {len(measured)} configurations{those} leak"
        count += "s" if len(leaking) == 1 else ""
    found = worst.verdict.sentence
    return f"{count}: with {worst.quoted}, {found[0].lower()}{found[1:]}"


def _detail(judged: Sequence[Judged]) -> str:
    """Who leaked how much, with the baseline beside it."""
    leaking = sorted((each for each in judged if each.leaks), key=_mildness)
    if not leaking:
        return (
            "This is no proof that nothing leaks: a stronger attack or more iterations may succeed."
        )
    counts = []
    for each in leaking[:MOST_NAMED]:
        attack = each.group.strongest
        seen, lucky, verb = attack.recognised, attack.baseline_recognised, ""
        if seen <= lucky:
            attack = max(each.group.attacks, key=lambda a: a.reidentified - a.baseline_reidentified)
            seen, lucky, verb = attack.reidentified, attack.baseline_reidentified, " picked out"
        counts.append(f"{each.quoted} {seen} of {len(attack.psnr)}{verb} ({lucky})")
    more = len(leaking) - MOST_NAMED
    others = f"; and {more} more below" if more > 0 else ""
    return (
        "Images recognised by the strongest attack, and in brackets by the same attack on random "
        f"noise in place of the update: {'; '.join(counts)}{others}. What exceeds the brackets "
        "came out of the updates."
    )
