"""Trials on several updates from one client: matching their images, and attacking them jointly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from leakmeter import measure
from leakmeter.attacks import joint
from leakmeter.attacks.attack import RunOptions
from leakmeter.attacks.papers import RECIPES
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.bench import sources, victim
from leakmeter.bench.table import Pretraining, Row
from leakmeter.federated import Client
from leakmeter.update import Update

UPDATES = 4
"""Updates that a client sends per epoch here; the paper's client has a thousand images."""

BETWEEN = Pretraining(
    rounds=1,
    split="one",
    shared=False,
    settings={"epochs": 1, "batch_size": 50, "lr": 1.25e-3, "batchnorm": "eval"},
)
"""What the network learns between the two epochs, on the other images.

In total, as much as in the paper's thousand steps of one image each with lr 1e-4 (AGIC, section V).
"""


def match_images(row: Row, data: Path, repeat: int, options: RunOptions) -> dict[str, float]:
    """Reconstruct each update alone and pair up the images of two epochs (AGIC, table V)."""
    client = _Client(row, data, repeat)
    alone = [client.reconstruct(epoch, options) for epoch in (1, 2)]
    pairs = joint.match(
        alone[0],
        alone[1],
        pool=2 if row.settings["pooling"] else 1,
        by_label=row.settings["labels"],
    )
    shown = [client.shown(epoch, found) for epoch, found in zip((1, 2), alone, strict=True)]
    return {
        "matching_rate": measure.matching_rate(pairs, *shown),
        "seconds": sum(found.seconds for epoch in alone for found in epoch),
        "iterations": float(row.iterations),
    }


def attack_together(row: Row, data: Path, repeat: int, options: RunOptions) -> dict[str, float]:
    """Reconstruct the images from one epoch, or jointly from two (AGIC, table VI)."""
    client, epochs = _Client(row, data, repeat), row.settings["epochs"]
    if len(epochs) == 1:
        (epoch,) = epochs
        found = client.reconstruct(epoch, options)
        images = torch.cat([each.images for each in found])
        truth = client.images[client.order(epoch)]
        seconds = sum(each.seconds for each in found)
    else:
        together = joint.reconstruct(
            client.attack,
            client.networks[0],
            [client.updates(epoch) for epoch in epochs],
            rehearsal=max(1, row.iterations // 5),
            later=0.1,  # section V-A
            options=options,
        )
        images, truth = together.found.images, client.images[client.order(1)]
        before = sum(each.seconds for epoch in together.alone for each in epoch)
        seconds = together.found.seconds + before
    scores = measure.images(images, truth)
    return {
        "psnr": scores.psnr.mean().item(),
        "ssim": scores.ssim.mean().item(),
        "seconds": seconds,
        "iterations": float(row.iterations),
    }


class _Client:
    """A client that sends a few gradients in each of two epochs, in a different order each time."""

    def __init__(self, row: Row, data: Path, repeat: int) -> None:
        assert row.victim is not None
        held = replace(row.victim, examples=UPDATES * row.victim.examples)
        dataset = sources.load(data, held.data)
        chosen = victim.draw(held, dataset, repeat)
        self.images, self.labels = dataset.images[chosen], dataset.labels[chosen]
        self.batch, self.repeat, self.normalize = (
            row.victim.examples,
            repeat,
            sources.SOURCES[held.data].normalize,
        )
        self.networks: list[nn.Module] = [
            victim.network(held, dataset, repeat),
            victim.network(replace(held, trained=BETWEEN), dataset, repeat),
        ]
        attack = RECIPES[row.recipe.name](iterations=row.iterations, **row.recipe.options)
        self.attack = attack.searching(self.networks[0], self.updates(1)[0])

    def order(self, epoch: int) -> Tensor:
        """Indices of the images, in the order they are used."""
        generator = torch.Generator().manual_seed(1000 * epoch + self.repeat)
        return torch.randperm(len(self.images), generator=generator)

    def updates(self, epoch: int) -> list[Update]:
        """One gradient per batch."""
        return [
            Client(
                self.networks[epoch - 1],
                self.images[batch],
                self.labels[batch],
                normalize=self.normalize,
            ).gradient()
            for batch in self.order(epoch).split(self.batch)
        ]

    def reconstruct(self, epoch: int, options: RunOptions) -> list[Reconstruction]:
        """Reconstruct each update alone; rows that only compare images differently share this."""
        own = replace(options, seed=epoch - 1)
        model = self.networks[epoch - 1]
        return [self.attack.attempt(model, update, own) for update in self.updates(epoch)]

    def shown(self, epoch: int, found: list[Reconstruction]) -> list[int]:
        """For each reconstruction, the image of its update that it matches best."""
        shown: list[int] = []
        for batch, each in zip(self.order(epoch).split(self.batch), found, strict=True):
            pairs = measure.images(each.images, self.images[batch]).pairs
            shown += batch[pairs.argsort()].tolist()
        return shown
