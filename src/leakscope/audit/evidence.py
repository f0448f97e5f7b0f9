"""What an audit leaves behind: everything the report needs, with or without truth."""

from __future__ import annotations

import datetime
import platform
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import leakscope
from leakscope.attack.reconstruction import Reconstruction
from leakscope.measure import Finding, Straightness
from leakscope.update import Protocol


@dataclass(frozen=True, eq=False)
class Truth:
    """What the client really had.

    Attributes:
        images: float [N, C, H, W] in [0, 1].
        labels: integers [N].
    """

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Evidence:
    """One attack on one client.

    Attributes:
        attack: name of the recipe, such as ``sme``.
        client: index of the client, from 0.
        protocol: what the server knew about the client's training.
        shares: ``weights`` or ``gradient``: what the client sent.
        found: the reconstruction.
        truth: the client's data, or ``None`` for a captured update.
        finding: the measurement, present exactly when the truth is.
        straightness: of the client's path, if it was simulated and sent weights; the same for
            every attack on it.
    """

    attack: str
    client: int
    protocol: Protocol
    shares: str
    found: Reconstruction
    truth: Truth | None = None
    finding: Finding | None = None
    straightness: Straightness | None = None


def _versions() -> dict[str, str]:
    return {
        "leakscope": leakscope.__version__,
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def count_parameters(model: nn.Module) -> int:
    """How many numbers the network holds."""
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class Provenance:
    """How to do it again.

    Attributes:
        title: of the report.
        command: the command line that makes it.
        model: name of the network.
        parameters: how many numbers it holds.
        scenario: the resolved scenario as YAML, or an empty string.
        data: name of the data set, or an empty string.
        class_names: of the labels, may be empty.
        versions: of what the numbers depend on besides the scenario.
        date: when, ISO 8601.
    """

    title: str
    command: str
    model: str
    parameters: int
    scenario: str = ""
    data: str = ""
    class_names: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=_versions)
    date: str = field(default_factory=_now)
