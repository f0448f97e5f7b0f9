"""One setting of a scenario: who is attacked, and what they send."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakmeter import data, models
from leakmeter.attacks.problem import usable
from leakmeter.audits.parts import ClientPart, DataPart, FederationPart, ModelPart, TrainingPart
from leakmeter.audits.scenario import Scenario
from leakmeter.data import Dataset
from leakmeter.errors import LeakmeterError
from leakmeter.execution.executors import Cache
from leakmeter.federated import Client, aggregate, by_writer, dirichlet, federate, iid, sent_bytes
from leakmeter.federated.defenses.base import Defense
from leakmeter.federated.local import check_batch
from leakmeter.judge import Truth
from leakmeter.measure import Lpips, Straightness, check_measurable, walk
from leakmeter.update import Update

OnRound = Callable[[int, int], None]

Defenses = tuple[Defense, ...]


@dataclass(frozen=True)
class Setting:
    """Whom to attack: everything that determines the clients and their data.

    Attributes:
        model: the network.
        data: the images.
        client: the clients under attack.
        federation: training that comes before, or ``None``.
        seed: decides which images the clients get, and their order.
        device: where to compute.
        lpips: weights of the LPIPS metric, or ``None``.
    """

    model: ModelPart
    data: DataPart
    client: ClientPart
    federation: FederationPart | None
    seed: int
    device: str
    lpips: Path | None

    @classmethod
    def of(cls, scenario: Scenario) -> Setting:
        """Take the setting from a scenario with nothing left to vary."""
        return cls(**{each.name: getattr(scenario, each.name) for each in fields(cls)})


@dataclass(frozen=True, eq=False)
class Victims:
    """Whom one trial attacks: a client, or several clients whose summed updates the server sees.

    Attributes:
        truth: everything they trained on.
        clients: the one client, or those whose updates are summed.
        line_ups: images that none of them has.
    """

    truth: Truth
    clients: tuple[Client, ...]
    line_ups: Dataset

    def undefended(self) -> Victims:
        """Return the same victims without defenses, except for a network that one changed."""
        return replace(self, clients=tuple(each.without_defenses() for each in self.clients))


@dataclass(frozen=True, eq=False)
class Sent:
    """What crossed the wire.

    Attributes:
        victims: who sent it.
        update: what the server sees of them.
        size: bytes that one of them sends.
        path: how straight its path was, if that is measured.
    """

    victims: Victims
    update: Update
    size: int
    path: Straightness | None


@dataclass(frozen=True, eq=False)
class Stage:
    """A setting with its images, ready to be attacked.

    Attributes:
        setting: the setting that was asked for.
        dataset: all images.
        chosen: indices of the images of each client under attack.
    """

    setting: Setting
    dataset: Dataset
    chosen: list[Tensor]

    def check(self, defenses: Defenses) -> None:
        """Refuse what cannot be done, before any work starts."""
        check_measurable(self.dataset.shape)
        if self.setting.lpips is not None:
            Lpips.load(self.setting.lpips)
        if self.setting.federation is not None:
            self._split(self.setting.federation)
        client = self.victims(self.fresh_network, defenses, 0).clients[0]
        if client.protocol.classes != self.dataset.classes:
            raise LeakmeterError(
                f"model.name: {self.setting.model.name} has {client.protocol.classes} outputs but "
                f"{self.setting.data.source} has {self.dataset.classes} classes: let its factory "
                "take the number of classes"
            )
        if self.setting.client.shares == "gradient":
            client.sharing_a_gradient()
        else:
            count, size = len(client.images), client.protocol.batch_size or 1
            check_batch(client.model, client.protocol, (count - 1) % size + 1)

    @cached_property
    def fresh_network(self) -> nn.Module:
        """Build the network at round 0."""
        channels, height, _ = self.dataset.shape
        part = self.setting.model
        model = models.build(
            part.name, classes=self.dataset.classes, channels=channels, size=height, seed=part.seed
        )
        return model.to(usable(self.setting.device))

    def network(self, on_round: OnRound | None = None) -> nn.Module:
        """Return the network as attacked clients receive it, which may take rounds of training."""
        part = self.setting.federation
        if part is None:
            return self.fresh_network
        return federate(
            self.fresh_network,
            [(self.pool.images[i], self.pool.labels[i]) for i in self._split(part)],
            rounds=part.rounds,
            participation=part.participation,
            seed=self.setting.seed,
            on_round=on_round,
            **training(part),
        )

    @cached_property
    def lpips(self) -> Lpips | None:
        """Load the LPIPS metric, if the setting has one."""
        return None if self.setting.lpips is None else Lpips.load(self.setting.lpips)

    @cached_property
    def pool(self) -> Dataset:
        """The images that no client under attack has."""
        kept = torch.ones(len(self.dataset), dtype=torch.bool)
        kept[torch.cat(self.chosen)] = False
        return self.dataset.select(kept.nonzero().flatten())

    def victims(self, model: nn.Module, defenses: Defenses, number: int) -> Victims:
        """Return a client under attack and the others whose updates are summed with its own."""
        part = self.setting.client
        others = math.prod(defense.clients for defense in defenses) - 1
        borrowed = others * part.examples
        if borrowed * len(self.chosen) >= len(self.pool):
            raise LeakmeterError(
                f"defenses: the server sums {others + 1} clients of {part.examples} images,"
                f" but {self.setting.data.source} has only {len(self.pool)} besides those under "
                "attack, of which some must be left for line-ups: use fewer clients or examples"
            )
        order = torch.arange(len(self.pool))
        if part.pick != "first":
            seed = self.setting.seed
            order = torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))
        line_ups = self.pool.select(order[borrowed * len(self.chosen) :])
        indices, lent = self.chosen[number], order[number * borrowed : (number + 1) * borrowed]
        images = torch.cat([self.dataset.images[indices], self.pool.images[lent]])
        labels = torch.cat([self.dataset.labels[indices], self.pool.labels[lent]])
        clients = [
            Client(
                model,
                its_images,
                its_labels,
                seed=self.setting.seed + number + 1_000_003 * position,
                defenses=defenses,
                **training(part),
            )
            for position, (its_images, its_labels) in enumerate(
                zip(images.split(part.examples), labels.split(part.examples), strict=True)
            )
        ]
        return Victims(Truth(images, labels), tuple(clients), line_ups)

    def _split(self, part: FederationPart) -> list[Tensor]:
        pool, seed = self.pool, self.setting.seed
        if part.split == "dirichlet":
            return dirichlet(pool.labels, part.clients, concentration=part.concentration, seed=seed)
        if part.split == "iid":
            return iid(len(pool), part.clients, seed=seed)
        if pool.writer is None:
            raise LeakmeterError(
                f"federation.split is writer but {self.setting.data.source} names no writers"
            )
        return by_writer(pool.writer)


def images(cache: Cache, part: DataPart) -> Dataset:
    """Load all images; settings that differ in other respects share them."""
    return data.load(part.source, size=part.size)


def stage(cache: Cache, setting: Setting) -> Stage:
    """Read the data and choose the clients."""
    dataset = cache.get(images, setting.data)
    return Stage(setting, dataset, choose(setting, dataset))


def network(cache: Cache, setting: Setting) -> nn.Module:
    """Return the network that clients under attack receive."""
    return cache.get(stage, setting).network()


def victims(cache: Cache, setting: Setting, defenses: Defenses, number: int) -> Victims:
    """Return a client of the setting and those whose updates are summed with its own."""
    model = cache.get(network, setting)
    return cache.get(stage, setting).victims(model, defenses, number)


def sent(cache: Cache, setting: Setting, defenses: Defenses, number: int, walked: bool) -> Sent:
    """Return what the client sends after training; its path is measured if ``walked``."""
    attacked = cache.get(victims, setting, defenses, number, most=4)
    own, *others = attacked.clients
    first, path = walk(own) if walked else (share(setting, own), None)
    rest = [share(setting, other) for other in others]
    update = aggregate([first, *rest]) if rest else first
    return Sent(attacked, update, sent_bytes(first), path)


def plain(cache: Cache, setting: Setting, defenses: Defenses, number: int, walked: bool) -> Update:
    """Return what the server would see if the same network were trained without defenses."""
    if not defenses:
        return cache.get(sent, setting, defenses, number, walked, most=4).update
    attacked = cache.get(victims, setting, defenses, number, most=4).undefended()
    shared = [share(setting, client) for client in attacked.clients]
    return aggregate(shared) if len(shared) > 1 else shared[0]


def share(setting: Setting, client: Client) -> Update:
    """Return weights or one gradient, as the setting says."""
    return client.gradient() if setting.client.shares == "gradient" else client.train()


def training(part: TrainingPart) -> dict[str, Any]:
    """Return the training settings for :class:`~leakmeter.federated.client.Client`."""
    return {name: getattr(part, name) for name in TrainingPart.model_fields}


def choose(setting: Setting, dataset: Dataset) -> list[Tensor]:
    """Choose the images of each client under attack, as indices without repeats."""
    client = setting.client
    wanted = client.count * client.examples
    if wanted >= len(dataset):
        raise LeakmeterError(
            f"client.count x client.examples is {wanted} but {setting.data.source} has only "
            f"{len(dataset)} images, of which some must be left for line-ups"
        )
    if client.pick == "writer":
        if dataset.writer is None:
            raise LeakmeterError(
                f"client.pick is writer but {setting.data.source} names no writers: use random"
            )
        return _of_writers(by_writer(dataset.writer), client.count, client.examples)
    order = torch.arange(len(dataset))
    if client.pick == "random":
        generator = torch.Generator().manual_seed(setting.seed)
        order = torch.randperm(len(dataset), generator=generator)
    return list(order[:wanted].split(client.examples))


def _of_writers(parts: Sequence[Tensor], count: int, examples: int) -> list[Tensor]:
    able = [part for part in parts if len(part) >= examples]
    if len(able) < count:
        raise LeakmeterError(
            f"client.count is {count} but only {len(able)} writers have {examples} examples or more"
        )
    return [part[:examples] for part in able[:count]]
