"""Turns evidence into one typed value; whatever prints it decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from leakmeter.judge.advice import IGNORED, Advice, advise
from leakmeter.judge.evidence import Configuration, Evidence, Provenance, grouped
from leakmeter.judge.results import (
    VERSION,
    AttackResult,
    ClientResult,
    ConfigurationResult,
    GuaranteeResult,
    Results,
)
from leakmeter.judge.verdict import efforts, verdict
from leakmeter.judge.words import finite

TOLD = ("title", "date", "command", "model", "parameters", "data", "versions", "scenario")
"""Fields that results take unchanged from the provenance."""

DESCRIBED = ("label", "setting", "defense", "known", "adaptive", "ignored", "bytes_sent", "utility")
"""Fields that results take from a configuration."""

MOST_NAMED = 5
"""How many leaking configurations the first screen names; the matrix has them all."""


def judge(evidence: Sequence[Evidence], provenance: Provenance) -> Results:
    """Judge every configuration by its attacks, and all of them together.

    Args:
        evidence: every attack on every client of every configuration, at least one.
        provenance: names the configurations.
    """
    judged = [_configuration(*group) for group in grouped(evidence, provenance)]
    alone = len(judged) == 1
    said = _of_one(judged[0]) if alone else _of_several(judged, evidence)
    told = {name: getattr(provenance, name) for name in TOLD}
    return Results.model_validate({"version": VERSION, **told, **said})


def strongest_first(evidence: Sequence[Evidence]) -> list[AttackResult]:
    """Group the evidence by attack, strongest first; ties keep their order."""
    by_name: dict[str, list[Evidence]] = {}
    for run in evidence:
        by_name.setdefault(run.attack, []).append(run)
    attacks = [
        AttackResult.of(
            name, runs[0].recipe, [_client(run) for run in sorted(runs, key=lambda run: run.client)]
        )
        for name, runs in by_name.items()
    ]
    return sorted(attacks, key=lambda attack: attack.strength, reverse=True)


def _client(run: Evidence) -> ClientResult:
    match = run.found.history["match"]
    return ClientResult(
        client=run.client,
        iterations=len(match),
        seconds=run.found.seconds,
        match=finite(match[-1].item()),
        labels_known=run.found.labels_known,
        seed=run.found.seed,
        finding=run.finding,
        replay=run.replay,
        baseline_replay=run.baseline_replay,
        agreement=run.agreement,
    )


def _configuration(configuration: Configuration, runs: Sequence[Evidence]) -> ConfigurationResult:
    attacks = strongest_first(runs)
    found = verdict(attacks, [run.protocol for run in runs])
    proven = configuration.guarantee
    described = {name: getattr(configuration, name) for name in DESCRIBED}
    return ConfigurationResult(
        **described,
        **found._asdict(),
        recommended=False,
        guarantee=proven
        and GuaranteeResult(
            rdp=finite(proven.rdp),
            prv=finite(proven.prv),
            delta=proven.delta,
            protects=proven.protects,
            rounds=configuration.rounds,
        ),
        attacks=tuple(attacks),
    )


def _of_one(only: ConfigurationResult) -> dict[str, object]:
    """Return what the report says about a single configuration."""
    detail = only.detail
    for name in only.ignored:
        detail += f" The defense {name} was {IGNORED}."
    return {
        "sentence": only.sentence,
        "detail": detail,
        "advice": "",
        "configurations": (only,),
    }


def _of_several(
    judged: Sequence[ConfigurationResult], evidence: Sequence[Evidence]
) -> dict[str, object]:
    """Return what the report says about several: what leaks, the assumptions, and what to do."""
    most = min(judged, key=lambda each: each.mildness)
    measured = most.level != "not measured"
    advice = advise(judged) if measured else Advice("")
    return {
        "sentence": _sentence(judged, most) if measured else most.sentence,
        "detail": _detail(judged) if measured else most.detail,
        "assumptions": f"{in_short(evidence)} {_tried(strongest_first(evidence))}.",
        "advice": advice.text,
        "configurations": tuple(
            each.model_copy(update={"recommended": each.label == advice.label}) for each in judged
        ),
    }


def in_short(evidence: Sequence[Evidence]) -> str:
    """Summarize the assumptions in a few sentences, for the first screen."""
    labels = " and ".join(text for _, text in label_facts(evidence, accuracy=False))
    return (
        "The attacker is the server: curious, but following the protocol. It sees every update and "
        "knows the network, the number of images, how clients train and which defense they use; "
        f"labels of the images were {labels}."
    )


def label_facts(evidence: Sequence[Evidence], accuracy: bool = True) -> list[tuple[str, str]]:
    """Say where labels came from: one or two pairs (standing, words)."""
    attacks = strongest_first(evidence)
    given = [attack.attack for attack in attacks if attack.labels_known]
    found = []
    for attack in attacks:
        if not attack.labels_known:
            told = accuracy and attack.findings
            right = f" ({attack.label_accuracy:.0%} right)" if told else ""
            found.append(attack.attack + right)
    facts = [("assumed", f"given to {', '.join(given)}")] if given else []
    if found:
        facts.append(("recovered", f"read out of the update by {', '.join(found)}"))
    return facts


def _tried(attacks: Sequence[AttackResult]) -> str:
    """List all attacks; a budget they share is stated once."""
    budgets = {attack.iterations for attack in attacks}
    if len(attacks) == 1 or len(budgets) > 1:
        return f"Tried: {efforts(attacks)}"
    names = ", ".join(attack.attack for attack in attacks)
    return f"Tried, each with {budgets.pop():,} iterations: {names}"


def _sentence(judged: Sequence[ConfigurationResult], worst: ConfigurationResult) -> str:
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
    found = worst.sentence
    return f"{count}: with {worst.quoted}, {found[0].lower()}{found[1:]}"


def _detail(judged: Sequence[ConfigurationResult]) -> str:
    """Say how much each configuration leaked, with the baseline for comparison."""
    leaking = sorted((each for each in judged if each.leaks), key=lambda each: each.mildness)
    if not leaking:
        return (
            "This is no proof that nothing leaks: a stronger attack or more iterations may succeed."
        )
    counts = []
    for each in leaking[:MOST_NAMED]:
        if each.leak is not None:
            verb = "" if each.leak.basis == "recognized" else " picked out"
            leak = f"{each.leak.hits} of {each.leak.total}{verb} ({each.leak.baseline})"
            counts.append(f"{each.quoted} {leak}")
    more = len(leaking) - MOST_NAMED
    others = f"; and {more} more below" if more > 0 else ""
    return (
        "Images recognized by the strongest attack, and in brackets by the same attack on random "
        f"noise in place of the update: {'; '.join(counts)}{others}. What exceeds the brackets "
        "came out of the updates."
    )
