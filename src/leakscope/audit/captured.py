"""Attacks an update that someone captured: no truth, so no scores, only what can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from leakscope import models
from leakscope.attack import joint
from leakscope.attack.attack import Attack
from leakscope.attack.auto import Auto
from leakscope.attack.papers import Runnable
from leakscope.attack.reconstruction import Reconstruction
from leakscope.attack.solver import Progress
from leakscope.audit.evidence import Evidence, Provenance, count_parameters
from leakscope.audit.progress import Watch
from leakscope.audit.scenario import AttackPart
from leakscope.audit.store import Store
from leakscope.errors import LeakscopeError, validation_errors
from leakscope.federated.client import resolve_normalization
from leakscope.update import Protocol, Update


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
    """Attack the update at ``paths`` and leave the reconstruction in ``out``.

    Args:
        paths: of the update, or of several that the client made from the same examples.
        model_name: a built-in name or ``package.module:factory``.
        attack_name: of the recipe.
        out: folder for the results.
        options: of the recipe.
        labels: comma-separated labels the attacker knows, or ``None``.
        seed: of the random start.
        device: where to compute.
        told: fields of the protocol that the user adds to what the files say.
        command: for the report.
        watch: follows the work.
    """
    try:
        part = AttackPart(name=attack_name, options=options)
    except ValidationError as error:
        raise LeakscopeError("\n".join(validation_errors(error, AttackPart))) from None
    updates = [_load(path, told) for path in paths]
    protocol = updates[0].protocol
    protocol.need("input_shape", "classes")
    assert protocol.input_shape is not None
    assert protocol.classes is not None
    channels, height, _ = protocol.input_shape
    model = models.build(model_name, classes=protocol.classes, channels=channels, size=height)
    known = None if labels is None else torch.tensor(_numbers("labels", labels, int))
    attack = part.build()
    Store(out).prepare()
    with watch(attack_name) as progress:
        if len(updates) == 1:
            found = attack.run(
                model,
                updates[0],
                labels=known,
                seed=seed,
                device=device,
                on_progress=progress,
                checkpoint=out / "attack.checkpoint",
            )
        else:
            found = _together(attack, model, updates, known, seed, device, progress, out)
    found.save(out / "reconstruction.safetensors")
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


def recipe_options(settings: Sequence[str], iterations: int | None) -> dict[str, Any]:
    """Options of a recipe from ``NAME=VALUE`` on the command line."""
    options: dict[str, Any] = {} if iterations is None else {"iterations": iterations}
    return named_values("option", settings, options)


def named_values(
    option: str, settings: Sequence[str], given: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Values by name from ``NAME=VALUE`` on the command line.

    Args:
        option: of the command line, for errors.
        settings: what was written.
        given: what is known otherwise and may not be given again.
    """
    values = dict(given or {})
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise LeakscopeError(
                f"--{option} {setting!r}: write it as NAME=VALUE, such as tv=0.001"
            )
        name = name.strip()
        if name in values:
            raise LeakscopeError(f"--{option} {setting!r}: {name} is given twice")
        values[name] = value.strip()
    return values


def _load(path: Path, told: dict[str, Any]) -> Update:
    """The update at ``path`` with what the user adds to its protocol."""
    update = Update.load(path)
    return Update(
        before=update.before,
        after=update.after,
        gradient=update.gradient,
        num_examples=update.num_examples,
        protocol=complete(update.protocol, told),
    )


def _together(
    attack: Runnable,
    model: nn.Module,
    updates: list[Update],
    known: Tensor | None,
    seed: int,
    device: str | None,
    progress: Progress | None,
    out: Path,
) -> Reconstruction:
    """All updates at once: which of their images are the same is found out on the way."""
    if isinstance(attack, Auto):
        attack = attack.strongest(model, updates[0])
    if not isinstance(attack, Attack):
        raise LeakscopeError("the closed form takes one update: give one file")
    told = None if known is None else [[known]] * len(updates)
    rehearsal = max(1, attack.solver.iterations // 5)  # AGIC: 2,000 of 10,000
    return joint.reconstruct(
        attack,
        model,
        [[update] for update in updates],
        labels=told,
        rehearsal=rehearsal,
        seed=seed,
        device=device,
        on_progress=progress,
        keep=out,
    ).found


def complete(protocol: Protocol, told: dict[str, Any]) -> Protocol:
    """``protocol`` with the fields that the user told on the command line."""
    fields = protocol.model_dump(exclude_unset=True) | told
    if isinstance(fields.get("input_shape"), str):
        fields["input_shape"] = _numbers("input-shape", fields["input_shape"], int)
    if isinstance(fields.get("normalize"), str):
        if not fields.get("input_shape"):
            protocol.need("input_shape")
        fields["normalize"] = _normalization(fields["normalize"], fields["input_shape"][0])
    try:
        return Protocol.model_validate(fields)
    except ValidationError as error:
        raise LeakscopeError("\n".join(validation_errors(error, Protocol))) from None


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
        raise LeakscopeError(
            f"--{option} {text!r}: give numbers separated by commas, without spaces"
        ) from None
