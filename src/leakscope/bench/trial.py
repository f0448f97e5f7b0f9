"""One trial of a row: make the victim, attack it, measure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from leakscope import measure
from leakscope.attack.attack import Attack
from leakscope.attack.distance import Cosine
from leakscope.attack.papers import RECIPES, Runnable
from leakscope.attack.reconstruction import Reconstruction
from leakscope.attack.solver import Progress
from leakscope.audit.memory import fresh_peak, peak_memory
from leakscope.bench import epochs, text, victim
from leakscope.bench.table import Row
from leakscope.errors import LeakscopeError


class Trial(Protocol):
    """How a trial of some kind is done."""

    def __call__(
        self, row: Row, data: Path, repeat: int, on_progress: Progress, checkpoint: Path
    ) -> dict[str, float]:
        """The metrics of one repeat.

        Args:
            row: what to do; ``row.iterations`` says how long.
            data: folder of the data files.
            repeat: counted from 0; decides everything random.
            on_progress: to be handed on to attacks; it also carries Ctrl-C into them.
            checkpoint: for the attack's own; it may not exist. A kind with several attacks uses
                files beside it.
        """
        ...


def build(row: Row) -> Runnable:
    """The row's attack; an error says why there is none."""
    if row.recipe.name not in RECIPES:
        raise LeakscopeError(f"there is no recipe {row.recipe.name!r} yet")
    try:
        return RECIPES[row.recipe.name](iterations=row.iterations, **row.recipe.options)
    except TypeError as error:
        raise LeakscopeError(f"recipe {row.recipe.name!r} has other options: {error}") from None


def obstacle(row: Row) -> str:
    """Why the row cannot run, or an empty string."""
    if row.kind not in KINDS:
        return f"there is no trial of kind {row.kind!r} yet"
    try:
        build(row)
    except LeakscopeError as error:
        return str(error)
    return ""


def attack_images(
    row: Row, data: Path, repeat: int, on_progress: Progress, checkpoint: Path
) -> dict[str, float]:
    """Attack one update and hold the images against the truth."""
    attacked = _victim(row, data, repeat, on_progress)
    return _score(row, attacked, _attack(row, attacked, on_progress, checkpoint))


def attack_at_cost(
    row: Row, data: Path, repeat: int, on_progress: Progress, checkpoint: Path
) -> dict[str, float]:
    """The same with the memory [GB] that the attack adds; needs a process of its own.

    Seconds are scaled to the paper's iterations: costs are comparable after a few.
    """
    attacked = _victim(row, data, repeat, on_progress)
    before = fresh_peak()
    found = _attack(row, attacked, on_progress, checkpoint)
    metrics = _score(row, attacked, found)
    metrics["memory"] = (peak_memory() - before) / 1e9
    metrics["seconds"] *= row.recipe.iterations / len(found.history["match"])
    return metrics


KINDS: dict[str, Trial] = {
    "attack": attack_images,
    "cost": attack_at_cost,
    "joint": epochs.attack_together,
    "matching": epochs.match_images,
    "text": text.attack_sentence,
}
"""Every kind of trial by its name in the rows."""

OWN_PROCESS = {"cost"}
"""Kinds whose trials share a process with nothing else."""


@dataclass(frozen=True)
class Outcome:
    """What became of a trial.

    Attributes:
        metrics: by name; ``seconds`` and ``iterations`` are those of the attack.
        error: why there are none.
    """

    metrics: dict[str, float]
    error: str = ""


@dataclass(frozen=True)
class Job:
    """One trial to be done, in whatever process."""

    row: Row
    repeat: int
    data: Path
    checkpoint: Path


def perform(job: Job, on_progress: Progress) -> Outcome:
    """Do a trial; whatever goes wrong in it is its outcome and stops no other."""
    try:
        kind = KINDS[job.row.kind]
        return Outcome(kind(job.row, job.data, job.repeat, on_progress, job.checkpoint))
    except Exception as error:
        text = " ".join(str(error).split())
        prefix = "" if isinstance(error, LeakscopeError) else f"{type(error).__name__}: "
        return Outcome({}, error=f"{prefix}{text}")


def _victim(row: Row, data: Path, repeat: int, on_progress: Progress) -> victim.Attacked:
    """The row's client; a network that is still being trained counts as no iteration done."""
    assert row.victim is not None
    return victim.make(row.victim, data, repeat, lambda _, rounds: on_progress(0, rounds, None))


def _attack(
    row: Row, attacked: victim.Attacked, on_progress: Progress, checkpoint: Path
) -> Reconstruction:
    return build(row).run(
        attacked.model,
        attacked.update,
        labels=attacked.labels if row.labels_known else None,
        seed=0,
        on_progress=on_progress,
        checkpoint=checkpoint,
    )


def _score(row: Row, attacked: victim.Attacked, found: Reconstruction) -> dict[str, float]:
    scores = measure.images(found.images, attacked.images)
    metrics = {
        "psnr": scores.psnr.mean().item(),
        "ssim": scores.ssim.mean().item(),
        "seconds": found.seconds,
        "iterations": float(len(found.history["match"])),
    }
    attack = build(row)
    if isinstance(attack, Attack) and attack.distance == Cosine():  # the papers' L_sim
        metrics["l_sim"] = found.history["match"][-1].item()
    if not row.labels_known:
        metrics["label_accuracy"] = measure.label_accuracy(found.labels, attacked.labels)
    return metrics
