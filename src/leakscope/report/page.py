"""The whole page from its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from leakscope.audit.evidence import Evidence, Provenance
from leakscope.audit.store import write_whole
from leakscope.measure import RECOGNISABLE_DB
from leakscope.report import charts
from leakscope.report.advice import IGNORED
from leakscope.report.assumptions import facts, knowledge, plain_clients
from leakscope.report.costs import percent, promise, scope, size
from leakscope.report.frontier import frontier, points
from leakscope.report.gallery import Exhibit, clearest, count, exhibits, few, same_image
from leakscope.report.grouping import AttackEvidence, Group, strongest_first
from leakscope.report.matrix import matrix, panel_id
from leakscope.report.methods import attack_methods, defence_methods
from leakscope.report.numbers import row
from leakscope.report.summary import Summary, summary


@dataclass(frozen=True, eq=False)
class Panel:
    """The pictures of one attack on one configuration.

    Attributes:
        id: of the element.
        row: which configuration, from 0.
        column: which attack, from 0.
        group: the configuration.
        attack: the attack.
        shown: the pictures.
        total: how many there are.
        strongest: whether the attack decides the configuration's verdict.
    """

    id: str
    row: int
    column: int
    group: Group
    attack: AttackEvidence
    shown: list[Exhibit]
    total: int
    strongest: bool


def render(evidence: Sequence[Evidence], provenance: Provenance) -> str:
    """The report as one HTML document that needs nothing else.

    The same input gives the same text.

    Args:
        evidence: every attack on every client, at least one.
        provenance: how to do it again.
    """
    found = summary(evidence, provenance)
    environment = Environment(
        loader=PackageLoader("leakscope.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    groups = [each.group for each in found.judged]
    columns = [attack.name for attack in strongest_first(evidence)]
    panels = _panels(groups, columns, provenance, few(evidence) or len(groups) == 1)
    return environment.get_template("report.html.jinja").render(
        columns=columns,
        groups=groups,
        matrix=matrix(found, columns),
        provenance=provenance,
        several=len(groups) > 1,
        summary=found,
        **_facts(evidence, provenance, groups),
        **_pictures(panels, found),
        **_drawn(found, groups),
        **_paths(evidence, alone=len(groups) == 1),
        **_costs(groups),
    )


def write(evidence: Sequence[Evidence], provenance: Provenance, path: str | Path) -> None:
    """Write the report to a file or URL, whole or not at all."""
    write_whole(path, render(evidence, provenance))


def _facts(
    evidence: Sequence[Evidence], provenance: Provenance, groups: Sequence[Group]
) -> dict[str, Any]:
    """What was done, and the numbers that came out."""
    attacks = strongest_first(evidence)
    return {
        "attacks": attacks,
        "clients": sorted({run.client for run in evidence}),
        "facts": facts(plain_clients(groups), provenance),
        "attempted": any(run.agreement for run in evidence),
        "finished": len(evidence),
        "ignored_phrase": IGNORED,
        "knowledge": knowledge(groups),
        "measured": any(attack.findings for attack in attacks),
        "methods": {
            "Attacks": attack_methods(evidence),
            "Defences": defence_methods(provenance.configurations),
        },
        "perceptual": any(run.finding and run.finding.scores.lpips for run in evidence),
        "recognisable": RECOGNISABLE_DB,
        "rows": [(group, [row(attack) for attack in group.attacks]) for group in groups],
        "seeds": sorted({run.found.seed for run in evidence}),
        "shares": attacks[0].runs[0].shares,
    }


def _panels(
    groups: Sequence[Group], columns: Sequence[str], provenance: Provenance, lossless: bool
) -> list[Panel]:
    """Every attack on every configuration, the strongest of each configuration first."""
    return [
        Panel(
            id=panel_id(number, columns.index(attack.name)),
            row=number,
            column=columns.index(attack.name),
            group=group,
            attack=attack,
            shown=exhibits(attack, provenance.class_names, lossless),
            total=sum(map(count, attack.runs)),
            strongest=attack is group.strongest,
        )
        for number, group in enumerate(groups)
        for attack in group.attacks
    ]


def _pictures(panels: Sequence[Panel], found: Summary) -> dict[str, Any]:
    """All pictures, every original once, and the ones to show first."""
    originals: dict[str, Exhibit] = {}
    for panel in panels:
        for exhibit in panel.shown:
            if exhibit.original is not None:
                originals.setdefault(exhibit.original.uri, exhibit)
    first = next(p for p in panels if p.strongest and p.group is found.worst.group)
    best = clearest(first.shown)
    kept = next(
        (p for p in panels if p.strongest and p.group.configuration.label == found.recommended),
        None,
    )
    return {
        "panels": panels,
        "first": first,
        "originals": {uri: f"original-{number}" for number, uri in enumerate(originals)},
        "original_pictures": [exhibit.original for exhibit in originals.values()],
        "clearest": best,
        "protected": same_image(best, kept.shown) if best and kept and kept is not first else None,
        "protected_by": kept,
        "lossy": any("image/webp" in exhibit.found.uri for exhibit in first.shown),
    }


def _drawn(found: Summary, groups: Sequence[Group]) -> dict[str, Any]:
    """The charts: of every attack, or of the strongest attack on every configuration."""
    several = len(groups) > 1
    if several:
        curves = {group.name: group.strongest for group in groups}
    else:
        curves = {attack.name: attack for attack in groups[0].attacks}
    measured = {name: attack for name, attack in curves.items() if attack.findings}
    shown = points(found.judged) if several else []
    return {
        "convergence": charts.convergence(curves, wide=several),
        "frontier": frontier(shown) if len(shown) > 1 else None,
        "psnr_strip": charts.psnr_strip(measured, wide=several) if measured else None,
    }


def _paths(evidence: Sequence[Evidence], alone: bool) -> dict[str, Any]:
    """The clients' paths; those of several configurations would not fit on a page."""
    found = {run.client: run.straightness for run in evidence if run.straightness is not None}
    paths = dict(sorted(found.items())) if alone else {}
    return {
        "paths": paths,
        "agreement": charts.agreement(paths) if paths else None,
        "flatness": charts.flatness(paths) if paths else None,
    }


def _costs(groups: Sequence[Group]) -> dict[str, Any]:
    """What the first configuration costs, a sentence each; of several the matrix says it."""
    group = groups[0]
    configuration, utility = group.configuration, group.configuration.utility
    said = []
    if utility is not None and group.accuracy is not None:
        said.append(
            f"A network trained with these settings names {percent(group.accuracy)} of images that "
            f"no client had rightly (always naming the most frequent class: "
            f"{percent(utility.chance)})."
        )
    if promise(configuration):
        said.append(f"Guarantee: {promise(configuration)}.")
    if configuration.defence != "none" and configuration.bytes_sent:
        said.append(f"A client sends {size(configuration.bytes_sent)} a round.")
    measured = [each.configuration.utility for each in groups]
    chances = dict.fromkeys(percent(each.chance) for each in measured if each is not None)
    promises = dict.fromkeys(scope(each.configuration) for each in groups)
    return {"costs": said, "chances": list(chances), "promises": [p for p in promises if p]}
