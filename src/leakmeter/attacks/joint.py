"""Use several updates of the same client: find the images that they share.

AGIC (Xu et al. 2022), section IV-B: reconstruct every update alone, pair the images across
epochs, then reconstruct once more with one image per pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from leakmeter.attacks.attack import RunOptions, Searching, View
from leakmeter.attacks.labels import Known
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.errors import LeakmeterError, require
from leakmeter.execution import kept
from leakmeter.update import Update


@dataclass(frozen=True, eq=False)
class JointReconstruction:
    """What several updates of one client reveal together.

    Attributes:
        found: the images in the order of the first epoch.
        alone: what each update revealed by itself, by epoch.
        pairs: for each later epoch, [M]; image i of the first epoch is its image ``pairs[i]``.
    """

    found: Reconstruction
    alone: list[list[Reconstruction]]
    pairs: list[Tensor]


def reconstruct(
    attack: Searching,
    model: nn.Module,
    epochs: Sequence[Sequence[Update]],
    *,
    labels: Sequence[Sequence[Tensor]] | None = None,
    rehearsal: int = 2000,
    pool: int = 2,
    by_label: bool = True,
    later: float = 1.0,
    options: RunOptions | None = None,
) -> JointReconstruction:
    """Reconstruct the M images that every epoch's updates have in common.

    Args:
        attack: the recipe, such as ``papers.agic()``.
        model: the architecture.
        epochs: the updates of each epoch or round; all epochs cover the same M images.
        labels: labels the attacker is assumed to know, by epoch and update; else recovered.
        rehearsal: iterations for reconstructing each update alone, at most the attack's own.
        pool: side of the averaging window applied before images are compared.
        by_label: pair only images of updates with a label in common.
        later: weight of updates of later epochs relative to those of the first. AGIC uses 0.1
            (section V-A), with which they hardly help (docs/reproduction.md).
        options: options of every run; their labels are not used.
    """
    require("later", later, above=0)
    options = options or RunOptions()
    _check(attack, model, epochs, options.device)
    rehearsed = attack.within(iterations=rehearsal)
    alone = [
        [
            rehearsed.attempt(
                model,
                update,
                replace(
                    options,
                    labels=None if labels is None else labels[number][position],
                    seed=options.seed + number,  # equal starts would make equal positions alike
                ),
            )
            for position, update in enumerate(epoch)
        ]
        for number, epoch in enumerate(epochs)
    ]
    pairs = [match(alone[0], each, pool=pool, by_label=by_label) for each in alone[1:]]
    first = torch.cat([each.labels for each in alone[0]])
    views = _views(model, epochs, alone, pairs, later, options.device)

    def work(folder: Path | None) -> Reconstruction:
        own = replace(options, folder=folder)
        return attack.explain(views, Known(first), own, count=len(first))

    prints = [update.fingerprint() for epoch in epochs for update in epoch]
    found = kept(
        work,
        options.folder,
        name="joint",
        of=[attack, options.seed, later, pairs, prints],
        load=Reconstruction.load,
    )
    return JointReconstruction(replace(found, labels_known=labels is not None), alone, pairs)


def match(
    first: Sequence[Reconstruction],
    second: Sequence[Reconstruction],
    *,
    pool: int = 2,
    by_label: bool = True,
) -> Tensor:
    """Match each image of ``first`` to one of ``second``, [M], greedily from the most alike.

    Args:
        first: reconstructions of one epoch's updates, M images in all.
        second: those of another epoch.
        pool: side of the averaging window that smooths out noise; 1 for none.
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
    attack: Searching,
    model: nn.Module,
    epochs: Sequence[Sequence[Update]],
    device: torch.device | str | None,
) -> None:
    if len(epochs) < 2:
        raise LeakmeterError("epochs has fewer than two entries: for one update use Attack.run")
    totals = [sum(update.num_examples for update in epoch) for epoch in epochs]
    if len(set(totals)) > 1:
        raise LeakmeterError(
            f"the epochs have {totals} examples: all must cover the same images of the client"
        )
    for update in (update for epoch in epochs for update in epoch):
        problem = Problem.of(model, update, device)
        attack.trajectory.variables(problem)  # complains about what it must know
        if attack.trajectory.copies(problem) > 1:
            raise LeakmeterError(
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
    """Return every update with the indices of its images among those of the first epoch."""
    views = []
    for number, (epoch, found) in enumerate(zip(epochs, alone, strict=True)):
        # Positions of this epoch's images in the first epoch.
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
