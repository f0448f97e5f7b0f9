"""Describes a published table: rows that name a victim, an attack, and the printed numbers."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from leakmeter.errors import LeakmeterError


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """How the network was trained before the attack, on images that are not attacked.

    Attributes:
        rounds: number of rounds of federated averaging.
        split: one client per ``writer``, or ``one`` client that holds everything.
        shared: whether all repeats use one network, which has seen none of their images; otherwise
            each repeat has its own network.
        settings: arguments of :func:`~leakmeter.federated.federate`, such as ``lr`` and
            ``participation``.
    """

    rounds: int
    split: Literal["writer", "one"]
    shared: bool
    settings: Mapping[str, Any]


Pick = Literal["random", "distinct", "writer", "varied"]


@dataclass(frozen=True, kw_only=True)
class Victim:
    """A client under attack.

    Attributes:
        data: one of :data:`~leakmeter.bench.sources.SOURCES`.
        model: name of a built-in network.
        examples: N, the number of images the client holds.
        epochs: E, the number of local epochs.
        batch_size: B, the batch size; all images if not given.
        lr: step size of the client.
        shares: what the client sends: ``weights`` after local training, or one ``gradient``.
        init: how the weights are initialized: as in the network's paper (``default``), ``uniform``
            in (-0.5, 0.5), or ``xavier-normal`` with zero biases (SAPAG, section VI-B).
        trained: training before the attack, or ``None`` for fresh weights.
        normalize: whether the network sees normalized images, as in most papers, or plain ones.
        pick: which images to use: any (``random``), from ``distinct`` classes, the first ones of
            one ``writer`` (as in SME's public code), or ``varied`` ones from five writers (NL-SME,
            section V-C).
        settings: any other fields of :class:`~leakmeter.update.Protocol`; may also override lr.
    """

    data: str
    model: str
    examples: int
    epochs: int = 1
    batch_size: int | None = None
    lr: float = 0.004
    shares: Literal["weights", "gradient"] = "weights"
    init: Literal["default", "uniform", "xavier-normal"] = "default"
    trained: Pretraining | None = None
    normalize: bool = True
    pick: Pick = "random"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """T, the number of local steps."""
        return self.epochs * -(-self.examples // (self.batch_size or self.examples))


@dataclass(frozen=True)
class Recipe:
    """A named recipe with the numbers from the paper whose table it appears in.

    Attributes:
        name: its name in :data:`leakmeter.attacks.papers.RECIPES`.
        iterations: the paper's number of iterations.
        options: other keyword arguments.
    """

    name: str
    iterations: int
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number in a table, or a few that belong together.

    Attributes:
        setting: what the rows of one comparison have in common, such as ``femnist E=10 N=10``.
        attack: the table's name for the method.
        recipe: the recipe that implements it here.
        victim: the client to attack; ``None`` if the row's kind provides its own.
        paper: the printed numbers by metric.
        labels_known: whether the attacker is told the labels.
        kind: how a trial is run; one of :data:`~leakmeter.bench.trial.KINDS`.
        settings: additional settings for that kind.
        relative_to: the attack in the same setting whose costs the ratios are relative to.
        note: how the row differs from the paper.
        override: number of iterations to run instead of the paper's.
    """

    setting: str
    attack: str
    recipe: Recipe
    victim: Victim | None
    paper: Mapping[str, float]
    labels_known: bool = True
    kind: str = "attack"
    settings: Mapping[str, Any] = field(default_factory=dict)
    relative_to: str = ""
    note: str = ""
    override: int | None = None

    @property
    def name(self) -> str:
        """The name that ``--rows`` is matched against."""
        return f"{self.setting} {self.attack}"

    @property
    def iterations(self) -> int:
        """The number of iterations to run."""
        return self.override or self.recipe.iterations


@dataclass(frozen=True)
class Table:
    """A published table.

    Attributes:
        id: its name on the command line, such as ``sme-2``.
        title: what the table shows.
        reference: where it was published.
        rows: the rows in the paper's order.
        note: what is left out or different in the table as a whole.
    """

    id: str
    title: str
    reference: str
    rows: tuple[Row, ...]
    note: str = ""

    def select(self, patterns: Sequence[str], iterations: int | None) -> list[Row]:
        """The rows whose names match any of ``patterns`` (all rows if there are none).

        Args:
            patterns: shell-style patterns, not case-sensitive.
            iterations: number of iterations to run instead of the paper's.
        """
        for pattern in patterns:
            if not any(_matches(row, pattern) for row in self.rows):
                names = ", ".join(row.name for row in self.rows)
                raise LeakmeterError(f"--rows {pattern!r} matches no row of {self.id}: {names}")
        return [
            replace(row, override=iterations)
            for row in self.rows
            if not patterns or any(_matches(row, pattern) for pattern in patterns)
        ]


def _matches(row: Row, pattern: str) -> bool:
    return fnmatch.fnmatchcase(row.name.lower(), pattern.lower())
