"""The whole page from its parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from leakscope.audit.evidence import Evidence, Provenance
from leakscope.errors import LeakscopeError
from leakscope.measure import RECOGNISABLE_DB
from leakscope.report import charts
from leakscope.report.assumptions import facts
from leakscope.report.gallery import clearest, exhibits
from leakscope.report.grouping import strongest_first
from leakscope.report.numbers import row
from leakscope.report.verdict import verdict


def render(evidence: Sequence[Evidence], provenance: Provenance) -> str:
    """The report as one HTML document that needs nothing else.

    The same input gives the same text.

    Args:
        evidence: every attack on every client, at least one.
        provenance: how to do it again.
    """
    if not evidence:
        raise LeakscopeError("evidence is empty: run at least one attack on one client")
    attacks = strongest_first(evidence)
    measured = [attack for attack in attacks if attack.findings]
    environment = Environment(
        loader=PackageLoader("leakscope.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    paths = {run.client: run.straightness for run in evidence if run.straightness is not None}
    paths = dict(sorted(paths.items()))
    galleries = [exhibits(attack, provenance.class_names) for attack in attacks]
    return environment.get_template("report.html.jinja").render(
        agreement=charts.agreement(paths) if paths else None,
        attacks=attacks,
        clearest=clearest(galleries[0]),
        clients=sorted({run.client for run in evidence}),
        convergence=charts.convergence(attacks),
        facts=facts(attacks, provenance),
        flatness=charts.flatness(paths) if paths else None,
        galleries=galleries,
        measured=bool(measured),
        paths=paths,
        provenance=provenance,
        psnr_strip=charts.psnr_strip(measured) if measured else None,
        recognisable=RECOGNISABLE_DB,
        rows=[row(attack) for attack in attacks],
        seeds=sorted({run.found.seed for run in evidence}),
        shares=attacks[0].runs[0].shares,
        verdict=verdict(evidence),
    )


def write(evidence: Sequence[Evidence], provenance: Provenance, path: Path) -> None:
    """Write the report beside ``path`` and move it there, so no half file is ever seen."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.touch(mode=0o600)  # it shows private images
        partial.write_text(render(evidence, provenance), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise LeakscopeError(f"cannot write {path}: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
