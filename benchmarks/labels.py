"""How many labels each recovery finds, by kind of update, network, number and mix of classes.

    OMP_NUM_THREADS=1 python benchmarks/labels.py --data FOLDER

FOLDER holds cifar100.npz and femnist.npz. Prints the share of true labels found
(``measure.label_accuracy``), averaged over clients, in percent with its 95 % interval; "-" where a
method does not apply. Half of the images are used to train the trained networks; clients draw
theirs from the other half. Takes about ten minutes on one core; ``--network`` runs only one
network.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

import leakmeter as lm
from leakmeter.attacks import labels
from leakmeter.attacks.problem import Problem

METHODS: tuple[labels.Labels, ...] = (
    labels.Single(),
    labels.RowMinima(),
    labels.SignCounts(),
    labels.EmbeddingCounts(),
    labels.InterpolatedCounts(),
    labels.Counts(),
    labels.Automatic(),
)
FIRST_SEED = 100
"""The first client's seed; smaller seeds were used to choose among methods."""


@dataclass(frozen=True)
class Network:
    """A network, its data, and its special settings.

    Attributes:
        name: its name in :data:`leakmeter.models.REGISTRY`.
        data: stem of the .npz file.
        lr: step size for training the trained network.
        epochs: length of that training, in batches of 20 with momentum 0.9; 0 for none.
        clients: number of clients.
        counts: numbers of examples N.
        local_epochs: numbers of local epochs; 0 stands for a single gradient.
        bias: whether the last layer has a bias.
        lr_known: whether the server knows the clients' step size.
        optimizer: the clients' optimizer.
        classes: number of classes to use, counted from the first.
    """

    name: str
    data: str = "cifar100"
    lr: float = 0.01
    epochs: int = 0
    clients: int = 10
    counts: tuple[int, ...] = (1, 10, 50)
    local_epochs: tuple[int, ...] = (0, 1, 5, 20)
    bias: bool = True
    lr_known: bool = True
    optimizer: str = "sgd"
    classes: int | None = None

    def __str__(self) -> str:
        notes = {
            "no bias": self.bias,
            "lr unknown": self.lr_known,
            self.optimizer: self.optimizer == "sgd",
            f"{self.classes} classes": self.classes is None,
        }
        return ", ".join([self.name, *(note for note, fine in notes.items() if not fine)])


_FEMNIST = Network("cnn-femnist", "femnist", epochs=1)
_SPECIAL = replace(_FEMNIST, clients=6, counts=(10, 50), local_epochs=(0, 20))
NETWORKS = (
    Network("cnn-cifar", epochs=7, clients=5),
    _FEMNIST,
    replace(_SPECIAL, classes=10),
    replace(_SPECIAL, bias=False),
    replace(_SPECIAL, bias=False, classes=10),
    replace(_SPECIAL, lr_known=False, local_epochs=(1, 20)),
    replace(_SPECIAL, optimizer="adam", local_epochs=(1, 20)),
    Network("lenet-zhu", lr=0.05, epochs=25),
    Network("resnet20-4", clients=3, counts=(10,), local_epochs=(0, 5)),
)


@dataclass(frozen=True, order=True)
class Setting:
    """What the clients in one row of the table have in common."""

    trained: bool
    local_epochs: int
    count: int
    skewed: bool

    def __str__(self) -> str:
        sends = f"E={self.local_epochs}" if self.local_epochs else "gradient"
        mix = "3 classes" if self.skewed else "any"
        return f"{'trained' if self.trained else 'fresh'}, {sends}, N={self.count}, {mix}"


def images_of(network: Network, folder: Path) -> lm.data.Dataset:
    data = lm.data.load(f"npz:{folder / network.data}.npz")
    if network.classes is None:
        return data
    few = data.select((data.labels < network.classes).nonzero().flatten())
    return replace(few, class_names=data.class_names[: network.classes])


