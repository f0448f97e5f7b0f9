"""The front door: one call attacks an update, one audits a setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from leakmeter import data, models
from leakmeter.attacks.attack import Attack, RunOptions
from leakmeter.attacks.papers import RECIPES
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.attacks.replay import replay_score
from leakmeter.audits.captured import completed, network, recipe, together
from leakmeter.audits.recorded import RecordedAudit
from leakmeter.audits.run import run, run_recorded
from leakmeter.audits.scenario import Scenario
from leakmeter.data.constants import CONSTANTS
from leakmeter.errors import LeakmeterError, unknown
from leakmeter.execution.progress import watching
from leakmeter.execution.store import Store
from leakmeter.execution.sweep import Resources
from leakmeter.federated.client import Client
from leakmeter.federated.defenses import DEFENSES
from leakmeter.judge import Evidence, Level, Provenance, Results, judge
from leakmeter.pixels import as_labels
from leakmeter.report import write, write_results
from leakmeter.update import Update

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Source = Update | str | Path
"""An update, or the file it is in."""


def attack(
    update: Source | Sequence[Source],
    model: nn.Module | str,
    attack: str | Attack | Callable[[], Attack] = "auto",
    *,
    iterations: int | None = None,
    labels: Tensor | NDArray[np.integer[Any]] | Sequence[int] | None = None,
    seed: int = 0,
    device: str | None = None,
    folder: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    quiet: bool = False,
    **known: Any,
) -> Reconstruction:
    """Reconstruct as much as possible from an update. No ground truth is needed.

    Args:
        update: what a client sent, or the file it is in; or several updates that one client made
            from the same examples, which are then reconstructed together.
        model: the network, whose weights do not matter; or the name of a built-in one, or
            ``package.module:factory``.
        attack: the name of a recipe (see :func:`names`), or an attack made of parts.
        iterations: the number of iterations, in place of the recipe's own.
        labels: integers [N], if the attacker is assumed to know them; otherwise they are recovered.
        seed: the seed of the random start.
        device: where to compute; by default, where the model is.
        folder: where to keep unfinished work; repeating the same call resumes from there.
        options: options of the recipe, such as ``{"tv": 0.001}``.
        quiet: whether to hide the progress bar.
        known: fields of :class:`~leakmeter.update.Protocol` that the update lacks, such as
            ``epochs=5`` or ``normalize="cifar10"``.

    Example:
        >>> photos = data.load("photos", size=16)
        >>> net = models.build("mlp", classes=photos.classes, channels=3, size=16)
        >>> from leakmeter.federated import Client
        >>> client = Client(net, photos.images[:1], photos.labels[:1], normalize="photos")
        >>> found = attack(client.gradient(), net, quiet=True)
        >>> (found.images - photos.images[:1]).abs().max().item() < 1e-3
        True
    """
    single = isinstance(update, Update | str | Path)
    updates = [_told(each, known) for each in ([update] if single else _several(update))]
    net = network(model, updates[0].protocol) if isinstance(model, str) else model
    if not isinstance(net, nn.Module):
        raise LeakmeterError(
            f"model is a {type(model).__name__}: give the network that the client trained"
        )
    if callable(attack):  # a recipe, such as lm.papers.ig
        attack = attack()
    if isinstance(attack, Attack):
        name, made = type(attack).__name__, attack.within(iterations=iterations)
    else:
        name, made = attack, recipe(attack, options or {}, iterations).build()
    with watching(quiet) as watch, watch(name) as progress:
        run_options = RunOptions(
            labels=None if labels is None else as_labels(labels),
            seed=seed,
            device=device,
            on_progress=progress,
            folder=None if folder is None else Path(folder),
        )
        found = together(made, net, updates, run_options)
    score = None
    with suppress(LeakmeterError):  # what is not known about the client
        score = replay_score(net, updates[0], found, device=device) if single else None
    return replace(found, recipe=found.recipe or name, replay=score)


def _several(updates: Any) -> list[Any]:
    """The updates of a list; an error says how to make one of whatever else was given."""
    some = list(updates) if isinstance(updates, list | tuple) else []
    if some and all(isinstance(each, Update | str | Path) for each in some):
        return some
    if isinstance(updates, nn.Module):
        raise LeakmeterError("give the update first, then the model: attack(update, model)")
    if isinstance(updates, Client):
        raise LeakmeterError("update is a Client: give what it sends, client.train()")
    raise LeakmeterError(
        f"update is a {type(updates).__name__}: give an Update or a file of one; of weights make "
        "it by lm.Update(before=..., after=..., num_examples=...), each a state_dict, or by "
        "lm.update_from_files"
    )


def _told(source: Any, known: dict[str, Any]) -> Update:
    """An update with what is known about it besides; what it says itself cannot be changed."""
    update = source if isinstance(source, Update) else Update.load(source)
    for name, value in known.items():
        said = getattr(update.protocol, name, None)
        if name in update.protocol.model_fields_set and said not in (None, value):
            raise LeakmeterError(
                f"{name}={value!r}, but the update says {said!r}: leave it out (a setting of the "
                f"attack is given by options={{{name!r}: ...}})"
            )
    return completed(update, known) if known else update


@dataclass(frozen=True, eq=False)
class AuditReport:
    """What an audit found, and where its report is.

    Attributes:
        path: the path of the report.
        results: every number, and the verdicts.
        evidence: the pictures and measurements.
        provenance: what is needed to reproduce the audit.
    """

    path: str
    results: Results
    evidence: Sequence[Evidence]
    provenance: Provenance

    @property
    def verdict(self) -> Level:
        """The verdict on the configuration that leaks most."""
        return self.results.level

    @property
    def findings(self) -> list[dict[str, Any]]:
        """Return one row per attack on each configuration, ready for a data frame."""
        return [
            {
                "configuration": each.label,
                "attack": attack.attack,
                "level": attack.level,
                "leaked": None if attack.leak is None else max(0.0, attack.leak.share),
                "images": len(attack.psnr),
                "psnr": sum(attack.psnr) / len(attack.psnr) if attack.psnr else None,
            }
            for each in self.results.configurations
            for attack in each.attacks
        ]

    def __repr__(self) -> str:
        return f"AuditReport({self.verdict}: {self.results.sentence} {self.path})"


def audit(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    out: str | Path,
    *,
    model: str | None = None,
    truth: str | Path | None = None,
    attack: str = "auto",
    options: Mapping[str, Any] | None = None,
    processes: int = 1,
    threads: int | None = None,
    known: Mapping[str, Any] | None = None,
) -> AuditReport:
    """Simulate clients, attack their updates, measure what came out, and write a report.

    Given a folder of recorded updates, attack those instead. As with the command
    ``leakmeter audit``, work that an earlier call finished in ``out`` is kept.

    Args:
        scenario: a file (YAML), its content, or a folder of recorded updates.
        out: the folder or URL for all results.
        model: for recorded updates, the network: a name, or ``package.module:factory``.
        truth: for recorded updates, the folder with the clients' data.
        attack: the attack to run on recorded updates.
        options: options of that attack.
        processes: how many trials run at a time; by default one per core.
        threads: the number of threads for each trial.
        known: settings that recorded updates do not state, such as ``{"epochs": 5}``.
    """
    resources = Resources(processes=processes, threads=threads)
    command = f"leakmeter.audit({str(scenario)!r}, out={str(out)!r})"
    if isinstance(scenario, str | Path) and Path(scenario).is_dir():
        if model is None:
            raise LeakmeterError(f"{scenario} holds recorded updates: name their network by model=")
        asked = RecordedAudit(
            folder=Path(scenario),
            model=model,
            attack=recipe(attack, options or {}, None),
            truth=None if truth is None else Path(truth),
            known=dict(known or {}),
        )
        return concluded(*run_recorded(asked, out, resources, command), out)
    if model or truth or known or options or attack != "auto":
        raise LeakmeterError(
            "model, truth, attack, options and known are for recorded updates: a scenario says "
            "all of that itself"
        )
    if isinstance(scenario, Mapping):
        whole = Scenario.of(scenario)
    else:
        whole = scenario if isinstance(scenario, Scenario) else Scenario.load(scenario)
    return concluded(*run(whole, out, resources, command), out)


def concluded(evidence: Sequence[Evidence], provenance: Provenance, out: str | Path) -> AuditReport:
    """Judge what was found, and write the report and its numbers."""
    place = Store(out).url
    results = judge(evidence, provenance)
    page = f"{place}/report.html"
    write(results, evidence, provenance, page)
    write_results(results, place)
    return AuditReport(page, results, evidence, provenance)


Kind = Literal["attacks", "defenses", "models", "datasets", "normalizations"]


def names(kind: Kind) -> list[str]:
    """Return the names of all attacks, defenses, models, datasets or normalizations.

    Example:
        >>> "sme" in names("attacks")
        True
    """
    known = {
        "attacks": list(RECIPES),
        "defenses": list(DEFENSES),
        "models": models.names(),
        "datasets": data.names(),
        "normalizations": sorted(CONSTANTS),
    }
    if kind not in known:
        raise unknown("kind of names", kind, known)
    return known[kind]
