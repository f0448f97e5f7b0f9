"""The results of an audit, as in ``results.json``: every number, what leaks, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Self

from pydantic import ValidationError, model_validator

from leakmeter.errors import LeakmeterError, validation_errors
from leakmeter.judge import rule
from leakmeter.judge.evidence import Utility
from leakmeter.judge.rule import LEVELS, Judged, Leak, Leakage, Level, Share
from leakmeter.measure import Finding, Interval, difference

VERSION = 2
"""Schema version; it rises when a field changes meaning or goes away. Version 1 is still read."""

OLD_FIELDS = {
    "defence": "defense",
    "recognised": "recognized",
    "baseline_recognised": "baseline_recognized",
}
"""The current names of fields of the first version."""

FILE, TABLE = "results.json", "results.csv"


class ClientResult(Judged):
    """One attack on one client.

    Attributes:
        client: index, from 0.
        iterations: iterations of the attack.
        seconds: time it took.
        match: final distance; ``None`` if it is not finite.
        labels_known: whether the labels were given.
        seed: the attack's seed.
        finding: the measurement, or ``None`` without the truth.
        replay: how well training on what was found explains the update, or ``None``.
        baseline_replay: the same for noise in place of the update.
        agreement: PSNR of the images of two attempts, or empty.
    """

    client: int
    iterations: int
    seconds: float
    match: float | None
    labels_known: bool
    seed: int
    finding: Finding | None
    replay: float | None = None
    baseline_replay: float | None = None
    agreement: tuple[float, ...] = ()

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


class AttackResult(Judged):
    """One attack on all clients of a configuration; what needs a missing truth is ``None``."""

    attack: str
    recipe: str
    recognized: Share | None
    baseline_recognized: Share | None
    reidentified: Share | None
    baseline_reidentified: Share | None
    leakage: Leakage | None
    clients: tuple[ClientResult, ...]

    @classmethod
    def of(cls, attack: str, recipe: str, clients: Sequence[ClientResult]) -> Self:
        """Count over all clients."""
        findings = [each.finding for each in clients if each.finding is not None]
        total = sum(len(finding.scores.psnr) for finding in findings)

        def counted(side: str, what: str) -> Share | None:
            hits = sum(sum(getattr(getattr(finding, side), what)) for finding in findings)
            return Share.of(hits, total) if findings else None

        hits, lucky = counted("scores", "recognized"), counted("baseline", "recognized")
        leakage = None
        if hits is not None and lucky is not None:
            found = Leak.of("recognized", hits, lucky)
            leakage = Leakage(share=found.share, low=found.low, high=found.high)
        return cls(
            attack=attack,
            recipe=recipe,
            recognized=hits,
            baseline_recognized=lucky,
            reidentified=counted("scores", "reidentified"),
            baseline_reidentified=counted("baseline", "reidentified"),
            leakage=leakage,
            clients=tuple(clients),
        )

    @cached_property
    def _counted(self) -> tuple[Leak, Leak] | None:
        """What was recognized and what was picked out, or ``None`` if that is unknown."""
        recognized, lucky = self.recognized, self.baseline_recognized
        picked, noise = self.reidentified, self.baseline_reidentified
        if recognized is None or lucky is None or picked is None or noise is None:
            return None
        return Leak.of("recognized", recognized, lucky), Leak.of("picked out", picked, noise)

    @property
    def leak(self) -> Leak | None:
        """What leaked to the attack, or ``None`` if that could not be measured."""
        return None if self._counted is None else rule.leak(*self._counted)

    @property
    def level(self) -> Level:
        """The verdict on that leak."""
        return "not measured" if self._counted is None else rule.level(*self._counted)

    @property
    def strength(self) -> tuple[float, float]:
        """Share that leaked, then mean PSNR; what was not measured comes last."""
        if self.leak is None:
            return (-2.0, 0.0)
        return (self.leak.share, fmean(self.psnr))

    @property
    def findings(self) -> list[Finding]:
        """The measurements; empty where the truth is missing."""
        return [each.finding for each in self.clients if each.finding is not None]

    @property
    def psnr(self) -> list[float]:
        """The PSNR of every original, over all clients."""
        return [value for finding in self.findings for value in finding.scores.psnr]

    @property
    def baseline_psnr(self) -> list[float]:
        """The same for the attack on an update without signal."""
        return [value for finding in self.findings for value in finding.baseline.psnr]

    def each(self, score: str) -> list[float]:
        """Return one of the scores for every original, where it was measured."""
        return [v for finding in self.findings for v in getattr(finding.scores, score) or ()]

    @property
    def match(self) -> float | None:
        """Final distance, mean over clients; ``None`` if one is not finite."""
        finals = [each.match for each in self.clients]
        known = [final for final in finals if final is not None]
        return fmean(known) if len(known) == len(finals) else None

    @property
    def iterations(self) -> int:
        """The most iterations spent on one client."""
        return max(each.iterations for each in self.clients)

    @property
    def seconds(self) -> float:
        """The time spent on all clients."""
        return sum(each.seconds for each in self.clients)

    @property
    def labels_known(self) -> bool:
        """Whether the labels were given."""
        return self.clients[0].labels_known

    @property
    def label_accuracy(self) -> float:
        """Share of the true labels that were found, over all images; needs the truth."""
        weights = [len(finding.scores.psnr) for finding in self.findings]
        return fmean((finding.scores.label_accuracy for finding in self.findings), weights)

    @property
    def chance(self) -> float:
        """Re-identification rate of a blind guess, over all images; needs the truth."""
        weights = [len(finding.scores.psnr) for finding in self.findings]
        return fmean((finding.chance for finding in self.findings), weights)

    @property
    def replay(self) -> tuple[float, float] | None:
        """Mean replay score and that of the baseline, where clients can be replayed."""
        pairs = [
            (each.replay, each.baseline_replay)
            for each in self.clients
            if each.replay is not None and each.baseline_replay is not None
        ]
        return (fmean(p[0] for p in pairs), fmean(p[1] for p in pairs)) if pairs else None

    @property
    def agreement(self) -> list[float]:
        """PSNR between two attempts, of every image that was looked for twice."""
        return [value for each in self.clients for value in each.agreement]


class GuaranteeResult(Judged):
    """(epsilon, delta)-differential privacy of ``rounds`` updates; ``None`` is infinite."""

    rdp: float | None
    prv: float | None
    delta: float
    protects: Literal["example", "client"]
    rounds: int


class ConfigurationResult(Judged):
    """One way in which clients train and send, what leaked, and what it costs."""

    label: str
    setting: str
    defense: str
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

    @property
    def name(self) -> str:
        """The label in words, since readers may not understand ``none``."""
        return "no defense" if self.label == "none" else self.label

    @property
    def quoted(self) -> str:
        """The name inside a sentence."""
        return self.name if self.label == "none" else f"“{self.name}”"

    @property
    def strongest(self) -> AttackResult:
        """The attack that decides the verdict."""
        return max(self.attacks, key=lambda attack: attack.strength)

    @property
    def leak(self) -> Leak | None:
        """What leaked, or ``None`` if that could not be measured."""
        return self.strongest.leak

    @property
    def held(self) -> bool:
        """Whether all attacks failed."""
        return self.level == "could not break it"

    @property
    def leaks(self) -> bool:
        """Whether any attack succeeded, at least in part."""
        return self.level in ("leaks", "leaks in part")

    @property
    def accuracy(self) -> float | None:
        """Mean over the repetitions, or ``None`` if it was not measured."""
        return None if self.utility is None else fmean(self.utility.accuracy)

    @property
    def mildness(self) -> tuple[int, float, float]:
        """Sort key that puts what leaks most first."""
        leaked, psnr = self.strongest.strength
        return (LEVELS.index(self.level), -leaked, -psnr)


class Results(Judged):
    """A whole audit without its pictures. ``docs/results.md`` explains each field."""

    version: Literal[2]
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
    detail: str = ""
    assumptions: str = ""
    configurations: tuple[ConfigurationResult, ...]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        _once("configurations", [each.label for each in self.configurations])
        for each in self.configurations:
            _once(each.label, [attack.attack for attack in each.attacks])
        return self

    @property
    def worst(self) -> ConfigurationResult:
        """The configuration that leaks most."""
        return min(self.configurations, key=lambda each: each.mildness)

    @property
    def level(self) -> Level:
        """The verdict on the configuration that leaks most."""
        return self.worst.level

    @property
    def recommended(self) -> ConfigurationResult | None:
        """The configuration that the advice names."""
        return next((each for each in self.configurations if each.recommended), None)

    @property
    def measured(self) -> list[ConfigurationResult]:
        """The configurations for which something could be measured."""
        return [each for each in self.configurations if each.leak is not None]

    def above(self, accepted: float) -> list[tuple[str, float]]:
        """Return the configurations of which more than ``accepted`` leaked, each with its share."""
        shares = [(each.label, each.leak.share) for each in self.measured if each.leak is not None]
        return [(label, leaked) for label, leaked in shares if leaked > accepted]

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a ``results.json``, or the one in the folder of an audit."""
        path = Path(path)
        path = path / FILE if path.is_dir() else path
        try:
            content = json.loads(path.read_bytes())
        except OSError as error:
            raise LeakmeterError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise LeakmeterError(f"{path} is not JSON: give the results.json of an audit") from None
        if not isinstance(content, dict) or "version" not in content:
            raise LeakmeterError(f"{path} has no version: give the results.json of an audit")
        if content["version"] == 1:
            content = _renamed(content) | {"version": VERSION}
        if content["version"] != VERSION:
            raise LeakmeterError(
                f"{path}: version is {content['version']!r}, this leakmeter reads {VERSION}: "
                "run the audit again"
            )
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise LeakmeterError(f"{path}: {validation_errors(error, cls)[0]}") from None


def _renamed(content: Any) -> Any:
    """Convert a value of the first version to the current names."""
    if isinstance(content, list):
        return [_renamed(each) for each in content]
    if isinstance(content, dict):
        return {OLD_FIELDS.get(name, name): _renamed(each) for name, each in content.items()}
    return content


def change(before: Leak, after: Leak) -> Interval:
    """Return how much more leaked.

    This treats the images as different; if they are the same, the interval is wider than needed.
    """
    return difference(after.interval, before.interval)


def _once(where: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{where}: {name!r} is there twice")
