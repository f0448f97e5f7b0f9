"""The evidence for judging: every attack on every client, with or without the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.errors import LeakmeterError
from leakmeter.execution.trial import now, versions
from leakmeter.federated.defenses.base import Guarantee
from leakmeter.measure import Finding, Straightness
from leakmeter.update import Protocol


@dataclass(frozen=True, eq=False)
class Truth:
    """What the client really had.

    Attributes:
        images: float [N, C, H, W] in [0, 1].
        labels: integers [N].
    """

    images: Tensor
    labels: Tensor


class Utility(BaseModel):
    """What a network learns from clients of one configuration.

    Attributes:
        accuracy: accuracy on images that no client had, once per repetition.
        chance: accuracy of always naming the most frequent class.
        test_images: how many images it was measured on, each time.
        rounds: rounds of federated averaging.
        clients: how many clients took part.
        seconds: time that the training took, all repetitions together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    accuracy: list[float]
    chance: float
    test_images: int
    rounds: int
    clients: int
    seconds: float


@dataclass(frozen=True)
class Configuration:
    """One way in which clients train and send: what varies between the rows of an audit.

    Attributes:
        setting: the varied values, such as ``epochs=20``; empty if none vary.
        defense: what clients do against leakage, or ``none``.
        parts: names of the defenses that this consists of.
        known: what the attacker is assumed to know about each defense, a sentence each.
        adaptive: how the attacks use that, a sentence each.
        ignored: names of the defenses that the attacks do not take into account.
        bytes_sent: bytes sent by one client in one round.
        guarantee: what is proven about ``rounds`` of its updates, or ``None``.
        rounds: the number of rounds that the guarantee covers.
        utility: what can be learned from such clients, or ``None`` if that was not measured.
    """

    setting: str = ""
    defense: str = "none"
    parts: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    adaptive: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    bytes_sent: int = 0
    guarantee: Guarantee | None = None
    rounds: int = 1
    utility: Utility | None = None

    @property
    def label(self) -> str:
        """The label: the defense, the setting, or both."""
        if not self.setting:
            return self.defense
        return self.setting if self.defense == "none" else f"{self.setting}; {self.defense}"


@dataclass(frozen=True, eq=False)
class Evidence:
    """One attack on one client.

    Attributes:
        attack: name of the recipe, such as ``sme``.
        client: index of the client, from 0.
        protocol: what the server knew about the client's training.
        shares: ``weights`` or ``gradient``: what the client sent.
        found: the reconstruction.
        truth: the client's data, or ``None`` if it is not available.
        finding: the measurement, or ``None`` if there was no truth to measure by.
        straightness: straightness of the client's path, if it was simulated and sent weights; the
            same for every attack on it.
        configuration: label of the :class:`Configuration` under which the client trained.
        replay: how well training on what was found explains the update, 1 being fully, or ``None``.
        baseline_replay: the same for noise in place of the update.
        agreement: PSNR of every image of one attempt with that of another from a different start
            [dB], or empty. It shows how far to trust the details; noise gives high values, too.
        recipe: name of the recipe, where ``attack`` is a label of the user's; empty if not told.
    """

    attack: str
    client: int
    protocol: Protocol
    shares: str
    found: Reconstruction
    truth: Truth | None = None
    finding: Finding | None = None
    straightness: Straightness | None = None
    configuration: str = "none"
    recipe: str = ""
    replay: float | None = None
    baseline_replay: float | None = None
    agreement: tuple[float, ...] = ()


def count_parameters(model: nn.Module) -> int:
    """Return how many numbers the network holds."""
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class Provenance:
    """What is needed to reproduce an audit.

    Attributes:
        title: the title of the report.
        command: the command line that makes it.
        model: name of the network.
        parameters: how many numbers it holds; 0 if unknown.
        scenario: the resolved scenario as YAML, or an empty string.
        data: name of the data set, or an empty string.
        class_names: names of the classes; may be empty.
        configurations: the ways in which clients trained, in order; one if nothing varies.
        planned: how many attacks on clients there are to be, if some are not among the evidence.
        failures: why trials failed, one line per reason.
        versions: versions of the software that the numbers depend on.
        date: the date and time in ISO 8601 format.
    """

    title: str
    command: str
    model: str
    parameters: int
    scenario: str = ""
    data: str = ""
    class_names: tuple[str, ...] = ()
    configurations: tuple[Configuration, ...] = (Configuration(),)
    planned: int | None = None
    failures: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=versions)
    date: str = field(default_factory=now)


def grouped(
    evidence: Sequence[Evidence], provenance: Provenance
) -> list[tuple[Configuration, list[Evidence]]]:
    """Group the evidence by configuration, in the order of ``provenance``; omit empty ones."""
    if not evidence:
        raise LeakmeterError("evidence is empty: run at least one attack on one client")
    runs: dict[str, list[Evidence]] = {}
    for run in evidence:
        runs.setdefault(run.configuration, []).append(run)
    known = {each.label: each for each in provenance.configurations}
    for label in runs:
        if label not in known:
            raise LeakmeterError(
                f"evidence of configuration {label!r}, but provenance.configurations has only "
                f"{', '.join(map(repr, known))}"
            )
    return [(each, runs[label]) for label, each in known.items() if label in runs]
