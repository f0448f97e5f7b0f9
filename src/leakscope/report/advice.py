"""What to do: the cheapest configuration that no attack could break, and what speaks against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from leakscope.audit.evidence import Utility
from leakscope.measure import share
from leakscope.report.costs import learns, percent, promise, size
from leakscope.report.grouping import Group
from leakscope.report.verdict import Level, Verdict, verdict

IGNORED = "tested only against attacks that do not know it"
"""What is said of a defence that no attack adapts to."""

LEAKING: tuple[Level, ...] = ("leaks", "leaks in part")


@dataclass(frozen=True, eq=False)
class Judged:
    """One configuration and its verdict."""

    group: Group

    @cached_property
    def verdict(self) -> Verdict:
        """By the same rule as for an audit of this configuration alone."""
        return verdict(self.group.evidence)

    @property
    def held(self) -> bool:
        """Whether all attacks failed."""
        return self.verdict.level == "could not break it"

    @property
    def leaks(self) -> bool:
        """Whether one succeeded, at least in part."""
        return self.verdict.level in LEAKING

    @property
    def ignored(self) -> bool:
        """Whether a defence of it was met only by attacks that do not know it."""
        return bool(self.group.configuration.ignored)

    @property
    def utility(self) -> Utility | None:
        """What can be learned with it, if that was measured."""
        return self.group.configuration.utility

    @property
    def accuracy(self) -> float:
        """Mean over repetitions; only where it was measured."""
        assert self.group.accuracy is not None
        return self.group.accuracy

    @property
    def quoted(self) -> str:
        """Its name inside a sentence."""
        name = self.group.name
        return name if name == "no defence" else f"“{name}”"


@dataclass(frozen=True)
class Advice:
    """What to do.

    Attributes:
        text: some sentences.
        label: of the configuration they recommend, or ``None``.
    """

    text: str
    label: str | None = None


def advise(judged: Sequence[Judged]) -> Advice:
    """What follows from the verdicts.

    Args:
        judged: every configuration, at least two.
    """
    held = [each for each in judged if each.held]
    costed = [each for each in held if each.utility is not None]
    if costed:
        # Against attacks that do not know it, holding means little.
        among = [each for each in costed if not each.ignored] or costed
        best = max(among, key=lambda each: each.accuracy)
        sentences = [*_choice(best, among, judged), *_caveats(best, costed, judged)]
        return Advice(" ".join(sentences), best.group.configuration.label)
    if held:
        return _uncosted(held)
    leaking = [each for each in judged if each.leaks]
    return _nothing_held(leaking) if leaking else Advice("")


def undefended(among: Sequence[Judged], beside: Judged) -> Judged | None:
    """Another one without a defence: of the setting of ``beside``, or else the first."""
    plain = [each for each in among if each.group.configuration.defence == "none"]
    setting = beside.group.configuration.setting
    same = [each for each in plain if each.group.configuration.setting == setting]
    return next((each for each in [*same, *plain] if each is not beside), None)


def _choice(best: Judged, held: Sequence[Judged], judged: Sequence[Judged]) -> list[str]:
    """Which one, why, and at what price."""
    configuration, other = best.group.configuration, undefended(judged, best)
    only = len(held) == 1
    scope = "all tried here" if not any(each.ignored for each in judged) else "those attacks know"
    why = f"alone of {scope} held" if only else f"is the most accurate of {len(held)} that held"
    first = next((each for each in judged if each.group.configuration.defence == "none"), None)
    if best is first:
        start = f"These attacks give no reason to change anything: {best.quoted} {why} against them"
    else:
        start = f"Use {best.quoted}: it {why} against every attack tried"
    price = [f"Accuracy {percent(best.accuracy)}{_beside(best, other)}"]
    if promise(configuration):
        price.append(f"guarantee {promise(configuration)}")
    if configuration.bytes_sent:
        sent = f"{size(configuration.bytes_sent)} sent per client and round"
        if other is not None and other.group.configuration.bytes_sent != configuration.bytes_sent:
            sent += f" (instead of {size(other.group.configuration.bytes_sent)})"
        price.append(sent)
    return [f"{start}.", f"{'; '.join(price)}."]


def _beside(best: Judged, other: Judged | None) -> str:
    """The accuracy of ``other`` to compare with."""
    if other is None or other.utility is None:
        return ""
    return f" (with {other.quoted} {percent(other.accuracy)})"


def _caveats(best: Judged, costed: Sequence[Judged], judged: Sequence[Judged]) -> list[str]:
    """What a reader must know before following the advice."""
    found = []
    if best.ignored:
        found.append(f"But it was {IGNORED}.")
    better = [each for each in costed if each.ignored and each.accuracy > best.accuracy]
    if better and not best.ignored:
        other = max(better, key=lambda each: each.accuracy)
        found.append(f"({other.quoted} held with {percent(other.accuracy)}, but was {IGNORED}.)")
    assert best.utility is not None
    if not learns(best.utility):
        found.append(_useless(best, undefended(judged, best)))
    strongest = best.group.strongest
    total = len(strongest.psnr)
    most = share(max(0, strongest.recognised - strongest.baseline_recognised), total).high
    found.append(
        f"That {total} image{'s' if total > 1 else ''} did not leak does not rule out that up to "
        f"{percent(most)} of all would (95%), and a stronger attack may do better. Look at its "
        "pictures, too: whatever a person recognises in them has leaked."
    )
    return found


def _useless(best: Judged, other: Judged | None) -> str:
    assert best.utility is not None
    chance = percent(best.utility.chance)
    if other is not None and other.utility is not None and not learns(other.utility):
        return (
            f"Even with {other.quoted} the network learned no more than to name the most frequent "
            f"class ({chance}): train for more rounds before comparing accuracies."
        )
    return (
        f"But with it the network learned no more than to name the most frequent class ({chance}): "
        "nothing tried here both held and let it learn."
    )


def _uncosted(held: Sequence[Judged]) -> Advice:
    names = ", ".join(each.quoted for each in held)
    marked = [each.quoted for each in held if each.ignored]
    text = (
        f"Choose among those that held against every attack tried: {names}. What each costs in "
        "accuracy was not measured: add utility to the scenario to find out."
    )
    if marked:
        text += f" {', '.join(marked)}: {IGNORED}."
    return Advice(text, held[0].group.configuration.label if len(held) == 1 else None)


def _nothing_held(leaking: Sequence[Judged]) -> Advice:
    least = min(leaking, key=lambda each: (each.verdict.level == "leaks", _leaked(each)))
    attack = least.group.strongest
    if attack.recognised > attack.baseline_recognised:
        seen = f"{attack.recognised} of {len(attack.psnr)} images recognised by {attack.name}"
    else:
        seen = "no image recognised, but more picked out of line-ups than by luck"
    cost = "" if least.utility is None else f", accuracy {percent(least.accuracy)}"
    return Advice(
        f"Nothing tried here is enough. {least.quoted[0].upper()}{least.quoted[1:]} leaked least "
        f"({seen}{cost}). Try it with stronger settings, or other defences, and audit again."
    )


def _leaked(each: Judged) -> tuple[float, float]:
    attacks = [attack for attack in each.group.attacks if attack.findings]
    picked = max((a.reidentified - a.baseline_reidentified) / len(a.psnr) for a in attacks)
    return (each.group.strongest.strength[0], picked)
