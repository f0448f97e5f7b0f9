"""What the attacker was given, in rows a reader can check one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from leakscope.audit.evidence import Evidence, Provenance
from leakscope.report.grouping import AttackEvidence, Group, strongest_first
from leakscope.update import Protocol


@dataclass(frozen=True)
class Fact:
    """One thing about the client's training.

    Attributes:
        name: what it is about.
        value: what the attacker took it to be.
        standing: ``seen`` in the update, ``known`` to the server, ``assumed``, ``recovered`` by
            the attack, or ``unknown``.
    """

    name: str
    value: str
    standing: str


@dataclass(frozen=True)
class Knowledge:
    """What the attacker knows about the defences of one configuration.

    Attributes:
        name: of the configuration.
        known: what it knows, a sentence for each defence.
        adaptive: what attacks make of it, likewise.
        ignored: names of the defences that attacks make nothing of.
    """

    name: str
    known: tuple[str, ...]
    adaptive: tuple[str, ...]
    ignored: tuple[str, ...]


def knowledge(groups: Sequence[Group]) -> list[Knowledge]:
    """One for every configuration with a defence."""
    found = []
    for group in groups:
        row = group.configuration
        if row.known or row.ignored:
            found.append(Knowledge(group.name, row.known, row.adaptive, row.ignored))
    return found


def plain_clients(groups: Sequence[Group]) -> list[AttackEvidence]:
    """The attacks on clients without a defence, or on all if every client has one."""
    plain = [group for group in groups if group.configuration.defence == "none"]
    return strongest_first([run for group in plain or groups for run in group.evidence])


def in_short(attacks: Sequence[AttackEvidence]) -> str:
    """The assumptions in a few sentences, for the first screen."""
    labels = " and ".join(fact.value for fact in _labels(attacks, accuracy=False))
    return (
        "The attacker is the server: curious, but following the protocol. It sees every update and "
        "knows the network, the number of images, how clients train and which defence they use; "
        f"labels of the images were {labels}."
    )


def facts(attacks: Sequence[AttackEvidence], provenance: Provenance) -> list[Fact]:
    """Everything the attacks could use besides the numbers in the update."""
    runs = [run for attack in attacks for run in attack.runs]
    sent = {
        "weights": "all weights of the network, before and after local training",
        "gradient": "the network's weights and one gradient",
    }
    return [
        Fact("What was sent", _distinct(sent[run.shares] for run in runs), "seen"),
        Fact("Network", f"{provenance.model}, {provenance.parameters:,} parameters", "known"),
        Fact("Training images", _counts(runs), "known"),
        *_labels(attacks),
        *_training([run.protocol for run in runs]),
    ]


def _counts(runs: Sequence[Evidence]) -> str:
    counts = _distinct(str(len(run.found.images)) for run in runs)
    return counts if len({run.client for run in runs}) == 1 else f"{counts} per client"


def _labels(attacks: Sequence[AttackEvidence], accuracy: bool = True) -> list[Fact]:
    """One fact, or two if some attacks were given the labels and others were not."""
    given = [attack.name for attack in attacks if attack.runs[0].found.labels_known]
    found = []
    for attack in attacks:
        if attack.name not in given:
            accuracies = [finding.scores.label_accuracy for finding in attack.findings]
            right = f" ({fmean(accuracies):.0%} right)" if accuracies and accuracy else ""
            found.append(attack.name + right)
    rows = []
    if given:
        rows.append(Fact("Labels", f"given to {', '.join(given)}", "assumed"))
    if found:
        rows.append(Fact("Labels", f"read out of the update by {', '.join(found)}", "recovered"))
    return rows


def _training(protocols: Sequence[Protocol]) -> list[Fact]:
    values: dict[str, Sequence[object]] = {
        "Image shape": [_shape(protocol) for protocol in protocols],
        "Classes": [protocol.classes for protocol in protocols],
        "Local epochs": [protocol.epochs for protocol in protocols],
        "Batch size": [protocol.batch_size for protocol in protocols],
        "Learning rate": [protocol.lr for protocol in protocols],
        "Optimiser": [_optimizer(protocol) for protocol in protocols],
        "Loss": [_loss(protocol) for protocol in protocols],
        "Batch norm": [_batchnorm(protocol) for protocol in protocols],
        "Normalisation": [_normalisation(protocol) for protocol in protocols],
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


def _normalisation(protocol: Protocol) -> str | None:
    if protocol.normalize is None:
        return None
    mean, std = (", ".join(f"{value:.3g}" for value in side) for side in protocol.normalize)
    return f"mean {mean}; standard deviation {std}"


def _distinct(values: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(values))
