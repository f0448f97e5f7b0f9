"""The numbers of an audit as data: ``results.json`` with all of them, ``results.csv`` per image."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from leakscope.audit.evidence import Configuration, Evidence, Provenance, Utility
from leakscope.audit.store import write_whole
from leakscope.errors import LeakscopeError, validation_errors
from leakscope.measure import Finding, Interval, Scores, share
from leakscope.report.advice import Judged
from leakscope.report.grouping import AttackEvidence
from leakscope.report.summary import summary
from leakscope.report.verdict import Level

VERSION = 1
"""Of the schema; goes up when a field changes its meaning or goes away."""

FILE, TABLE = "results.json", "results.csv"

_SCORES = ("psnr", "ssim", "mse", "lpips", "reidentified", "recognised")

COLUMNS = (
    *("configuration", "setting", "defence", "attack", "client", "image"),
    *_SCORES,
    *(f"baseline_{name}" for name in _SCORES),
)
"""Of the CSV file, one row per image."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Share(_Model):
    """``hits`` of ``total`` images, and the 95% interval of their share (Wilson)."""

    hits: int = Field(ge=0)
    total: int = Field(ge=1)
    share: float
    low: float
    high: float

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.hits > self.total:
            raise ValueError("hits exceed total")
        return self

    @classmethod
    def of(cls, hits: int, total: int) -> Self:
        """With its interval."""
        mean, low, high = share(hits, total)
        return cls(hits=hits, total=total, share=mean, low=low, high=high)


class Leakage(_Model):
    """Share of images recognised beyond the baseline's, and its 95% interval (Newcombe)."""

    share: float
    low: float
    high: float


class ClientResult(_Model):
    """One attack on one client.

    Attributes:
        client: index, from 0.
        iterations: of the attack.
        seconds: that it took.
        match: final distance; ``None`` if it is not finite.
        labels_known: whether the labels were given.
        seed: of the attack.
        finding: the measurement, or ``None`` without the truth.
    """

    client: int
    iterations: int
    seconds: float
    match: float | None
    labels_known: bool
    seed: int
    finding: Finding | None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sides = [] if self.finding is None else [self.finding.scores, self.finding.baseline]
        per_image = [
            len(value)
            for side in sides
            for value in (side.psnr, side.ssim, side.mse, side.reidentified, side.lpips)
            if value is not None
        ]
        if len(set(per_image)) > 1:
            raise ValueError("finding: its lists must have one value per image")
        return self


class AttackResult(_Model):
    """One attack on all clients of a configuration; ``None`` is what needs the truth."""

    attack: str
    recipe: str
    recognised: Share | None
    baseline_recognised: Share | None
    reidentified: Share | None
    baseline_reidentified: Share | None
    leakage: Leakage | None
    clients: tuple[ClientResult, ...]

    @classmethod
    def of(cls, attack: AttackEvidence) -> Self:
        """The numbers of the evidence."""
        total, measured = len(attack.psnr), bool(attack.findings)

        def counted(hits: int) -> Share | None:
            return Share.of(hits, total) if measured else None

        found = attack.leakage if measured else None
        return cls(
            attack=attack.name,
            recipe=attack.runs[0].recipe,
            recognised=counted(attack.recognised),
            baseline_recognised=counted(attack.baseline_recognised),
            reidentified=counted(attack.reidentified),
            baseline_reidentified=counted(attack.baseline_reidentified),
            leakage=found and Leakage(share=found.mean, low=found.low, high=found.high),
            clients=tuple(_client(run) for run in attack.runs),
        )

    @property
    def interval(self) -> Interval | None:
        """The leakage as the statistics have it."""
        found = self.leakage
        return None if found is None else Interval(found.share, found.low, found.high)


class GuaranteeResult(_Model):
    """(epsilon, delta)-differential privacy of ``rounds`` updates; ``None`` is infinite."""

    rdp: float | None
    prv: float | None
    delta: float
    protects: Literal["example", "client"]
    rounds: int

    @classmethod
    def of(cls, configuration: Configuration) -> Self | None:
        """What is proven about it, if anything."""
        proven = configuration.guarantee
        if proven is None:
            return None
        return cls(
            rdp=_finite(proven.rdp),
            prv=_finite(proven.prv),
            delta=proven.delta,
            protects=proven.protects,
            rounds=configuration.rounds,
        )


class ConfigurationResult(_Model):
    """One way in which clients train and send, what leaked, and what it costs."""

    label: str
    setting: str
    defence: str
    level: Level
    sentence: str
    detail: str
    recommended: bool
    known: tuple[str, ...]
    adaptive: tuple[str, ...]
    ignored: tuple[str, ...]
    bytes_sent: int
    guarantee: GuaranteeResult | None
    utility: Utility | None
    attacks: tuple[AttackResult, ...]

    @classmethod
    def of(cls, judged: Judged, recommended: bool) -> Self:
        """The numbers of the evidence."""
        configuration, verdict = judged.group.configuration, judged.verdict
        return cls(
            label=configuration.label,
            setting=configuration.setting,
            defence=configuration.defence,
            level=verdict.level,
            sentence=verdict.sentence,
            detail=verdict.detail,
            recommended=recommended,
            known=configuration.known,
            adaptive=configuration.adaptive,
            ignored=configuration.ignored,
            bytes_sent=configuration.bytes_sent,
            guarantee=GuaranteeResult.of(configuration),
            utility=configuration.utility,
            attacks=tuple(AttackResult.of(attack) for attack in judged.group.attacks),
        )


