"""Compares two audits: did leakage rise, fall, or is the difference unclear?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leakmeter.judge import AttackResult, ConfigurationResult, Leak, Results, change
from leakmeter.measure import Interval

Trend = Literal["rose", "fell", "cannot be told apart"]

Key = tuple[str, str]
"""Label of a configuration, and name of an attack."""

MANY = 10
"""With at least this many rows, the reader is told that one may differ by chance."""

_COLORS: dict[Trend, str] = {"rose": "red", "fell": "green", "cannot be told apart": "dim"}


@dataclass(frozen=True)
class ComparedAttack:
    """One attack on one configuration, in both audits.

    Attributes:
        configuration: its label.
        attack: its name.
        before: share that leaked, with its interval.
        after: likewise.
        change: ``after - before``, with its interval.
        psnr_before: mean in dB.
        psnr_after: likewise.
        accuracy_before: of the configuration, or ``None`` if it was not measured.
        accuracy_after: likewise.
    """

    configuration: str
    attack: str
    before: Interval
    after: Interval
    change: Interval
    psnr_before: float
    psnr_after: float
    accuracy_before: float | None
    accuracy_after: float | None

    @property
    def trend(self) -> Trend:
        """What the interval of the change allows us to conclude."""
        if self.change.low > 0:
            return "rose"
        return "fell" if self.change.high < 0 else "cannot be told apart"


@dataclass(frozen=True)
class Comparison:
    """Two audits.

    Attributes:
        rows: what was measured in both.
        only_before: what was measured in the first only.
        only_after: what was measured in the second only.
        differences: other differences of the audits, such as ``model: mlp, then cnn-cifar``.
    """

    rows: tuple[ComparedAttack, ...]
    only_before: tuple[Key, ...]
    only_after: tuple[Key, ...]
    differences: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Whether leakage rose, fell or cannot be told apart."""
        if not self.rows:
            return "The audits have no attack on a configuration in common: nothing to compare."
        counts = {trend: sum(row.trend == trend for row in self.rows) for trend in _COLORS}
        told = [f"{trend} in {count}" for trend, count in counts.items() if count]
        total = len(self.rows)
        if len(told) == 1 and total > 1:
            (trend,) = (trend for trend, count in counts.items() if count)
            return f"Leakage {trend} in all {total} comparisons."
        if total == 1:
            return f"Leakage {self.rows[0].trend}."
        return f"Of {total} comparisons, leakage {', '.join(told)}."


def compare(before: Results, after: Results) -> Comparison:
    """Compare every attack on every configuration of both audits.

    Args:
        before: one audit.
        after: another.
    """
    first, second = _measured(before), _measured(after)
    differences = [
        f"{field}: {getattr(before, field)}, then {getattr(after, field)}"
        for field in ("model", "data")
        if getattr(before, field) != getattr(after, field)
    ]
    return Comparison(
        rows=tuple(_row(key, first[key], second[key]) for key in first if key in second),
        only_before=tuple(key for key in first if key not in second),
        only_after=tuple(key for key in second if key not in first),
        differences=tuple(differences),
    )


def show(before: Results, after: Results, console: Console | None = None) -> Comparison:
    """Print the comparison for a person, and return it."""
    console, found = console or Console(), compare(before, after)
    if found.rows:
        console.print(_table(found.rows))
    for where, keys in (("first", found.only_before), ("second", found.only_after)):
        if keys:
            console.print(Text(f"Only in the {where}: {_listed(keys)}"))
    for field in found.differences:
        console.print(Text(f"The audits differ in {field}"))
    if len(found.rows) >= MANY:
        console.print(Text("Of 20 rows in which nothing changed, about one looks changed."))
    console.print(Text(found.sentence, style="bold"))
    return found


def _listed(keys: Sequence[Key]) -> str:
    """List every configuration with its attacks."""
    attacks: dict[str, list[str]] = {}
    for configuration, attack in keys:
        attacks.setdefault(configuration, []).append(attack)
    return "; ".join(f"{name} ({', '.join(tried)})" for name, tried in attacks.items())


Measured = tuple[ConfigurationResult, AttackResult, Leak]


def _measured(results: Results) -> dict[Key, Measured]:
    return {
        (configuration.label, attack.attack): (configuration, attack, attack.leak)
        for configuration in results.configurations
        for attack in configuration.attacks
        if attack.leak is not None
    }


def _row(key: Key, first: Measured, second: Measured) -> ComparedAttack:
    (before, mine, leaked), (after, theirs, leaks) = first, second
    return ComparedAttack(
        *key,
        before=leaked.interval,
        after=leaks.interval,
        change=change(leaked, leaks),
        psnr_before=fmean(mine.psnr),
        psnr_after=fmean(theirs.psnr),
        accuracy_before=before.accuracy,
        accuracy_after=after.accuracy,
    )


def _table(rows: Sequence[ComparedAttack]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        caption="Leaks: share of images that leaked, beyond the no-update baseline.",
        caption_justify="left",
    )
    costed = any(row.accuracy_before is not None or row.accuracy_after is not None for row in rows)
    table.add_column("Configuration, attack", overflow="fold", min_width=13)
    for name in ("Leaks", "Change [95%]", "PSNR in dB", *["Accuracy"] * costed, "Leakage"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        low, high = (100 * min(1.0, max(-1.0, bound)) for bound in row.change[1:])
        cells = [
            f"{row.configuration}, {row.attack}",
            f"{row.before.mean:.0%}→{row.after.mean:.0%}",
            f"{100 * row.change.mean:+.0f} [{low:+.0f}, {high:+.0f}]",
            f"{row.psnr_before:.1f}→{row.psnr_after:.1f}",
        ]
        if costed:
            cells.append(f"{_percent(row.accuracy_before)}→{_percent(row.accuracy_after)}")
        word = "unclear" if row.trend == "cannot be told apart" else row.trend
        table.add_row(*map(Text, cells), Text(word, style=_COLORS[row.trend]))
    return table


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0%}"
