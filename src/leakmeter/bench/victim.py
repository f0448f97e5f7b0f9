"""Makes a row's client: draws its images, prepares the network, trains, and sends the update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from leakmeter import models
from leakmeter.bench import sources
from leakmeter.bench.table import Pretraining, Victim
from leakmeter.data import Dataset
from leakmeter.errors import LeakmeterError
from leakmeter.execution import exclusive
from leakmeter.federated import Client, by_writer, federate
from leakmeter.models.factory import seeded
from leakmeter.update import Update

OnRound = Callable[[int, int], None]

MOST_REPEATS = 100
"""As many as in the papers; a network shared by all repeats has seen none of their images."""

_WRITERS = 5


@dataclass(frozen=True, eq=False)
class Attacked:
    """A client, what it held, and what it sent.

    Attributes:
        model: the network it received.
        update: what it sent.
        images: its images [N, C, H, W] in [0, 1].
        labels: its labels [N].
    """

    model: nn.Module
    update: Update
    images: Tensor
    labels: Tensor


def make(victim: Victim, folder: Path, repeat: int, on_round: OnRound | None = None) -> Attacked:
    """The client of one repeat, which determines its images, network, and order of examples.

    Args:
        victim: the row's description of the client.
        folder: folder with the data files.
        repeat: number of the repeat, from 0.
        on_round: called with (done, total) after every round of training.
    """
    dataset = sources.load(folder, victim.data)
    chosen = draw(victim, dataset, repeat)
    images, labels = dataset.images[chosen], dataset.labels[chosen]
    model = network(victim, dataset, repeat, on_round)
    client = Client(
        model,
        images,
        labels,
        epochs=victim.epochs,
        batch_size=victim.batch_size,
        normalize=sources.SOURCES[victim.data].normalize if victim.normalize else None,
        seed=repeat,
        **{"lr": victim.lr, **victim.settings},
    )
    update = client.gradient() if victim.shares == "gradient" else client.train()
    return Attacked(model, update, images, labels)


def draw(victim: Victim, dataset: Dataset, repeat: int) -> Tensor:
    """Indices [N] of the images that the client holds in one repeat."""
    generator = torch.Generator().manual_seed(repeat)
    if victim.pick == "varied":
        chosen = _varied(dataset, victim.examples, generator)
    elif victim.pick == "writer":
        chosen = _first_of_a_writer(dataset, victim.examples, generator)
    else:
        chosen = torch.randperm(len(dataset), generator=generator)
        if victim.pick == "distinct":
            chosen = _first_of_each_class(chosen, dataset.labels)
        chosen = chosen[: victim.examples]
    if len(chosen) < victim.examples:
        raise LeakmeterError(
            f"{dataset.name}: only {len(chosen)} images can be drawn ({victim.pick}) "
            f"but a client holds {victim.examples}: use a larger data file"
        )
    return chosen


def _first_of_each_class(order: Tensor, labels: Tensor) -> Tensor:
    seen: set[int] = set()
    kept = []
    for index in order.tolist():
        label = int(labels[index])
        if label not in seen:
            seen.add(label)
            kept.append(index)
    return torch.tensor(kept)


def _first_of_a_writer(dataset: Dataset, examples: int, generator: torch.Generator) -> Tensor:
    """The first images, in file order, of a writer who has enough of them."""
    writers = by_writer(_writers(dataset))
    able = [part for part in writers if len(part) >= examples] or [max(writers, key=len)]
    return able[int(torch.randint(len(able), (), generator=generator))][:examples]


def _varied(dataset: Dataset, examples: int, generator: torch.Generator) -> Tensor:
    """The images with the most variance and edges from five writers, equally many from each."""
    writers = by_writer(_writers(dataset))
    some = torch.randperm(len(writers), generator=generator)[:_WRITERS].tolist()
    chosen = []
    for who in some:
        images = dataset.images[writers[who]]
        edges = images.diff(dim=-1).abs().mean((1, 2, 3)) + images.diff(dim=-2).abs().mean(
            (1, 2, 3)
        )
        best = (images.var(dim=(1, 2, 3)) * edges).argsort(descending=True)
        chosen.append(writers[who][best[: examples // _WRITERS]])
    return torch.cat(chosen)


def _writers(dataset: Dataset) -> Tensor:
    if dataset.writer is None:
        raise LeakmeterError(f"{dataset.name}: field 'writer' is missing: this row splits by it")
    return dataset.writer


def network(
    victim: Victim, dataset: Dataset, repeat: int, on_round: OnRound | None = None
) -> nn.Module:
    """The network that the client receives."""
    shared = victim.trained is not None and victim.trained.shared
    seed = 0 if shared else repeat
    channels, size, _ = dataset.shape
    model = models.build(
        victim.model, classes=dataset.classes, channels=channels, size=size, seed=seed
    )
    initialize(model, victim.init, seed)
    if victim.trained is None:
        return model
    repeats = range(MOST_REPEATS) if shared else [repeat]
    kept = torch.ones(len(dataset), dtype=torch.bool)
    kept[torch.cat([draw(victim, dataset, each) for each in repeats])] = False
    pool = dataset.select(kept.nonzero().flatten())
    normalize = sources.SOURCES[victim.data].normalize
    return _train(model, victim.trained, pool, normalize, seed, on_round)


def initialize(model: nn.Module, init: str, seed: int) -> None:
    """Redraw the weights in place, unless ``init`` is ``default`` (SAPAG, section VI-B)."""
    with torch.no_grad(), seeded(seed):
        for name, parameter in model.named_parameters():
            if init == "uniform":
                parameter.uniform_(-0.5, 0.5)
            elif init == "xavier-normal" and parameter.ndim > 1:
                nn.init.xavier_normal_(parameter)
            elif init == "xavier-normal" and name.endswith("bias"):
                parameter.zero_()


def _train(
    model: nn.Module,
    training: Pretraining,
    pool: Dataset,
    normalize: str,
    seed: int,
    on_round: OnRound | None,
) -> nn.Module:
    if training.split == "writer":
        parts = by_writer(_writers(pool))
    else:
        # Only whole batches: batch norm cannot train on a final batch of a single image.
        batch_size = training.settings["batch_size"]
        parts = [torch.arange(len(pool) // batch_size * batch_size)]
    with exclusive("training"):  # do not train the same network twice in parallel
        return federate(
            model,
            [(pool.images[part], pool.labels[part]) for part in parts],
            rounds=training.rounds,
            seed=seed,
            normalize=normalize,
            on_round=on_round,
            **training.settings,
        )
