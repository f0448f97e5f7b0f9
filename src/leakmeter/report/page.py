"""Renders the whole page from its parts; the verdicts come from the judge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from leakmeter.execution.store import write_whole
from leakmeter.judge import (
    IGNORED,
    AttackResult,
    ConfigurationResult,
    Evidence,
    Provenance,
    Results,
    strongest_first,
)
from leakmeter.judge.words import WHOSE, epsilon, percent, promise, scope, size, spread
from leakmeter.measure import RECOGNIZABLE_DB, interval
from leakmeter.report import charts
from leakmeter.report.facts import attack_methods, defense_methods, facts
from leakmeter.report.frontier import frontier, points
from leakmeter.report.gallery import Exhibit, clearest, count, exhibits, few, same_image


@dataclass(frozen=True, eq=False)
class Panel:
    """The pictures of one attack on one configuration.

    Attributes:
        id: the id of the element.
        row: which configuration, from 0.
        column: which attack, from 0.
        group: the configuration.
        attack: the attack.
        runs: the evidence of the attack.
        shown: the pictures.
        total: how many images there are.
    """

    id: str
    row: int
    column: int
    group: ConfigurationResult
    attack: AttackResult
    runs: list[Evidence]
    shown: list[Exhibit]
    total: int

    @property
    def strongest(self) -> bool:
        """Whether the attack decides the configuration's verdict."""
        return self.attack is self.group.strongest