def halves(data: lm.data.Dataset) -> tuple[lm.data.Dataset, lm.data.Dataset]:
    """At most 2,000 images for training networks, and the clients' images, with no overlap."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    middle = len(data) // 2
    return data.select(order[: min(middle, 2_000)]), data.select(order[middle:])


def fresh(network: Network, classes: int) -> nn.Module:
    model = lm.models.build(network.name, classes=classes)
    if not network.bias:
        last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        last.register_parameter("bias", None)
    return model


def trained(network: Network, model: nn.Module, data: lm.data.Dataset) -> nn.Module:
    return lm.federated.federate(
        model,
        [(data.images, data.labels)],
        rounds=1,
        epochs=network.epochs,
        batch_size=20,
        lr=network.lr,
        momentum=0.9,
        normalize=network.data,
    )


def accuracy(model: nn.Module, data: lm.data.Dataset, normalize: str) -> float:
    mean, std = (torch.tensor(side).view(-1, 1, 1) for side in lm.data.normalization(normalize))
    with torch.no_grad():
        answers = torch.cat([model((x - mean) / std).argmax(1) for x in data.images.split(200)])
    return (answers == data.labels).float().mean().item()


def draw(data: lm.data.Dataset, count: int, skewed: bool, seed: int) -> lm.data.Dataset:
    """``count`` examples, from all classes or from three."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data), generator=generator)
    if skewed:
        sizes = torch.bincount(data.labels, minlength=data.classes)
        large = (sizes >= count / 3 + 1).nonzero().flatten()
        three = large[torch.randperm(len(large), generator=generator)[:3]]
        order = order[torch.isin(data.labels[order], three)]
    return data.select(order[:count])


def victim(
    network: Network, setting: Setting, model: nn.Module, data: lm.data.Dataset, seed: int
) -> tuple[Problem, torch.Tensor]:
    """What a client sent, and its labels."""
    mine = draw(data, setting.count, setting.skewed, seed)
    client = lm.Client(
        model,
        mine.images,
        mine.labels,
        epochs=max(1, setting.local_epochs),
        batch_size=10,
        lr=0.004 if network.optimizer == "sgd" else 0.001,
        optimizer=network.optimizer,
        normalize=network.data,
        seed=seed,
    )
    update = client.train() if setting.local_epochs else client.gradient()
    if not network.lr_known:
        update = replace(update, protocol=update.protocol.model_copy(update={"lr": None}))
    return Problem.of(model, update, None), mine.labels


def found(method: labels.Labels, problem: Problem, truth: torch.Tensor) -> float:
    """The share of labels found, or NaN if the method does not apply here."""
    try:
        return lm.measure.label_accuracy(method.recover(problem), truth)
    except lm.LeakmeterError:
        return float("nan")


def settings(network: Network) -> Iterator[Setting]:
    states = (False, True) if network.epochs else (False,)
    for parts in product(states, network.local_epochs, network.counts, (False, True)):
        setting = Setting(*parts)
        if setting.count > 3 or not setting.skewed:
            yield setting


def table_of(network: Network, folder: Path) -> Table:
    data = images_of(network, folder)
    training, rest = halves(data)
    models = {False: fresh(network, data.classes)}
    title = str(network)
    if network.epochs:
        models[True] = trained(network, models[False], training)
        reached = [accuracy(models[True], part, network.data) for part in (training, rest)]
        title += ": trained to {:.0%}, {:.0%} on other images".format(*reached)
    table = Table("setting", *(type(method).__name__ for method in METHODS), title=title)
    for setting in track(list(settings(network)), description=str(network)):
        shares = torch.tensor(
            [
                [found(method, problem, truth) for method in METHODS]
                for problem, truth in (
                    victim(network, setting, models[setting.trained], rest, FIRST_SEED + number)
                    for number in range(network.clients)
                )
            ]
        )
        table.add_row(str(setting), *(cell(column) for column in shares.T))
    return table


def cell(shares: torch.Tensor) -> str:
    if shares.isnan().any():
        return "-"
    mean, low, high = lm.measure.interval(100 * shares)
    return f"{mean:.0f} [{low:.0f}, {high:.0f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=Path, help="folder of the .npz files")
    parser.add_argument("--network", help="only the networks of this name")
    options = parser.parse_args()
    for network in NETWORKS:
        if options.network in (None, network.name):
            Console().print(table_of(network, options.data))


if __name__ == "__main__":
    main()
