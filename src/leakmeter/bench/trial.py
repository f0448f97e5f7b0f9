"""One trial of a row: make the victim, attack it, and measure the result."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from leakmeter import measure
from leakmeter.attacks.attack import Attack, RunOptions
from leakmeter.attacks.distance import Cosine
from leakmeter.attacks.matched import MatchedAttack
from leakmeter.attacks.papers import RECIPES
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.audits.parts import resolved_options
from leakmeter.bench import epochs, sources, text, victim
from leakmeter.bench.table import Row
from leakmeter.errors import LeakmeterError
from leakmeter.execution import Context, Done, Trial
from leakmeter.execution.memory import fresh_peak, peak_memory


class RowKind(Protocol):
    """Runs one kind of trial."""

    def __call__(self, row: Row, data: Path, repeat: int, options: RunOptions) -> dict[str, float]:
        """The metrics of one repeat.

        Args:
            row: the row to run; ``row.iterations`` is the number of iterations.
            data: folder with the data files.
            repeat: number of the repeat, from 0; determines everything random.
            options: options of the attacks.
        """
        ...


def options_of(row: Row) -> dict[str, Any]:
    """All options of the row's recipe, including defaults; an error says what is wrong."""
    if row.recipe.name not in RECIPES:
        raise LeakmeterError(f"there is no recipe {row.recipe.name!r} yet")
    given = {"iterations": row.iterations, **row.recipe.options}
    try:
        return resolved_options(row.recipe.name, RECIPES[row.recipe.name], given)
    except ValueError as error:
        raise LeakmeterError(f"recipe {row.recipe.name!r} has other options: {error}") from None


def build(row: Row) -> Attack:
    """The row's attack."""
    options = options_of(row)
    return RECIPES[row.recipe.name](**options)


def obstacle(row: Row) -> str:
    """Why the row cannot run, or an empty string."""
    if row.kind not in KINDS:
        return f"there is no trial of kind {row.kind!r} yet"
    try:
        build(row)
    except LeakmeterError as error:
        return str(error)
    return ""


def attack_images(row: Row, data: Path, repeat: int, options: RunOptions) -> dict[str, float]:
    """Attack one update and compare the images with the originals."""
    attacked = _victim(row, data, repeat, options)
    return _score(row, attacked, _attack(row, attacked, options))


def attack_at_cost(row: Row, data: Path, repeat: int, options: RunOptions) -> dict[str, float]:
    """Like ``attack_images``, plus the memory [GB] the attack adds; needs its own process.

    Seconds are scaled to the paper's number of iterations, so a few iterations are enough to
    compare costs.
    """
    attacked = _victim(row, data, repeat, options)
    before = fresh_peak()
    found = _attack(row, attacked, options)
    metrics = _score(row, attacked, found)
    metrics["memory"] = (peak_memory() - before) / 1e9
    metrics["seconds"] *= row.recipe.iterations / len(found.history["match"])
    return metrics


KINDS: dict[str, RowKind] = {
    "attack": attack_images,
    "cost": attack_at_cost,
    "joint": epochs.attack_together,
    "matching": epochs.match_images,
    "text": text.attack_sentence,
}
"""Every kind of trial, by its name in the rows."""

OWN_PROCESS = {"cost"}
"""Kinds whose trials each need a process of their own."""

SHARING = {"joint", "matching"}
"""Kinds in which several rows use the same reconstructions."""


class Metrics(BaseModel):
    """What a trial measured, by name; ``seconds`` and ``iterations`` are the attack's own."""

    metrics: dict[str, float]


@dataclass(frozen=True, eq=False)
class MeasureRow:
    """One repeat of a row.

    Attributes:
        row: the row of a table.
        repeat: number of the repeat, from 0.
        data: folder with the data files.
    """

    row: Row
    repeat: int
    data: Path

    def do(self, context: Context) -> Done:
        """Run the repeat and record its metrics."""
        options = RunOptions(
            on_progress=context.progress,
            paused=context.worker.paused,
            folder=context.shared if self.row.kind in SHARING else context.scratch,
        )
        metrics = KINDS[self.row.kind](self.row, self.data, self.repeat, options)
        figures = (metrics["psnr"],) if "psnr" in metrics else ()
        return Done(Metrics(metrics=metrics), {}, figures=figures)


def trial(row: Row, repeat: int, data: Path) -> Trial:
    """One repeat of a row, identified by everything its metrics depend on."""
    if row.victim is None:
        file = sources.locate_text(data)
    else:
        file = sources.locate(data, row.victim.data)
    return Trial(
        work=MeasureRow(row, repeat, data),
        spec={
            "kind": row.kind,
            "repeat": repeat,
            "victim": row.victim and dataclasses.asdict(row.victim),
            "attack": {"name": row.recipe.name, "options": options_of(row)},
            "paper_iterations": row.recipe.iterations,
            "labels_known": row.labels_known,
            "settings": dict(row.settings),
            "data": sources.fingerprint(file),
        },
        name=slug(row),
        words=f"{row.name}, repeat {repeat}",
        repeat=repeat,
        alike=f"{row.name} {row.iterations}",
        own_process=row.kind in OWN_PROCESS,
    )


def slug(row: Row) -> str:
    """The row's name as used in file names."""
    return re.sub(r"[^a-z0-9=]+", "-", row.name.lower())


def _victim(row: Row, data: Path, repeat: int, options: RunOptions) -> victim.Attacked:
    """The row's client; while its network is being trained, no iterations count as done."""
    if row.victim is None:
        raise LeakmeterError(f"{row.name} has no client to attack")

    def on_round(done: int, rounds: int) -> None:
        if options.on_progress is not None:
            options.on_progress(0, rounds, None)

    return victim.make(row.victim, data, repeat, on_round)


def _attack(row: Row, attacked: victim.Attacked, options: RunOptions) -> Reconstruction:
    labels = attacked.labels if row.labels_known else None
    own = dataclasses.replace(options, labels=labels)
    return build(row).attempt(attacked.model, attacked.update, own)


def _score(row: Row, attacked: victim.Attacked, found: Reconstruction) -> dict[str, float]:
    scores = measure.images(found.images, attacked.images)
    metrics = {
        "psnr": scores.psnr.mean().item(),
        "ssim": scores.ssim.mean().item(),
        "seconds": found.seconds,
        "iterations": float(len(found.history["match"])),
    }
    attack = build(row)
    if isinstance(attack, MatchedAttack) and attack.distance == Cosine():  # the papers' L_sim
        metrics["l_sim"] = found.history["match"][-1].item()
    if not row.labels_known:
        metrics["label_accuracy"] = measure.label_accuracy(found.labels, attacked.labels)
    return metrics
