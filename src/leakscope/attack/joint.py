"""Several updates of the same client: find out which images they share, and use all of them.

AGIC (Xu et al. 2022), section IV-B: reconstruct every update alone, pair the images across
epochs, then reconstruct once more with one image per pair.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import leakscope
from leakscope.attack.attack import Attack, View
from leakscope.attack.labels import Known
from leakscope.attack.problem import Problem
from leakscope.attack.reconstruction import Reconstruction
from leakscope.attack.solver import Progress
from leakscope.errors import LeakscopeError, require
from leakscope.update import Update


@dataclass(frozen=True, eq=False)
class JointReconstruction:
    """What several updates of one client give away together.

    Attributes:
        found: the images in the order of the first epoch.
        alone: what each update gave away by itself, by epoch.
        pairs: for each later epoch, [M]: image i of the first epoch is its image ``pairs[i]``.
    """

    found: Reconstruction
    alone: list[list[Reconstruction]]
    pairs: list[Tensor]


def reconstruct(
    attack: Attack,
    model: nn.Module,
    epochs: Sequence[Sequence[Update]],
    *,
    labels: Sequence[Sequence[Tensor]] | None = None,
    rehearsal: int = 2000,
    pool: int = 2,
    by_label: bool = True,
    later: float = 1.0,
    seed: int = 0,
    device: torch.device | str | None = None,
    on_progress: Progress | None = None,
    keep: Path | None = None,
) -> JointReconstruction:
    """Reconstruct the M images that every epoch's updates have in common.

    Args:
        attack: the recipe, such as ``papers.agic()``.
        model: the architecture.
        epochs: the updates of each epoch or round; all epochs cover the same M images.
        labels: those the attacker is assumed to know, by epoch and update, else recovered.
        rehearsal: iterations of the reconstruction of each update alone, at most the attack's own.
        pool: side of the averaging before images are compared.
        by_label: pair only images of updates with a label in common.
        later: how much updates of later epochs count beside those of the first. AGIC says 0.1
            (section V-A), with which they hardly help (docs/reproduction.md).
        seed: of the random starts.
        device: where to compute.
        on_progress: called after every iteration of every reconstruction.
        keep: folder for finished reconstructions and checkpoints, to go on from after a break.
    """
    require("later", later, above=0)
    _check(attack, model, epochs, device)
    fewer = min(rehearsal, attack.solver.iterations)
    rehearsed = replace(attack, solver=replace(attack.solver, iterations=fewer))
    alone = [
        [
            rehearse(
                rehearsed,
                model,
                update,
                labels=None if labels is None else labels[number][position],
                seed=seed + number,  # with equal starts, equal positions would look alike
                device=device,
                on_progress=on_progress,
                keep=keep,
            )
            for position, update in enumerate(epoch)
        ]
        for number, epoch in enumerate(epochs)
    ]
    pairs = [match(alone[0], each, pool=pool, by_label=by_label) for each in alone[1:]]
    first = torch.cat([each.labels for each in alone[0]])
    found = attack.reconstruct(
        _views(model, epochs, alone, pairs, later, device),
        Known(first),
        count=len(first),
        seed=seed,
        on_progress=on_progress,
        checkpoint=None if keep is None else keep / "joint.checkpoint",
        identity=f"{attack!r} {seed} {later} {[each.tolist() for each in pairs]} "
        f"{[update.fingerprint() for epoch in epochs for update in epoch]}",
    )
    return JointReconstruction(replace(found, labels_known=labels is not None), alone, pairs)


def rehearse(
    attack: Attack,
    model: nn.Module,
    update: Update,
    *,
    labels: Tensor | None,
    seed: int,
    device: torch.device | str | None,
    on_progress: Progress | None,
    keep: Path | None,
) -> Reconstruction:
    """One update alone, read back from the folder ``keep`` if it was finished there before."""
    told = None if labels is None else labels.tolist()
    identity = f"{leakscope.__version__} {attack!r} {seed} {told} {update.fingerprint()}"
    name = f"alone-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.safetensors"
    if keep is not None:
        with contextlib.suppress(LeakscopeError):  # not there, or damaged: attack again
            return Reconstruction.load(keep / name)
    found = attack.run(
        model,
        update,
        labels=labels,
        seed=seed,
        device=device,
        on_progress=on_progress,
        checkpoint=None if keep is None else keep / f"{name}.checkpoint",
    )
    if keep is not None:
        found.save(keep / name)
    return found


def match(
    first: Sequence[Reconstruction],
    second: Sequence[Reconstruction],
    *,
    pool: int = 2,
    by_label: bool = True,
) -> Tensor:
    """Which image of ``second`` each image of ``first`` is, [M]: greedy from the most alike.

    Args:
        first: reconstructions of one epoch's updates, M images in all.
        second: those of another epoch.
        pool: side of the averaging that evens out noise; 1 for none.
        by_label: admit only pairs of updates with a label in common, as long as there are any.
    """
    ours, theirs = (
        functional.avg_pool2d(torch.cat([each.images for each in side]), pool).flatten(1)
        for side in (first, second)
    )
    gaps = torch.cdist(ours.double(), theirs.double())
    if by_label:
        common = [
            [bool(set(a.labels.tolist()) & set(b.labels.tolist())) for b in second] for a in first
        ]
        sizes = [torch.tensor([len(each.images) for each in side]) for side in (first, second)]
        allowed = torch.tensor(common).repeat_interleave(sizes[0], 0)
        allowed = allowed.repeat_interleave(sizes[1], 1)
        gaps = gaps + (~allowed) * (gaps.max() + 1)  # last resort: everything gets a partner
    pairs = torch.full((len(ours),), -1)
    taken = torch.zeros(len(theirs), dtype=torch.bool)
    for place in gaps.flatten().argsort(stable=True).tolist():
        mine, other = divmod(place, len(theirs))
        if pairs[mine] < 0 and not taken[other]:
            pairs[mine], taken[other] = other, True
    return pairs


def _check(
    attack: Attack,
    model: nn.Module,
    epochs: Sequence[Sequence[Update]],
    device: torch.device | str | None,
) -> None:
    if len(epochs) < 2:
        raise LeakscopeError("epochs has fewer than two entries: for one update use Attack.run")
    totals = [sum(update.num_examples for update in epoch) for epoch in epochs]
    if len(set(totals)) > 1:
        raise LeakscopeError(
            f"the epochs have {totals} examples: all must cover the same images of the client"
        )
    for update in (update for epoch in epochs for update in epoch):
        problem = Problem.of(model, update, device)
        attack.trajectory.variables(problem)  # complains about what it must know
        if attack.trajectory.copies(problem) > 1:
            raise LeakscopeError(
                "this attack gives every local epoch images of its own and takes one update: "
                "use agic"
            )


def _views(
    model: nn.Module,
    epochs: Sequence[Sequence[Update]],
    alone: list[list[Reconstruction]],
    pairs: list[Tensor],
    later: float,
    device: torch.device | str | None,
) -> list[View]:
    """Every update with the indices of its images among those of the first epoch."""
    views = []
    for number, (epoch, found) in enumerate(zip(epochs, alone, strict=True)):
        # Where the images of this epoch stand in the first one.
        place = pairs[number - 1].argsort() if number else torch.arange(len(pairs[0]))
        sizes = [update.num_examples for update in epoch]
        for position, members in enumerate(place.split(sizes)):
            problem = Problem.of(model, epoch[position], device)
            views.append(
                View(
                    problem,
                    members.to(problem.low.device),
                    labels=found[position].labels.to(problem.low.device),
                    # A mean over the epoch's updates, as priors are means over the images.
                    weight=(later if number else 1.0) / len(epoch),
                    prefix=f"{number}.{position}/",
                )
            )
    return views
