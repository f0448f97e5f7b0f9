"""What the attacker was given, as rows to check, and what was tried, with references."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from leakmeter.attacks.papers import RECIPES
from leakmeter.federated.defenses import DEFENSES
from leakmeter.judge import Configuration, Evidence, Provenance, label_facts
from leakmeter.update import Protocol


@dataclass(frozen=True)
class Fact:
    """One thing about the client's training.

    Attributes:
        name: the name of the fact.
        value: the value that the attacker assumed.
        standing: ``seen`` in the update, ``known`` to the server, ``assumed``, ``recovered`` by
            the attack, or ``unknown``.
    """

    name: str
    value: str
    standing: str


def facts(runs: Sequence[Evidence], provenance: Provenance) -> list[Fact]:
    """Everything the attacks could use besides the numbers in the update.

    Args:
        runs: attacks on clients without a defense, or on all clients if every one has a defense.
        provenance: names the network.
    """
    sent = {
        "weights": "all weights of the network, before and after local training",
        "gradient": "the network's weights and one gradient",
    }
    network = provenance.model
    if provenance.parameters:
        network += f", {provenance.parameters:,} parameters"
    return [
        Fact("What was sent", _distinct(sent[run.shares] for run in runs), "seen"),
        Fact("Network", network, "known"),
        Fact("Training images", _counts(runs), "known"),
        *(Fact("Labels", words, standing) for standing, words in label_facts(runs)),
        *_training([run.protocol for run in runs]),
    ]


def _counts(runs: Sequence[Evidence]) -> str:
    counts = _distinct(str(len(run.found.images)) for run in runs)
    return counts if len({run.client for run in runs}) == 1 else f"{counts} per client"


def _training(protocols: Sequence[Protocol]) -> list[Fact]:
    values: dict[str, Sequence[object]] = {
        "Image shape": [_shape(protocol) for protocol in protocols],
        "Classes": [protocol.classes for protocol in protocols],
        "Local epochs": [protocol.epochs for protocol in protocols],
        "Batch size": [protocol.batch_size for protocol in protocols],
        "Learning rate": [protocol.lr for protocol in protocols],
        "Optimizer": [_optimizer(protocol) for protocol in protocols],
        "Loss": [_loss(protocol) for protocol in protocols],
        "Batch norm": [_batchnorm(protocol) for protocol in protocols],
        "Normalization": [_normalization(protocol) for protocol in protocols],
    }
    rows = []
    for name, each in values.items():
        told = [str(one) for one in each if one is not None]
        if told:
            assumed = name == "Loss" and any("loss" not in p.model_fields_set for p in protocols)
            rows.append(Fact(name, _distinct(told), "assumed" if assumed else "known"))
        else:
            rows.append(Fact(name, "not used by the attacks", "unknown"))
    return rows


def _shape(protocol: Protocol) -> str | None:
    if protocol.input_shape is None:
        return None
    channels, height, width = protocol.input_shape
    return f"{width} by {height} pixels, {channels} channel{'s' if channels > 1 else ''}"


def _optimizer(protocol: Protocol) -> str | None:
    if protocol.optimizer is None:
        return None
    parts = [{"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}[protocol.optimizer]]
    if protocol.optimizer != "sgd":
        parts.append(f"betas {protocol.betas[0]:g} and {protocol.betas[1]:g}")
    elif protocol.momentum:
        parts.append(f"{'Nesterov ' if protocol.nesterov else ''}momentum {protocol.momentum:g}")
    if protocol.weight_decay:
        parts.append(f"weight decay {protocol.weight_decay:g}")
    return ", ".join(parts)


def _loss(protocol: Protocol) -> str:
    smoothing = protocol.label_smoothing
    return f"{protocol.loss.replace('_', ' ')}, {protocol.reduction} over the batch" + (
        f", label smoothing {smoothing:g}" if smoothing else ""
    )


def _batchnorm(protocol: Protocol) -> str | None:
    if protocol.batchnorm is None:
        return None
    return {
        "eval": "running statistics (eval mode)",
        "train": "statistics of each batch (train mode)",
    }[protocol.batchnorm]


def _normalization(protocol: Protocol) -> str | None:
    if protocol.normalize is None:
        return None
    mean, std = (", ".join(f"{value:.3g}" for value in side) for side in protocol.normalize)
    return f"mean {mean}; standard deviation {std}"


def _distinct(values: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(values))


@dataclass(frozen=True)
class Method:
    """An attack or a defense.

    Attributes:
        name: its name in scenarios.
        labels: what the report calls it, where that differs.
        about: what it is and where it comes from.
    """

    name: str
    labels: tuple[str, ...]
    about: str


def attack_methods(evidence: Sequence[Evidence]) -> list[Method]:
    """Return the recipes that the evidence names; a label alone does not identify a recipe."""
    labels: dict[str, dict[str, None]] = {}
    for run in evidence:
        if run.recipe in RECIPES:
            labels.setdefault(run.recipe, {})[run.attack] = None
    return [
        Method(name, tuple(each for each in given if each != name), _first_line(RECIPES[name]))
        for name, given in labels.items()
    ]


def defense_methods(configurations: Sequence[Configuration]) -> list[Method]:
    """Return the defenses of all configurations, each once."""
    names = dict.fromkeys(name for each in configurations for name in each.parts)
    return [Method(name, (), _first_line(DEFENSES[name])) for name in names if name in DEFENSES]


def _first_line(documented: Any) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]
