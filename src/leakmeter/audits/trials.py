"""The work on clients that a scenario describes: train them here, attack, and measure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from leakmeter.attacks.attack import RunOptions
from leakmeter.attacks.compiling import Compiling
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.audits.parts import AttackPart, UtilityPart
from leakmeter.audits.setting import (
    Defenses,
    Sent,
    Setting,
    Stage,
    Victims,
    plain,
    sent,
    stage,
    victims,
)
from leakmeter.audits.utility import measured_utility
from leakmeter.errors import LeakmeterError
from leakmeter.execution import Context, Done
from leakmeter.judge import Truth, Utility
from leakmeter.measure import Scores, Straightness, score, signal_free
from leakmeter.state import read_safetensors, write_safetensors
from leakmeter.update import Protocol, Update

FOUND, TRUTH = "reconstruction.safetensors", "truth.safetensors"
"""The files of an attack: what it found, and what the client had."""

UNAWARE: dict[str, Any] = {"sparse": False, "bits": None, "distorted": ()}
"""Protocol fields for an attack that does not know how updates are encoded."""


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AttackOutcome(_Result):
    """The numbers of an attack, or of its baseline.

    Attributes:
        scores: scores against the truth, if there is one.
        chance: re-identification rate of a blind guess.
        protocol: what the attack was told about the client.
        bytes_sent: bytes sent by one client.
        replay: how well training on what was found explains the update (1: fully).
    """

    kind: Literal["attack"] = "attack"
    scores: Scores | None = None
    chance: float | None = None
    protocol: Protocol
    bytes_sent: int | None = None
    replay: float | None = None


class UtilityOutcome(_Result):
    """How well a network can learn from such clients."""

    kind: Literal["utility"] = "utility"
    utility: Utility


class PathOutcome(_Result):
    """How straight a client's path was."""

    kind: Literal["path"] = "path"
    path: Straightness


Outcome = AttackOutcome | UtilityOutcome | PathOutcome
"""The numbers of a trial of any kind."""


@dataclass(frozen=True)
class OnClient:
    """Work on a client of a setting.

    Attributes:
        setting: whom to attack.
        images: digest of the setting's data.
        defenses: what its clients do against leakage.
        client: number of the client.
        walked: whether paths are measured in this audit.
    """

    setting: Setting
    images: str
    defenses: Defenses
    client: int
    walked: bool

    def stage(self, context: Context) -> Stage:
        """Load the setting, unless its images have changed since the audit was planned."""
        on = context.worker.cache.get(stage, self.setting)
        if on.dataset.fingerprint != self.images:
            raise LeakmeterError(
                "data.source: the images have changed meanwhile: run the audit again"
            )
        return on

    def victims(self, context: Context) -> Victims:
        """Return the client and those whose updates are summed with its own."""
        self.stage(context)
        whose = (self.setting, self.defenses, self.client)
        return context.worker.cache.get(victims, *whose, most=4)

    def sent(self, context: Context) -> Sent:
        """Return what the server sees."""
        self.stage(context)
        whose = (self.setting, self.defenses, self.client, self.walked)
        return context.worker.cache.get(sent, *whose, most=4)


@dataclass(frozen=True)
class AttackClient(OnClient):
    """Attack what one client sent, and measure what comes out.

    Attributes:
        attack: how, and what the attacker is told.
        compiling: whether to compile its step.
    """

    attack: AttackPart
    compiling: Compiling

    def do(self, context: Context) -> Done:
        """Attack the update."""
        found = self.sent(context)
        update = found.update
        if not self.attack.aware:
            update = replace(update, protocol=update.protocol.model_copy(update=UNAWARE))
        return self.measured(context, update, found.size)

    def measured(self, context: Context, update: Update, size: int | None) -> Done:
        """Attack ``update`` and compare what is found with the truth."""
        on, attacked = self.stage(context), self.victims(context)
        truth, pool = attacked.truth, attacked.line_ups
        options = RunOptions(
            labels=truth.labels if self.attack.labels == "known" else None,
            seed=self.setting.seed,
            on_progress=context.progress,
            paused=context.worker.paused,
            folder=context.scratch,
            compiling=self.compiling,
        )
        found = self.attack.build().attempt(attacked.clients[0].model, update, options)
        scores, chance = score(
            found, truth.images, truth.labels, pool.images, pool.labels, on.lpips
        )
        outcome = AttackOutcome(
            scores=scores, chance=chance, protocol=update.protocol, bytes_sent=size
        )
        return finished(context, outcome, found, None if size is None else truth)


@dataclass(frozen=True)
class AttackNoise(AttackClient):
    """The baseline: the same attack on noise of the same size.

    It ignores all defenses, except for a network that one has changed.
    """

    def do(self, context: Context) -> Done:
        """Attack noise."""
        whose = (self.setting, self.defenses, self.client, self.walked)
        update = context.worker.cache.get(plain, *whose, most=4)
        return self.measured(context, signal_free(update, self.setting.seed), None)


@dataclass(frozen=True)
class MeasureUtility(OnClient):
    """Measure what a network learns from such clients.

    Attributes:
        part: how to measure it.
    """

    part: UtilityPart

    def do(self, context: Context) -> Done:
        """Train and test."""
        utility = measured_utility(self.stage(context), self.defenses, self.part, context.step)
        return Done(UtilityOutcome(utility=utility), {})


@dataclass(frozen=True)
class MeasurePath(OnClient):
    """Measure how straight a client's path is while the client trains."""

    def do(self, context: Context) -> Done:
        """Train the client unless it has been trained."""
        path = self.sent(context).path
        if path is None:
            raise LeakmeterError("this client's path was not measured")
        return Done(PathOutcome(path=path), {})


def finished(
    context: Context, outcome: AttackOutcome, found: Reconstruction, truth: Truth | None
) -> Done:
    """Return the output of a trial with an attack."""
    files = {FOUND: context.scratch / FOUND}
    found.save(files[FOUND])
    if truth is not None:
        files[TRUTH] = context.scratch / TRUTH
        write_safetensors({"images": truth.images, "labels": truth.labels}, {}, files[TRUTH])
    figures = () if outcome.scores is None else tuple(outcome.scores.psnr)
    return Done(outcome, files, seconds=found.seconds, figures=figures)


def read_truth(path: Path) -> Truth:
    """Read what the client had."""
    tensors, _ = read_safetensors(path)
    return Truth(tensors["images"], tensors["labels"])