class Results(_Model):
    """Every number of an audit, without its pictures. ``docs/results.md`` explains each field."""

    version: Literal[1]
    title: str
    date: str
    command: str
    model: str
    parameters: int
    data: str
    versions: dict[str, str]
    scenario: str
    sentence: str
    advice: str
    configurations: tuple[ConfigurationResult, ...]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        _once("configurations", [each.label for each in self.configurations])
        for each in self.configurations:
            _once(each.label, [attack.attack for attack in each.attacks])
        return self

    @classmethod
    def of(cls, evidence: Sequence[Evidence], provenance: Provenance) -> Self:
        """The numbers of the evidence."""
        found = summary(evidence, provenance)
        return cls(
            version=VERSION,
            title=provenance.title,
            date=provenance.date,
            command=provenance.command,
            model=provenance.model,
            parameters=provenance.parameters,
            data=provenance.data,
            versions=provenance.versions,
            scenario=provenance.scenario,
            sentence=found.sentence,
            advice=found.advice,
            configurations=tuple(
                ConfigurationResult.of(each, each.group.configuration.label == found.recommended)
                for each in found.judged
            ),
        )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a ``results.json``, or the one in the folder of an audit."""
        path = Path(path)
        path = path / FILE if path.is_dir() else path
        try:
            content = json.loads(path.read_bytes())
        except OSError as error:
            raise LeakscopeError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise LeakscopeError(f"{path} is not JSON: give the results.json of an audit") from None
        if not isinstance(content, dict) or "version" not in content:
            raise LeakscopeError(f"{path} has no version: give the results.json of an audit")
        if content["version"] != VERSION:
            raise LeakscopeError(
                f"{path}: version is {content['version']!r}, this leakscope reads {VERSION}: "
                "run the audit again"
            )
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise LeakscopeError(f"{path}: {validation_errors(error, cls)[0]}") from None


def write(evidence: Sequence[Evidence], provenance: Provenance, out: str | Path) -> Results:
    """Leave ``results.json`` and ``results.csv`` in a folder or at a URL, each whole or not."""
    results = Results.of(evidence, provenance)
    write_whole(f"{out}/{FILE}", results.model_dump_json(indent=1) + "\n")
    write_whole(f"{out}/{TABLE}", table(results))
    return results


def table(results: Results) -> str:
    """The CSV file."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for configuration in results.configurations:
        for attack in configuration.attacks:
            first = (configuration.label, configuration.setting, configuration.defence)
            for client in attack.clients:
                for image, values in enumerate(_per_image(client.finding)):
                    writer.writerow([*first, attack.attack, client.client, image, *values])
    return file.getvalue()


def leakage(results: Results) -> list[tuple[str, float]]:
    """Every measured configuration, and the share of its images that leaked.

    That is what the strongest attack recognised beyond the baseline, or what could be picked out
    of line-ups beyond the baseline, if that is more and at least half, as for the verdict.
    """
    found = []
    for configuration in results.configurations:
        shares = [a.leakage.share for a in configuration.attacks if a.leakage is not None]
        if not shares:
            continue
        picked = max(
            a.reidentified.share - a.baseline_reidentified.share
            for a in configuration.attacks
            if a.reidentified is not None and a.baseline_reidentified is not None
        )
        found.append((configuration.label, max(0.0, *shares, picked if picked >= 0.5 else 0.0)))
    return found


def _once(where: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{where}: {name!r} is there twice")


def _client(run: Evidence) -> ClientResult:
    return ClientResult(
        client=run.client,
        iterations=len(run.found.history["match"]),
        seconds=run.found.seconds,
        match=_finite(run.found.history["match"][-1].item()),
        labels_known=run.found.labels_known,
        seed=run.found.seed,
        finding=run.finding,
    )


def _per_image(finding: Finding | None) -> Iterator[list[Any]]:
    """What the CSV file says about each image, in the order of its columns."""
    if finding is None:
        return
    sides = [_columns(finding.scores), _columns(finding.baseline)]
    for values in zip(*sides[0], *sides[1], strict=True):
        yield [str(v).lower() if isinstance(v, bool) else v for v in values]


def _columns(scores: Scores) -> list[Sequence[Any]]:
    blank = [""] * len(scores.psnr)
    found = [getattr(scores, name) for name in _SCORES]
    return [blank if column is None else column for column in found]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
