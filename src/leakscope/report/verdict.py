"""The verdict: one sentence that a privacy officer understands.

Let r be the share of training images that an attack recognises over all clients and b the same
share for that attack on an update without signal. The attack with the highest r - b decides:
``leaks`` if r - b >= 1/2, ``leaks in part`` if r > b. An attack that recognises none but picks at
least half of the images more out of their line-ups than its baseline does leaks in part, too. Else
``could not break it``: failing to break something does not make it safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from leakscope.audit.evidence import Evidence
from leakscope.report.grouping import AttackEvidence, strongest_first

Level = Literal["leaks", "leaks in part", "could not break it", "not measured"]


@dataclass(frozen=True)
class Verdict:
    """What the report says first.

    Attributes:
        level: the status in a word or two.
        sentence: the finding.
        detail: what it rests on.
    """

    level: Level
    sentence: str
    detail: str


def verdict(evidence: Sequence[Evidence]) -> Verdict:
    """Judge by the strongest attack.

    Args:
        evidence: every attack on every client, at least one.
    """
    attacks = strongest_first(evidence)
    strongest = attacks[0]
    if not strongest.findings:
        return _not_measured(attacks)
    excess, total = strongest.recognised - strongest.baseline_recognised, len(strongest.psnr)
    if excess <= 0:
        return _picked_out(attacks) or _not_broken(attacks)
    return Verdict(
        level="leaks" if 2 * excess >= total else "leaks in part",
        sentence=f"{subject(strongest.recognised, total)} could be read out of "
        f"{_updates(strongest)} and recognised.",
        detail=f"Strongest attack: {effort(strongest)}. Run on random noise in place of the "
        f"update, the same attack gets {strongest.baseline_recognised} of {total} recognised: "
        "what exceeds that came out of the update.",
    )


def _picked_out(attacks: list[AttackEvidence]) -> Verdict | None:
    measured = [attack for attack in attacks if attack.findings]
    best = max(measured, key=lambda attack: attack.reidentified - attack.baseline_reidentified)
    hits, baseline, total = best.reidentified, best.baseline_reidentified, len(best.psnr)
    if 2 * (hits - baseline) < total:
        return None
    return Verdict(
        level="leaks in part",
        sentence=f"{subject(hits, total)} could be picked out of a line-up by what was read out "
        f"of {_updates(best)}, though the pictures are poor.",
        detail=f"Strongest attack: {effort(best)}. Run on random noise in place of the update, "
        f"the same attack picks out {baseline} of {total}. More iterations may sharpen the "
        "pictures.",
    )


def _not_broken(attacks: list[AttackEvidence]) -> Verdict:
    strongest = attacks[0]
    if strongest.recognised == 0:
        sentence = (
            "No attack tried here could read a recognisable training image out of "
            f"{_updates(strongest)}."
        )
    else:
        sentence = (
            f"The strongest attack recognised no more training images in {_updates(strongest)} "
            f"than in random noise ({strongest.recognised} against "
            f"{strongest.baseline_recognised} of {len(strongest.psnr)})."
        )
    return Verdict(
        level="could not break it",
        sentence=sentence,
        detail=f"Tried: {efforts(attacks)}. This is no proof that nothing leaks: "
        "a stronger attack or more iterations may succeed where these failed."
        + _unmodelled(attacks),
    )


def _unmodelled(attacks: list[AttackEvidence]) -> str:
    """A warning where the client's optimiser is not what the attacks predict."""
    protocols = [run.protocol for attack in attacks for run in attack.runs]
    others = {
        "momentum" if protocol.optimizer == "sgd" else protocol.optimizer
        for protocol in protocols
        if protocol.momentum or protocol.optimizer in ("adam", "adamw")
    }
    if not others:
        return ""
    used = " or ".join(sorted(map(str, others)))
    return (
        f" These attacks predict plain SGD, but the client used {used}: "
        "their failure says little about an attack that predicts it."
    )


def _not_measured(attacks: list[AttackEvidence]) -> Verdict:
    explained = max((attack.replay for attack in attacks if attack.replay), default=None)
    said = ""
    if explained is not None:
        said = (
            f" Training on what was found leads to the same update by {explained[0]:.2f} (1 is "
            f"fully); on what was found in noise of the same size, by {explained[1]:.2f}."
        )
    return Verdict(
        level="not measured",
        sentence="How much leaked cannot be measured without the original images: "
        "look at the pictures.",
        detail=f"Tried: {efforts(attacks)}. Whatever a person recognises in the pictures has "
        f"leaked.{said} Look at the final match too: the nearer to 0, the better the pictures "
        "explain the update. A good match with unrecognisable pictures does not show that nothing "
        "leaked.",
    )


def subject(recognised: int, total: int) -> str:
    """So many of so many images, as the start of a sentence."""
    if total == 1:
        return "The only training image"
    if recognised == total:
        return f"All {total} training images"
    return f"{recognised} of {total} training images"


def _updates(attack: AttackEvidence) -> str:
    count = len(attack.runs)
    return "this update" if count == 1 else f"these {count} updates"


def effort(attack: AttackEvidence) -> str:
    """An attack and its budget."""
    return f"{attack.name} ({attack.iterations:,} iterations)"


def efforts(attacks: Sequence[AttackEvidence]) -> str:
    """All attacks and their budgets."""
    return ", ".join(effort(attack) for attack in attacks)
