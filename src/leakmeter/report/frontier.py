"""What privacy costs: leakage against accuracy, and the configurations that no other beats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from leakmeter.judge import ConfigurationResult, Level
from leakmeter.judge.words import epsilon
from leakmeter.report.drawing import INK, RULE, STATUS, canvas, inline, short, style

_WIDTH, _HEIGHT = 680, 350
_LEFT, _RIGHT, _BOTTOM, _TOP = 62, 16, 50, 20
_LONGEST_NAME = 34
_LETTER, _LINE = 6.4, 15.0  # of a label, in CSS pixels; generous, as fonts differ
_GAP = 9.0
_MARKERS = {"leaks": "o", "leaks in part": "D", "could not break it": "s"}


@dataclass(frozen=True)
class Point:
    """One configuration.

    Attributes:
        label: the text beside the point.
        level: the level of its verdict.
        leakage: share that leaked to the strongest attack, from 0 to 1.
        low: lower bound of its interval.
        high: upper bound of its interval.
        accuracy: mean over the repetitions.
        worst: lowest accuracy of a repetition.
        best: highest.
        chance: accuracy of always naming the most frequent class.
    """

    label: str
    level: Level
    leakage: float
    low: float
    high: float
    accuracy: float
    worst: float
    best: float
    chance: float


@dataclass(frozen=True)
class Rectangle:
    """A rectangle, in CSS pixels from the lower left corner."""

    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: Rectangle) -> bool:
        """Whether they share any area."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.bottom < other.top
            and other.bottom < self.top
        )


def points(judged: Sequence[ConfigurationResult]) -> list[Point]:
    """Every configuration of which both leakage and accuracy were measured."""
    found = []
    for each in judged:
        if each.utility is None or each.accuracy is None or each.leak is None:
            continue
        proven = epsilon(each.guarantee)
        name = short(each.name, _LONGEST_NAME)
        leaked, low, high = (min(1.0, max(0.0, value)) for value in each.leak.interval)
        found.append(
            Point(
                label=f"{name}, ε = {proven}" if proven else name,
                level=each.level,
                leakage=leaked,
                low=low,
                high=high,
                accuracy=each.accuracy,
                worst=min(each.utility.accuracy),
                best=max(each.utility.accuracy),
                chance=each.utility.chance,
            )
        )
    return found


