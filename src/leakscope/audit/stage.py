"""One setting of a scenario: who is attacked, and what they send."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from leakscope import data, models
from leakscope.attack.problem import usable
from leakscope.attack.solver import Progress
from leakscope.audit.evidence import Truth
from leakscope.audit.scenario import FederationPart, Protection, Scenario, TrainingPart
from leakscope.data import Dataset
from leakscope.errors import LeakscopeError
from leakscope.federated import Client, aggregate, by_writer, dirichlet, federate, iid
from leakscope.federated.local import check_batch
from leakscope.measure import Lpips, check_measurable
from leakscope.update import Update

load = lru_cache(maxsize=2)(data.load)
"""Settings that differ otherwise share their images."""


@dataclass(frozen=True, eq=False)
class Victims:
    """Whom one trial attacks: a client, or several of whose updates the server sees the sum.

    Attributes:
        number: of the client under attack, from 0.
        truth: everything they trained on.
        clients: one, or those that are summed.
        line_ups: images that none of them has.
    """

    number: int
    truth: Truth
    clients: tuple[Client, ...]
    line_ups: Dataset

    def undefended(self) -> Victims:
        """The same with the same network and no other defence."""
        return replace(self, clients=tuple(each.without_defences() for each in self.clients))


@dataclass(frozen=True, eq=False)
class Stage:
    """One setting, ready to be attacked.

    Attributes:
        scenario: with nothing left to vary.
        dataset: all images.
        chosen: indices of the images of each client under attack.
    """

    scenario: Scenario
    dataset: Dataset
    chosen: list[Tensor]

    @classmethod
    def of(cls, scenario: Scenario) -> Stage:
        """Read the data and choose the clients."""
        dataset = load(scenario.data.source, size=scenario.data.size)
        return cls(scenario, dataset, choose(scenario, dataset))

    def check(self) -> None:
        """Refuse what could not be done, before any work starts."""
        check_measurable(self.dataset.shape)
        if self.scenario.lpips is not None:
            Lpips.load(self.scenario.lpips)
        for protection in self.scenario.defences:
            client = self.victims(self.fresh_network, protection, 0).clients[0]
            if self.scenario.client.shares == "gradient":  # some defences refuse that
                client.gradient()
            else:
                count, size = len(client.images), client.protocol.batch_size or 1
                check_batch(client.model, client.protocol, (count - 1) % size + 1)
        if self.scenario.federation is not None:
            self._split(self.scenario.federation)

    @cached_property
    def fresh_network(self) -> nn.Module:
        """At round 0."""
        channels, height, _ = self.dataset.shape
        part = self.scenario.model
        model = models.build(
            part.name, classes=self.dataset.classes, channels=channels, size=height, seed=part.seed
        )
        return model.to(usable(self.scenario.device))

    def network(self, progress: Progress | None = None) -> nn.Module:
        """As clients under attack receive it, which may take some rounds of training."""
        part = self.scenario.federation
        if part is None:
            return self.fresh_network
        return federate(
            self.fresh_network,
            [(self.pool.images[i], self.pool.labels[i]) for i in self._split(part)],
            rounds=part.rounds,
            participation=part.participation,
            seed=self.scenario.seed,
            on_round=without_match(progress),
            **training(part),
        )

    @cached_property
    def pool(self) -> Dataset:
        """Images that no client under attack has."""
        kept = torch.ones(len(self.dataset), dtype=torch.bool)
        kept[torch.cat(self.chosen)] = False
        return self.dataset.select(kept.nonzero().flatten())

    @cached_property
    def lpips(self) -> Lpips | None:
        """The metric, if there is one."""
        return None if self.scenario.lpips is None else Lpips.load(self.scenario.lpips)

    def victims(self, model: nn.Module, protection: Protection, number: int) -> Victims:
        """A client under attack, with the others that its update is summed up with."""
        part, defences = self.scenario.client, protection.build()
        others = math.prod(defence.clients for defence in defences) - 1
        borrowed = others * part.examples
        if borrowed * len(self.chosen) >= len(self.pool):
            raise LeakscopeError(
                f"defences: {protection.label} sums {others + 1} clients of {part.examples} images,"
                f" but {self.scenario.data.source} has only {len(self.pool)} besides those under "
                "attack, of which some must be left for line-ups: use fewer clients or examples"
            )
        order = torch.arange(len(self.pool))
        if part.pick != "first":
            seed = self.scenario.seed
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
                seed=self.scenario.seed + number + 1_000_003 * position,
                defences=defences,
                **training(part),
            )
            for position, (its_images, its_labels) in enumerate(
                zip(images.split(part.examples), labels.split(part.examples), strict=True)
            )
        ]
        return Victims(number, Truth(images, labels), tuple(clients), line_ups)

    def sent(self, client: Client) -> Update:
        """What one client sends."""
        return client.gradient() if self.scenario.client.shares == "gradient" else client.train()

    def update(self, victims: Victims) -> Update:
        """What the server sees."""
        sent = [self.sent(client) for client in victims.clients]
        return sent[0] if len(sent) == 1 else aggregate(sent)

    def _split(self, part: FederationPart) -> list[Tensor]:
        pool, seed = self.pool, self.scenario.seed
        if part.split == "dirichlet":
            return dirichlet(pool.labels, part.clients, concentration=part.concentration, seed=seed)
        if part.split == "iid":
            return iid(len(pool), part.clients, seed=seed)
        if pool.writer is None:
            raise LeakscopeError(
                f"federation.split is writer but {self.scenario.data.source} names no writers"
            )
        return by_writer(pool.writer)


def training(part: TrainingPart) -> dict[str, Any]:
    """The settings of a client's training, for :class:`~leakscope.federated.client.Client`."""
    return {name: getattr(part, name) for name in TrainingPart.model_fields}


def without_match(progress: Progress | None) -> Callable[[int, int], None] | None:
    """A callback for work that is no attack, and so has no match to show."""
    return None if progress is None else lambda done, total: progress(done, total, None)


def choose(scenario: Scenario, dataset: Dataset) -> list[Tensor]:
    """Indices of the images of each client under attack, no image twice."""
    client = scenario.client
    wanted = client.count * client.examples
    if wanted >= len(dataset):
        raise LeakscopeError(
            f"client.count x client.examples is {wanted} but {scenario.data.source} has only "
            f"{len(dataset)} images, of which some must be left for line-ups"
        )
    if client.pick == "writer":
        if dataset.writer is None:
            raise LeakscopeError(
                f"client.pick is writer but {scenario.data.source} names no writers: use random"
            )
        return _of_writers(by_writer(dataset.writer), client.count, client.examples)
    order = torch.arange(len(dataset))
    if client.pick == "random":
        generator = torch.Generator().manual_seed(scenario.seed)
        order = torch.randperm(len(dataset), generator=generator)
    return list(order[:wanted].split(client.examples))


def _of_writers(parts: Sequence[Tensor], count: int, examples: int) -> list[Tensor]:
    able = [part for part in parts if len(part) >= examples]
    if len(able) < count:
        raise LeakscopeError(
            f"client.count is {count} but only {len(able)} writers have {examples} examples or more"
        )
    return [part[:examples] for part in able[:count]]
