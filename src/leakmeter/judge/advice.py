"""Recommends the cheapest configuration that no attack could break, with its caveats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakmeter.judge.evidence import Utility
from leakmeter.judge.results import ConfigurationResult
from leakmeter.judge.words import learns, percent, promise, size
from leakmeter.measure import share

IGNORED = "tested only against attacks that do not know it"
"""What is said of a defense that no attack adapts to."""


@dataclass(frozen=True)
class Advice:
    """A recommendation.

    Attributes:
        text: a few sentences.
        label: label of the configuration they recommend, or ``None``.
    """

    text: str
    label: str | None = None


def advise(judged: Sequence[ConfigurationResult]) -> Advice:
    """Derive advice from the verdicts.

    Args:
        judged: every configuration, at least two.
    """
    held = [each for each in judged if each.held]
    costed = [each for each in held if each.utility is not None]
    if costed:
        # Against attacks that do not know it, holding means little.
        among = [each for each in costed if not each.ignored] or costed
        best = max(among, key=_accuracy)
        sentences = [*_choice(best, among, judged), *_caveats(best, costed, judged)]
        return Advice(" ".join(sentences), best.label)
    if held:
        return _uncosted(held)
    leaking = [each for each in judged if each.leaks]
    return _nothing_held(leaking) if leaking else Advice("")


def undefended(
    among: Sequence[ConfigurationResult], beside: ConfigurationResult
) -> ConfigurationResult | None:
    """Find another configuration without a defense: of the same setting, else the first."""
    plain = [each for each in among if each.defense == "none"]
    setting = beside.setting
    same = [each for each in plain if each.setting == setting]
    return next((each for each in [*same, *plain] if each is not beside), None)


def _choice(
    best: ConfigurationResult,
    held: Sequence[ConfigurationResult],
    judged: Sequence[ConfigurationResult],
) -> list[str]:
    """Say which configuration to use, why, and at what cost."""
    other = undefended(judged, best)
    only = len(held) == 1
    scope = "all tried here" if not any(each.ignored for each in judged) else "those attacks know"
    why = f"alone of {scope} held" if only else f"is the most accurate of {len(held)} that held"
    first = next((each for each in judged if each.defense == "none"), None)
    if best is first:
        start = f"These attacks give no reason to change anything: {best.quoted} {why} against them"
    else:
        start = f"Use {best.quoted}: it {why} against every attack tried"
    price = [f"Accuracy {percent(_accuracy(best))}{_beside(best, other)}"]
    if promise(best):
        price.append(f"guarantee {promise(best)}")
    if best.bytes_sent:
        sent = f"{size(best.bytes_sent)} sent per client and round"
        if other is not None and other.bytes_sent != best.bytes_sent:
            sent += f" (instead of {size(other.bytes_sent)})"
        price.append(sent)
    return [f"{start}.", f"{'; '.join(price)}."]


def _beside(best: ConfigurationResult, other: ConfigurationResult | None) -> str:
    """Give the accuracy of ``other`` for comparison."""
    if other is None or other.utility is None:
        return ""
    return f" (with {other.quoted} {percent(_accuracy(other))})"


def _caveats(
    best: ConfigurationResult,
    costed: Sequence[ConfigurationResult],
    judged: Sequence[ConfigurationResult],
) -> list[str]:
    """List what a reader must know before following the advice."""
    found = []
    if best.ignored:
        found.append(f"But it was {IGNORED}.")
    better = [each for each in costed if each.ignored and _accuracy(each) > _accuracy(best)]
    if better and not best.ignored:
        other = max(better, key=_accuracy)
        found.append(f"({other.quoted} held with {percent(_accuracy(other))}, but was {IGNORED}.)")
    if best.utility is not None and not learns(best.utility):
        found.append(_useless(best.utility, undefended(judged, best)))
    total = len(best.strongest.psnr)
    most = share(0, total).high
    found.append(
        f"That {total} image{'s' if total > 1 else ''} did not leak does not rule out that up to "
        f"{percent(most)} of all would (95%), and a stronger attack may do better. Look at its "
        "pictures, too: whatever a person recognizes in them has leaked."
    )
    return found


def _useless(utility: Utility, other: ConfigurationResult | None) -> str:
    chance = percent(utility.chance)
    if other is not None and other.utility is not None and not learns(other.utility):
        return (
            f"Even with {other.quoted} the network learned no more than to name the most frequent "
            f"class ({chance}): train for more rounds before comparing accuracies."
        )
    return (
        f"But with it the network learned no more than to name the most frequent class ({chance}): "
        "nothing tried here both held and let it learn."
    )


def _uncosted(held: Sequence[ConfigurationResult]) -> Advice:
    names = ", ".join(each.quoted for each in held)
    marked = [each.quoted for each in held if each.ignored]
    text = (
        f"Choose among those that held against every attack tried: {names}. What each costs in "
        "accuracy was not measured: add utility to the scenario to find out."
    )
    if marked:
        text += f" {', '.join(marked)}: {IGNORED}."
    return Advice(text, held[0].label if len(held) == 1 else None)


def _nothing_held(leaking: Sequence[ConfigurationResult]) -> Advice:
    least = max(leaking, key=lambda each: each.mildness)
    leak, attack = least.leak, least.strongest.attack
    seen = ""
    if leak is not None and leak.basis == "recognized":
        seen = f"{leak.hits} of {leak.total} images recognized by {attack}"
    elif leak is not None:
        seen = f"{leak.hits} of {leak.total} images picked out of line-ups by {attack}"
    cost = "" if least.utility is None else f", accuracy {percent(_accuracy(least))}"
    return Advice(
        f"Nothing tried here is enough. {least.quoted[0].upper()}{least.quoted[1:]} leaked least "
        f"({seen}{cost}). Try it with stronger settings, or other defenses, and audit again."
    )


def _accuracy(each: ConfigurationResult) -> float:
    """Return the mean over repetitions; below any accuracy if it was not measured."""
    return -1.0 if each.accuracy is None else each.accuracy
