"""One setting of a scenario: who is attacked, what they send, and what comes out."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

import leakscope
from leakscope import data, models
from leakscope.attack.problem import usable
from leakscope.attack.reconstruction import Reconstruction
from leakscope.attack.solver import Progress
from leakscope.audit.evidence import Evidence, Truth
from leakscope.audit.scenario import (
    NONE,
    AttackPart,
    FederationPart,
    Protection,
    Scenario,
    TrainingPart,
)
from leakscope.data import Dataset
from leakscope.errors import LeakscopeError
from leakscope.federated import Client, aggregate, by_writer, dirichlet, federate, iid
from leakscope.federated.local import behaviour, check_batch
from leakscope.measure import (
    Lpips,
    Straightness,
    check_measurable,
    measure,
    signal_free,
    straightness,
)
from leakscope.update import Update, digest

Watch = Callable[[str], AbstractContextManager[Progress | None]]
"""Announces a piece of work by its name and gives the callback that follows it."""


UNAWARE: dict[str, Any] = {"sparse": False, "bits": None, "distorted": ()}
"""What the protocol says to an attack that does not know how updates are sent."""


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
        setting: what its varied values are called.
        dataset: all images.
        chosen: indices of the images of each client under attack.
        out: folder for the results.
        watch: follows the work.
        lpips: the metric, if there is one.
    """

    scenario: Scenario
    setting: str
    dataset: Dataset
    chosen: list[Tensor]
    out: Path
    watch: Watch
    lpips: Lpips | None

    @classmethod
    def of(
        cls,
        setting: str,
        scenario: Scenario,
        out: Path,
        watch: Watch,
        lpips: Lpips | None = None,
        load: Callable[..., Dataset] = data.load,
    ) -> Stage:
        """Read the data and refuse what could not be done, before any work starts."""
        dataset = load(scenario.data.source, size=scenario.data.size)
        check_measurable(dataset.shape)
        stage = cls(scenario, setting, dataset, choose(scenario, dataset), out, watch, lpips)
        for protection in scenario.defences:
            client = stage.victims(stage.fresh_network, protection)[0].clients[0]
            if scenario.client.shares == "gradient":  # some defences refuse that
                client.gradient()
            else:
                count, size = len(client.images), client.protocol.batch_size or 1
                check_batch(client.model, client.protocol, (count - 1) % size + 1)
        if scenario.federation is not None:
            stage._split(scenario.federation)
        return stage

    @cached_property
    def fresh_network(self) -> nn.Module:
        """At round 0."""
        channels, height, _ = self.dataset.shape
        part = self.scenario.model
        model = models.build(
            part.name, classes=self.dataset.classes, channels=channels, size=height, seed=part.seed
        )
        return model.to(usable(self.scenario.device))

    @cached_property
    def network(self) -> nn.Module:
        """As clients under attack receive it, which may take some rounds of training."""
        part = self.scenario.federation
        return self.fresh_network if part is None else self._trained(part)

    @cached_property
    def pool(self) -> Dataset:
        """Images that no client under attack has."""
        kept = torch.ones(len(self.dataset), dtype=torch.bool)
        kept[torch.cat(self.chosen)] = False
        return self.dataset.select(kept.nonzero().flatten())

    def victims(self, model: nn.Module, protection: Protection) -> list[Victims]:
        """The clients under attack, each with the others that its update is summed up with."""
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
        found = []
        for number, indices in enumerate(self.chosen):
            lent = order[number * borrowed : (number + 1) * borrowed]
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
            found.append(Victims(number, Truth(images, labels), tuple(clients), line_ups))
        return found

    def sent(self, client: Client) -> Update:
        """What one client sends."""
        return client.gradient() if self.scenario.client.shares == "gradient" else client.train()

    def update(self, victims: Victims, protection: Protection) -> Update:
        """What the server sees, from disk if the same clients left it there before."""
        path = self._file(victims, protection)
        with contextlib.suppress(LeakscopeError):  # not there, or damaged: train again
            return Update.load(path)
        sent = [self.sent(client) for client in victims.clients]
        update = sent[0] if len(sent) == 1 else aggregate(sent)
        update.save(path)
        return update

    def straightness(self, victims: Victims, protection: Protection) -> Straightness | None:
        """Of the client's path, from disk if it was measured before; one gradient has none."""
        if self.scenario.client.shares == "gradient":
            return None
        path = self._file(victims, protection).with_suffix(".json")
        with contextlib.suppress(OSError, ValidationError):  # not there, or damaged: measure again
            return Straightness.model_validate_json(path.read_bytes())
        with self.watch(f"path, client {victims.number}") as progress:
            measured = straightness(victims.clients[0], without_match(progress))
        path.write_text(measured.model_dump_json(indent=2), encoding="utf-8")
        return measured

    def trial(self, part: AttackPart, victims: Victims, update: Update, label: str) -> Evidence:
        """One attack, its baseline, and the measurement of both.

        Args:
            part: the attack.
            victims: whom it attacks.
            update: what they sent.
            label: of their configuration.
        """
        who = f"{part.label}, client {victims.number}"
        work = who if label == NONE else f"{label}: {who}"
        target = update
        if not part.aware:
            untold = update.protocol.model_copy(update=UNAWARE)
            target = replace(update, protocol=untold)
        folder, found = self._attack(part, victims, target, "trials", work)
        plain = self.update(victims.undefended(), Protection(label=NONE))
        nothing = signal_free(plain, self.scenario.seed)
        _, baseline = self._attack(part, victims, nothing, "baselines", f"{work}, baseline")
        truth, pool = victims.truth, victims.line_ups
        finding = measure(
            found,
            baseline,
            truth.images,
            truth.labels,
            pool.images,
            pool.labels,
            lpips=self.lpips,
        )
        (folder / "finding.json").write_text(finding.model_dump_json(indent=2), encoding="utf-8")
        return Evidence(
            part.label,
            victims.number,
            target.protocol,
            self.scenario.client.shares,
            found,
            truth,
            finding,
            configuration=label,
            recipe=part.name,
        )

    def _attack(
        self, part: AttackPart, victims: Victims, target: Update, kind: str, work: str
    ) -> tuple[Path, Reconstruction]:
        """The reconstruction, from disk if the same attack left it there before; and its folder."""
        seed, model = self.scenario.seed, victims.clients[0].model
        told = victims.truth.labels if part.labels == "known" else None
        network = behaviour(model, self.dataset.shape)
        identity = f"{leakscope.__version__} {network} {part!r} {seed} {target.fingerprint()}"
        key = hashlib.sha256(identity.encode()).hexdigest()
        folder = self.out / kind / f"{victims.number:03d}-{part.name}-{key[:12]}"
        path = folder / "found.safetensors"
        with contextlib.suppress(LeakscopeError):  # not there, or damaged: attack again
            return folder, Reconstruction.load(path)
        folder.mkdir(parents=True, exist_ok=True)
        with self.watch(work) as progress:
            found = part.build().run(
                model,
                target,
                labels=told,
                seed=seed,
                on_progress=progress,
                checkpoint=path.with_suffix(".checkpoint"),
            )
        found.save(path)
        return folder, found

    def _file(self, victims: Victims, protection: Protection) -> Path:
        """Where the update of ``victims`` is kept."""
        part, first = self.scenario.client, victims.clients[0]
        known = {"images": victims.truth.images, "labels": victims.truth.labels}
        network = behaviour(first.model, self.dataset.shape)
        defences = [(each.name, each.options) for each in protection.parts]
        what = f"{leakscope.__version__} {network} {part!r} {defences} {first.seed}"
        path = self.out / "clients" / f"{victims.number:03d}-{digest(known, what)[:12]}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _trained(self, part: FederationPart) -> nn.Module:
        with self.watch("federated rounds") as progress:
            return federate(
                self.fresh_network,
                [(self.pool.images[i], self.pool.labels[i]) for i in self._split(part)],
                rounds=part.rounds,
                participation=part.participation,
                seed=self.scenario.seed,
                on_round=without_match(progress),
                **training(part),
            )

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