def unbeaten(among: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats, in order of leakage."""

    def beaten(point: Point) -> bool:
        return any(
            other.leakage <= point.leakage
            and other.accuracy >= point.accuracy
            and (other.leakage, other.accuracy) != (point.leakage, point.accuracy)
            for other in among
        )

    kept = [point for point in among if not beaten(point)]
    return sorted(kept, key=lambda point: (point.leakage, point.accuracy))


def frontier(shown: Sequence[Point]) -> Markup:
    """Accuracy against leakage, one labeled point per configuration.

    Args:
        shown: at least one.
    """
    with style("frontier"):
        figure = canvas(_WIDTH, _HEIGHT)
        inner = (_WIDTH - _LEFT - _RIGHT, _HEIGHT - _BOTTOM - _TOP)
        axes = figure.add_axes(
            (_LEFT / _WIDTH, _BOTTOM / _HEIGHT, inner[0] / _WIDTH, inner[1] / _HEIGHT)
        )
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(*_range(shown))
        line = unbeaten(shown)
        axes.plot([p.leakage for p in line], [p.accuracy for p in line], "-", color=RULE, zorder=1)
        for point in shown:
            _draw(axes, point)
        for chance in {point.chance for point in shown}:
            axes.axhline(chance, color=RULE, linewidth=1, linestyle=":", zorder=0)
        _label(axes, shown, inner)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set(xlabel="Images recognized beyond the baseline", ylabel="Accuracy")
        return inline(figure, "Accuracy against share of images recognized, per configuration.")


def placed(
    boxes: Sequence[tuple[float, float, float]], taken: list[Rectangle], frame: Rectangle
) -> list[Rectangle]:
    """Place labels so that they cover neither each other nor what is ``taken``.

    Each tries both sides of its point and then ever greater heights. A label that fits nowhere
    covers something, as near to its point as possible.

    Args:
        boxes: x and y of each point, and the width of its label.
        taken: what must not be covered.
        frame: what labels must stay inside of.
    """
    taken, found = list(taken), {}
    for number in sorted(range(len(boxes)), key=lambda n: -boxes[n][1]):
        x, y, width = boxes[number]
        tried = list(_candidates(x, y, width, frame))
        free = (box for box in tried if not any(box.overlaps(other) for other in taken))
        nearest = tried[0] if tried else Rectangle(x, y, x + width, y + _LINE)
        found[number] = next(free, nearest)
        taken.append(found[number])
    return [found[number] for number in range(len(boxes))]


def _candidates(x: float, y: float, width: float, frame: Rectangle) -> Iterator[Rectangle]:
    """Places for a label, the nearest to its point first, none outside ``frame``."""
    rightwards = x < (frame.left + frame.right) / 2
    for step in range(60):
        rise = _GAP + _LINE / 2 * (step // 2)
        middle = y + (rise if step % 2 == 0 else -rise)
        for right in (rightwards, not rightwards):
            left = x + _GAP if right else x - _GAP - width
            box = Rectangle(left, middle - _LINE / 2, left + width, middle + _LINE / 2)
            across = box.left >= frame.left and box.right <= frame.right
            if across and box.bottom >= frame.bottom and box.top <= frame.top:
                yield box


def _label(axes: Axes, shown: Sequence[Point], inner: tuple[int, int]) -> None:
    """Draw names beside the points, with a line to those that had to move away."""
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()

    def across(value: float) -> float:
        return (value - x0) / (x1 - x0) * inner[0]

    def up(value: float) -> float:
        return (value - y0) / (y1 - y0) * inner[1]

    taken = []
    for p in shown:
        x, y = across(p.leakage), up(p.accuracy)
        taken.append(Rectangle(x - 6, y - 6, x + 6, y + 6))
        taken.append(Rectangle(across(p.low), y - 1, across(p.high), y + 1))
        taken.append(Rectangle(x - 1, up(p.worst), x + 1, up(p.best)))
    sizes = [(across(p.leakage), up(p.accuracy), _LETTER * len(p.label) + 2) for p in shown]
    for point, (x, y, _), box in zip(
        shown, sizes, placed(sizes, taken, Rectangle(0, 0, *inner)), strict=True
    ):
        right = box.left >= x
        rise = (box.bottom + box.top) / 2 - y
        far = abs(rise) > _GAP + 1
        axes.annotate(
            point.label,
            (point.leakage, point.accuracy),
            xytext=((box.left if right else box.right) - x, rise),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            fontsize=11,
            annotation_clip=False,
            arrowprops=_leader(right) if far else None,
        )


def _leader(right: bool) -> dict[str, Any]:
    """Draw a line to the near end of a label, so that it crosses no other."""
    return {
        "arrowstyle": "-",
        "color": RULE,
        "linewidth": 0.7,
        "relpos": (0 if right else 1, 0.5),
        "shrinkA": 0,
        "shrinkB": 4,
    }


def _draw(axes: Axes, point: Point) -> None:
    """Draw a marker whose shape and color show the verdict, with its error bars."""
    color = STATUS.get(point.level, INK)
    axes.hlines(point.accuracy, point.low, point.high, color=color, linewidth=1.2, alpha=0.55)
    if point.best > point.worst:
        axes.vlines(point.leakage, point.worst, point.best, color=color, linewidth=1.2, alpha=0.55)
    axes.plot(
        point.leakage,
        point.accuracy,
        marker=_MARKERS.get(point.level, "o"),
        markersize=8,
        color=color,
        markerfacecolor=color if point.level == "leaks" else "none",
        markeredgewidth=1.8,
        linestyle="none",
        clip_on=False,
        zorder=3,
    )


def _range(shown: Sequence[Point]) -> tuple[float, float]:
    """Return a range for all accuracies and chance, with some margin, inside [0, 1] if possible."""
    low = min(min(point.worst, point.chance) for point in shown)
    high = max(point.best for point in shown)
    room = max(0.05, 0.15 * (high - low))
    return max(-0.03, low - room), min(1.03, high + room)
