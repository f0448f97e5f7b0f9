"""Runs a scenario: simulate, attack, measure. Everything finished is on disk and not done again."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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
from leakscope.audit.evidence import Evidence, Provenance, Truth, count_parameters
from leakscope.audit.scenario import AttackPart, FederationPart, Scenario, TrainingPart
from leakscope.data import Dataset
from leakscope.errors import LeakscopeError
from leakscope.federated import Client, by_writer, dirichlet, federate, iid
from leakscope.federated.local import behaviour
from leakscope.measure import Straightness, check_measurable, measure, signal_free, straightness
from leakscope.update import Update, digest

Watch = Callable[[str], AbstractContextManager[Progress | None]]
"""Announces a piece of work by its name and gives the callback that follows it."""


def unwatched(work: str) -> AbstractContextManager[Progress | None]:
    """Follows nothing."""
    return nullcontext()


def run(
    scenario: Scenario, out: Path, watch: Watch = unwatched, command: str = ""
) -> tuple[list[Evidence], Provenance]:
    """Run all attacks on all clients of ``scenario`` and leave everything in ``out``.

    What an earlier run of the same scenario finished is read back; an attack that was cut off
    goes on from its last checkpoint.

    Args:
        scenario: what to do.
        out: folder for the results.
        watch: follows the work.
        command: for the report.
    """
    dataset = data.load(scenario.data.source, size=scenario.data.size)
    check_measurable(dataset.shape)
    chosen = choose(scenario, dataset)
    model = _network(scenario, dataset)
    prepare_folder(out)
    (out / "scenario.yaml").write_text(scenario.dump(), encoding="utf-8")
    kept = torch.ones(len(dataset), dtype=torch.bool)
    kept[torch.cat(chosen)] = False
    pool = dataset.select(kept.nonzero().flatten())
    if scenario.federation is not None:
        model = _at_round(model, pool, scenario, scenario.federation, watch)
    stage = _Stage(scenario, model, pool, out, watch)
    evidence = []
    for number, indices in enumerate(chosen):
        truth = Truth(dataset.images[indices], dataset.labels[indices])
        client, path = stage.client(truth, number)
        update, straight = stage.update(client, path), stage.straightness(client, path, number)
        trials = [stage.trial(part, update, truth, number) for part in scenario.attacks]
        evidence += [replace(trial, straightness=straight) for trial in trials]
    provenance = Provenance(
        title=scenario.name,
        command=command,
        model=scenario.model.name,
        parameters=count_parameters(model),
        scenario=scenario.dump(),
        data=scenario.data.source,
        class_names=dataset.class_names,
    )
    return evidence, provenance


def prepare_folder(out: Path) -> None:
    """Make ``out`` and check that it can be written to, before any work starts."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise LeakscopeError(f"cannot write to {out}: {error.strerror}") from None


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
        able = [part for part in by_writer(dataset.writer) if len(part) >= client.examples]
        if len(able) < client.count:
            raise LeakscopeError(
                f"client.count is {client.count} but only {len(able)} writers have "
                f"{client.examples} examples or more"
            )
        return [part[: client.examples] for part in able[: client.count]]
    order = torch.arange(len(dataset))
    if client.pick == "random":
        generator = torch.Generator().manual_seed(scenario.seed)
        order = torch.randperm(len(dataset), generator=generator)
    return list(order[:wanted].split(client.examples))


def _network(scenario: Scenario, dataset: Dataset) -> nn.Module:
    channels, height, _ = dataset.shape
    part = scenario.model
    model = models.build(
        part.name, classes=dataset.classes, channels=channels, size=height, seed=part.seed
    )
    return model.to(usable(scenario.device))


def _training(part: TrainingPart) -> dict[str, Any]:
    return {name: getattr(part, name) for name in TrainingPart.model_fields}


