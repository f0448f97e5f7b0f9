"""The verdict on one configuration: a sentence that a privacy officer understands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from leakmeter.judge.results import AttackResult
from leakmeter.judge.rule import Leak, Level, worst
from leakmeter.update import Protocol


class Verdict(NamedTuple):
    """The first statement of the report.

    Attributes:
        level: the status in a word or two.
        sentence: the finding.
        detail: what it rests on.
    """

    level: Level
    sentence: str
    detail: str


def verdict(attacks: Sequence[AttackResult], protocols: Sequence[Protocol]) -> Verdict:
    """Judge by the worst attack, and describe the strongest one.

    Args:
        attacks: all attacks on a configuration, the strongest first, at least one.
        protocols: what the attacks were told about the clients.
    """
    strongest = attacks[0]
    if strongest.leak is None:
        return _not_measured(attacks)
    level = worst(attack.level for attack in attacks)
    if strongest.leak.share <= 0:
        return _not_broken(attacks, protocols)
    said = _recognized if strongest.leak.basis == "recognized" else _picked_out
    return Verdict(level, *said(strongest, strongest.leak))


def _recognized(attack: AttackResult, leak: Leak) -> tuple[str, str]:
    return (
        f"{subject(leak.hits, leak.total)} could be read out of {_updates(attack)} and recognized.",
        f"Strongest attack: {effort(attack)}. Run on random noise in place of the update, the same "
        f"attack gets {leak.baseline} of {leak.total} recognized: what exceeds that came out of "
        "the update.",
    )


def _picked_out(attack: AttackResult, leak: Leak) -> tuple[str, str]:
    hits = 0 if attack.recognized is None else attack.recognized.hits
    poor = f", {hits} of them well enough to be recognized" if hits else ""
    return (
        f"{subject(leak.hits, leak.total)} could be picked out of a line-up by what was read out "
        f"of {_updates(attack)}{poor or ', though the pictures are poor'}.",
        f"Strongest attack: {effort(attack)}. Run on random noise in place of the update, the same "
        f"attack picks out {leak.baseline} of {leak.total}. More iterations may sharpen the "
        "pictures.",
    )


def _not_broken(attacks: Sequence[AttackResult], protocols: Sequence[Protocol]) -> Verdict:
    strongest = attacks[0]
    hits, lucky = strongest.recognized, strongest.baseline_recognized
    if hits is None or lucky is None or hits.hits == 0:
        sentence = (
            "No attack tried here could read a recognizable training image out of "
            f"{_updates(strongest)}."
        )
    else:
        sentence = (
            f"The strongest attack recognized no more training images in {_updates(strongest)} "
            f"than in random noise ({hits.hits} against {lucky.hits} of {hits.total})."
        )
    return Verdict(
        level="could not break it",
        sentence=sentence,
        detail=f"Tried: {efforts(attacks)}. This is no proof that nothing leaks: "
        "a stronger attack or more iterations may succeed where these failed."
        + _unmodeled(protocols),
    )


def _unmodeled(protocols: Sequence[Protocol]) -> str:
    """Warn if the client's optimizer is not the one the attacks predict."""
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


def _not_measured(attacks: Sequence[AttackResult]) -> Verdict:
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
        detail=f"Tried: {efforts(attacks)}. Whatever a person recognizes in the pictures has "
        f"leaked.{said} Look at the final match too: the nearer to 0, the better the pictures "
        "explain the update. A good match with unrecognizable pictures does not show that nothing "
        "leaked.",
    )


def subject(hits: int, total: int) -> str:
    """Phrase a count of images as the start of a sentence."""
    if total == 1:
        return "The only training image"
    if hits == total:
        return f"All {total} training images"
    return f"{hits} of {total} training images"


def _updates(attack: AttackResult) -> str:
    count = len(attack.clients)
    return "this update" if count == 1 else f"these {count} updates"


def effort(attack: AttackResult) -> str:
    """Describe an attack and its budget."""
    return f"{attack.attack} ({attack.iterations:,} iterations)"


def efforts(attacks: Sequence[AttackResult]) -> str:
    """Describe all attacks and their budgets."""
    return ", ".join(effort(attack) for attack in attacks)
