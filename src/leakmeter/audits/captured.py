"""Attacks a captured update. Without the truth there are no scores, only pictures to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from leakmeter import models
from leakmeter.attacks import joint
from leakmeter.attacks.attack import Attack, RunOptions
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.audits.parts import AttackPart
from leakmeter.errors import LeakmeterError, validation_errors
from leakmeter.execution.progress import Watch
from leakmeter.execution.store import Store
from leakmeter.federated.client import resolve_normalization
from leakmeter.judge import Evidence, Provenance
from leakmeter.judge.evidence import count_parameters
from leakmeter.update import Protocol, Update


def attack_captured(
    paths: Sequence[Path],
    model_name: str,
    attack_name: str,
    out: Path,
    *,
    options: dict[str, Any],
    labels: str | None,
    seed: int,
    device: str | None,
    told: dict[str, Any],
    command: str,
    watch: Watch,
) -> tuple[Evidence, Provenance]:
    """Attack the update at ``paths`` and write the reconstruction to ``out``.

    Args:
        paths: files of the update, or of several that the client made from the same examples.
        model_name: a built-in name or ``package.module:factory``.
        attack_name: the name of the recipe.
        out: folder for the results.
        options: options of the recipe.
        labels: comma-separated labels the attacker knows, or ``None``.
        seed: the seed of the random start.
        device: where to compute.
        told: fields of the protocol that the user adds to those in the files.
        command: the command line, for the report.
        watch: reports progress.
    """
    made = recipe(attack_name, options, None).build()
    updates = [completed(Update.load(path), told) for path in paths]
    protocol = updates[0].protocol
    model = network(model_name, protocol)
    known = None if labels is None else torch.tensor(_numbers("labels", labels, int))
    store = Store(out)
    store.prepare()
    folder = store.scratch("attack")
    with watch(attack_name) as progress:
        run_options = RunOptions(
            labels=known, seed=seed, device=device, on_progress=progress, folder=folder
        )
        found = replace(together(made, model, updates, run_options), recipe=attack_name)
    found.save(out / "reconstruction.safetensors")
    store.forget("attack")
    shares = "weights" if updates[0].gradient is None else "gradient"
    provenance = Provenance(
        title=f"{attack_name} on {' and '.join(path.name for path in paths)}",
        data="SHA-256 " + ", ".join(update.fingerprint()[:16] for update in updates),
        command=command,
        model=model_name,
        parameters=count_parameters(model),
    )
    evidence = Evidence(attack_name, 0, protocol, shares, found, recipe=attack_name)
    return evidence, provenance


def network(name: str, protocol: Protocol) -> nn.Module:
    """Build the network of an update; its weights do not matter."""
    known = protocol.need("input_shape", "classes")
    channels, height, _ = known.input_shape
    return models.build(name, classes=known.classes, channels=channels, size=height)


def recipe(name: str, options: Mapping[str, Any], iterations: int | None) -> AttackPart:
    """Look up a recipe by name and check all its options."""
    own = {} if iterations is None else {"iterations": iterations}
    try:
        return AttackPart(name=name, options={**options, **own})
    except ValidationError as error:
        raise LeakmeterError("\n".join(validation_errors(error, AttackPart))) from None


def recipe_options(settings: Sequence[str], iterations: int | None) -> dict[str, Any]:
    """Parse the options of a recipe from ``NAME=VALUE`` on the command line."""
    options: dict[str, Any] = {} if iterations is None else {"iterations": iterations}
    return named_values("option", settings, options)


def named_values(
    option: str, settings: Sequence[str], given: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Parse values by name from ``NAME=VALUE`` on the command line.

    Args:
        option: the command-line option, for error messages.
        settings: the values as the user wrote them.
        given: values that were given elsewhere and must not be repeated.
    """
    values = dict(given or {})
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise LeakmeterError(
                f"--{option} {setting!r}: write it as NAME=VALUE, such as tv=0.001"
            )
        name = name.strip()
        if name in values:
            raise LeakmeterError(f"--{option} {setting!r}: {name} is given twice")
        values[name] = value.strip()
    return values


def together(
    attack: Attack, model: nn.Module, updates: Sequence[Update], options: RunOptions
) -> Reconstruction:
    """Reconstruct from one update, or from several after finding which images they share."""
    if len(updates) == 1:
        return attack.attempt(model, updates[0], options)
    searching = attack.searching(model, updates[0])
    known = None if options.labels is None else [[options.labels]] * len(updates)
    return joint.reconstruct(
        searching,
        model,
        [[update] for update in updates],
        labels=known,
        rehearsal=max(1, (searching.iterations or 1) // 5),  # AGIC: 2,000 of 10,000
        options=options,
    ).found


def completed(update: Update, told: dict[str, Any]) -> Update:
    """Return ``update`` with the protocol fields that the user gave on the command line."""
    protocol = update.protocol
    fields = protocol.model_dump(exclude_unset=True) | told
    if "normalize" in told and told["normalize"] is None:
        fields["normalize"] = "none"
    if isinstance(fields.get("input_shape"), str):
        fields["input_shape"] = _numbers("input-shape", fields["input_shape"], int)
    if isinstance(fields.get("normalize"), str):
        if not fields.get("input_shape"):
            protocol.need("input_shape")
        fields["normalize"] = _normalization(fields["normalize"], fields["input_shape"][0])
    try:
        return replace(update, protocol=Protocol.model_validate(fields))
    except ValidationError as error:
        raise LeakmeterError("\n".join(validation_errors(error, Protocol))) from None


def _normalization(text: str, channels: int) -> Any:
    if text == "none":
        return resolve_normalization(None, channels)
    if ":" in text:
        mean, std = text.split(":", 1)
        return _numbers("normalize", mean, float), _numbers("normalize", std, float)
    return resolve_normalization(text, channels)


def _numbers(option: str, text: str, kind: type[int] | type[float]) -> list[Any]:
    try:
        numbers = [kind(piece) for piece in text.split(",")]
        if max(map(abs, numbers)) >= 2**63:
            raise ValueError("out of range")
        return numbers
    except ValueError:
        raise LeakmeterError(
            f"--{option} {text!r}: give numbers separated by commas, without spaces"
        ) from None