def _at_round(
    model: nn.Module, pool: Dataset, scenario: Scenario, part: FederationPart, watch: Watch
) -> nn.Module:
    if part.split == "writer":
        if pool.writer is None:
            raise LeakscopeError(
                f"federation.split is writer but {scenario.data.source} names no writers"
            )
        split = by_writer(pool.writer)
    elif part.split == "dirichlet":
        split = dirichlet(
            pool.labels, part.clients, concentration=part.concentration, seed=scenario.seed
        )
    else:
        split = iid(len(pool), part.clients, seed=scenario.seed)
    with watch("federated rounds") as progress:
        return federate(
            model,
            [(pool.images[indices], pool.labels[indices]) for indices in split],
            rounds=part.rounds,
            participation=part.participation,
            seed=scenario.seed,
            on_round=_without_match(progress),
            **_training(part),
        )


def _without_match(progress: Progress | None) -> Callable[[int, int], None] | None:
    """A callback for work that is no attack, and so has no match to show."""
    return None if progress is None else lambda done, total: progress(done, total, None)


@dataclass(frozen=True, eq=False)
class _Stage:
    """What all trials of a run have in common."""

    scenario: Scenario
    model: nn.Module
    pool: Dataset
    out: Path
    watch: Watch

    @cached_property
    def network(self) -> str:
        """What the network computes, for the keys of everything that depends on it."""
        return behaviour(self.model, self.pool.shape)

    def client(self, truth: Truth, number: int) -> tuple[Client, Path]:
        """The client, and the file for its update."""
        part, seed = self.scenario.client, self.scenario.seed + number
        known = {"images": truth.images, "labels": truth.labels}
        key = digest(known, f"{leakscope.__version__} {self.network} {part!r} {seed}")
        path = self.out / "clients" / f"{number:03d}-{key[:12]}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        client = Client(self.model, truth.images, truth.labels, seed=seed, **_training(part))
        return client, path

    def update(self, client: Client, path: Path) -> Update:
        """The client's update, from disk if the same client left it there before."""
        with contextlib.suppress(LeakscopeError):  # not there, or damaged: train again
            return Update.load(path)
        shares = self.scenario.client.shares
        update = client.gradient() if shares == "gradient" else client.train()
        update.save(path)
        return update

    def straightness(self, client: Client, path: Path, number: int) -> Straightness | None:
        """Of the client's path, from disk if it was measured before; one gradient has none."""
        if self.scenario.client.shares == "gradient":
            return None
        path = path.with_suffix(".json")
        with contextlib.suppress(OSError, ValidationError):  # not there, or damaged: measure again
            return Straightness.model_validate_json(path.read_bytes())
        with self.watch(f"path, client {number}") as progress:
            measured = straightness(client, _without_match(progress))
        path.write_text(measured.model_dump_json(indent=2), encoding="utf-8")
        return measured

    def trial(self, part: AttackPart, update: Update, truth: Truth, number: int) -> Evidence:
        """One attack on one client, its baseline, and the measurement of both."""
        seed = self.scenario.seed
        identity = f"{leakscope.__version__} {self.network} {part!r} {seed} {update.fingerprint()}"
        key = hashlib.sha256(identity.encode()).hexdigest()
        folder = self.out / "trials" / f"{number:03d}-{part.name}-{key[:12]}"
        folder.mkdir(parents=True, exist_ok=True)
        attack, told = part.build(), truth.labels if part.labels == "known" else None

        def attacked(target: Update, name: str, work: str) -> Reconstruction:
            path = folder / f"{name}.safetensors"
            with contextlib.suppress(LeakscopeError):  # not there, or damaged: attack again
                return Reconstruction.load(path)
            with self.watch(work) as progress:
                found = attack.run(
                    self.model,
                    target,
                    labels=told,
                    seed=seed,
                    on_progress=progress,
                    checkpoint=path.with_suffix(".checkpoint"),
                )
            found.save(path)
            return found

        who = f"{part.label}, client {number}"
        found = attacked(update, "found", who)
        baseline = attacked(signal_free(update, seed), "baseline", f"{who}, baseline")
        pool = self.pool
        finding = measure(found, baseline, truth.images, truth.labels, pool.images, pool.labels)
        (folder / "finding.json").write_text(finding.model_dump_json(indent=2), encoding="utf-8")
        shares = self.scenario.client.shares
        return Evidence(part.label, number, update.protocol, shares, found, truth, finding)