def render(results: Results, evidence: Sequence[Evidence], provenance: Provenance) -> str:
    """Render the report as one self-contained HTML document.

    The same input gives the same text.

    Args:
        results: the verdicts and all numbers.
        evidence: what they are based on: the pictures and the curves.
        provenance: what is needed to reproduce the audit.
    """
    environment = Environment(
        loader=PackageLoader("leakmeter.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bounded": bounded,
        "epsilon": epsilon,
        "mean": fmean,
        "percent": percent,
        "size": size,
        "spread": spread,
        "whose": WHOSE.__getitem__,
    }
    groups = list(results.configurations)
    ranked = strongest_first(evidence)
    columns = [attack.attack for attack in ranked]
    panels = _panels(groups, columns, evidence, provenance)
    return environment.get_template("report.html.jinja").render(
        columns=columns,
        groups=groups,
        panel_id=panel_id,
        provenance=provenance,
        results=results,
        several=len(groups) > 1,
        **_facts(results, evidence, provenance, ranked),
        **_pictures(panels, results),
        **_drawn(groups, panels),
        **_paths(evidence, alone=len(groups) == 1),
        **_costs(groups),
    )


def write(
    results: Results, evidence: Sequence[Evidence], provenance: Provenance, path: str | Path
) -> None:
    """Write the report to a file or URL, whole or not at all."""
    write_whole(path, render(results, evidence, provenance))


def panel_id(row: int, column: int) -> str:
    """Return the id of the pictures of one attack on one configuration."""
    return f"panel-{row}-{column}"


def bounded(values: Sequence[float], form: str) -> tuple[str, str]:
    """Format a mean and its interval; a single value has no bounds."""
    found = interval(torch.tensor(values, dtype=torch.float64))
    bounds = "" if math.isnan(found.low) else f"[{found.low:{form}}, {found.high:{form}}]"
    return f"{found.mean:{form}}", bounds


def _facts(
    results: Results,
    evidence: Sequence[Evidence],
    provenance: Provenance,
    ranked: Sequence[AttackResult],
) -> dict[str, Any]:
    """Return what was done, and the resulting numbers."""
    plain = {each.label for each in results.configurations if each.defense == "none"}
    undefended = [run for run in evidence if run.configuration in plain]
    return {
        "attacks": ranked,
        "attempted": any(run.agreement for run in evidence),
        "clients": sorted({run.client for run in evidence}),
        "facts": facts(undefended or evidence, provenance),
        "finished": len(evidence),
        "ignored_phrase": IGNORED,
        "knowledge": [each for each in results.configurations if each.known or each.ignored],
        "measured": bool(results.measured),
        "methods": {
            "Attacks": attack_methods(evidence),
            "Defenses": defense_methods(provenance.configurations),
        },
        "perceptual": any(run.finding and run.finding.scores.lpips for run in evidence),
        "recipes": {
            attack.attack: dict.fromkeys(
                run.found.attack for run in evidence if run.attack == attack.attack
            )
            for attack in ranked
        },
        "recognizable": RECOGNIZABLE_DB,
        "seeds": sorted({run.found.seed for run in evidence}),
        "shares": evidence[0].shares,
    }


def _panels(
    groups: Sequence[ConfigurationResult],
    columns: Sequence[str],
    evidence: Sequence[Evidence],
    provenance: Provenance,
) -> list[Panel]:
    """Return every attack on every configuration, the strongest of each configuration first."""
    lossless = few(evidence) or len(groups) == 1
    runs: dict[tuple[str, str], list[Evidence]] = {}
    for run in sorted(evidence, key=lambda run: run.client):
        runs.setdefault((run.configuration, run.attack), []).append(run)
    found = []
    for row, group in enumerate(groups):
        for attack in group.attacks:
            own, column = runs[group.label, attack.attack], columns.index(attack.attack)
            found.append(
                Panel(
                    id=panel_id(row, column),
                    row=row,
                    column=column,
                    group=group,
                    attack=attack,
                    runs=own,
                    shown=exhibits(own, provenance.class_names, lossless),
                    total=sum(map(count, own)),
                )
            )
    return found


def _pictures(panels: Sequence[Panel], results: Results) -> dict[str, Any]:
    """Return all pictures, every original once, and the ones to show first."""
    originals: dict[str, Exhibit] = {}
    for panel in panels:
        for exhibit in panel.shown:
            if exhibit.original is not None:
                originals.setdefault(exhibit.original.uri, exhibit)
    deciding = {panel.group.label: panel for panel in panels if panel.strongest}
    first = deciding[results.worst.label]
    best = clearest(first.shown)
    kept = None if results.recommended is None else deciding[results.recommended.label]
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


def _drawn(groups: Sequence[ConfigurationResult], panels: Sequence[Panel]) -> dict[str, Any]:
    """The charts: of every attack, or of the strongest attack on every configuration."""
    several = len(groups) > 1
    if several:
        curves = {panel.group.name: panel for panel in panels if panel.strongest}
    else:
        curves = {panel.attack.attack: panel for panel in panels}
    measured = {name: panel.attack for name, panel in curves.items() if panel.attack.findings}
    shown = points(groups) if several else []
    runs = {name: panel.runs for name, panel in curves.items()}
    return {
        "convergence": charts.convergence(runs, wide=several),
        "frontier": frontier(shown) if len(shown) > 1 else None,
        "psnr_strip": charts.psnr_strip(measured, wide=several) if measured else None,
    }


def _paths(evidence: Sequence[Evidence], alone: bool) -> dict[str, Any]:
    """Return the clients' paths; those of several configurations would not fit on a page."""
    found = {run.client: run.straightness for run in evidence if run.straightness is not None}
    paths = dict(sorted(found.items())) if alone else {}
    return {
        "paths": paths,
        "agreement": charts.agreement(paths) if paths else None,
        "flatness": charts.flatness(paths) if paths else None,
    }


def _costs(groups: Sequence[ConfigurationResult]) -> dict[str, Any]:
    """Return sentences on what the only configuration costs; for several, the matrix shows it."""
    group = groups[0]
    said = []
    if group.utility is not None and group.accuracy is not None:
        said.append(
            f"A network trained with these settings names {percent(group.accuracy)} of images that "
            f"no client had rightly (always naming the most frequent class: "
            f"{percent(group.utility.chance)})."
        )
    if promise(group):
        said.append(f"Guarantee: {promise(group)}.")
    if group.defense != "none" and group.bytes_sent:
        said.append(f"A client sends {size(group.bytes_sent)} a round.")
    measured = [each.utility for each in groups]
    chances = dict.fromkeys(percent(each.chance) for each in measured if each is not None)
    promises = dict.fromkeys(scope(each) for each in groups)
    return {"costs": said, "chances": list(chances), "promises": [p for p in promises if p]}
