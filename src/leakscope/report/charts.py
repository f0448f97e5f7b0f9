"""Curves as inline SVG that takes its colours and fonts from the page, in light and dark.

Matplotlib cannot write ``currentColor`` or ``var(--name)``. So every colour here is a near-black
stand-in, and :func:`_inline` puts the page's own in its place.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from leakscope.measure import RECOGNISABLE_DB, Straightness
from leakscope.report.grouping import AttackEvidence

SERIES = 5
"""How many series colours the style sheet has; after that they repeat with another dash."""

_INK, _RULE = "#000001", "#000002"
_STAND_INS = {_INK: "currentColor", _RULE: "var(--rule-strong)"} | {
    f"#0000{16 + i:02x}": f"var(--series-{i})" for i in range(SERIES)
}
_DASHES = ("-", "--", ":", "-.")
_WIDTH, _HEIGHT = 420, 300
_MOST_POINTS = 400
_LONGEST_NAME = 18


def convergence(attacks: Sequence[AttackEvidence]) -> Markup:
    """Matching distance against iteration: a colour per attack, a line per client."""
    with _style("convergence"):
        columns = 50 // (max(len(_short(attack.name)) for attack in attacks) + 6)
        figure, axes = _canvas(height=_HEIGHT + 20 * ((len(attacks) - 1) // columns))
        lowest, highest = math.inf, 0.0
        for number, attack in enumerate(attacks):
            for client, run in enumerate(attack.runs):
                steps, match = _thinned(run.found.history["match"].double().numpy())
                lowest, highest = min(lowest, match.min()), max(highest, match.max())
                axes.plot(
                    steps,
                    match,
                    color=_colour(number),
                    linestyle=_DASHES[number // SERIES % len(_DASHES)],
                    linewidth=2 if len(attack.runs) == 1 else 1.1,
                    label=_short(attack.name) if client == 0 else None,
                )
        if lowest > 0 and highest / lowest > 10:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set(xlabel="Iteration", ylabel="Matching distance")
        figure.legend(loc="outside upper left", ncols=columns, frameon=False)
        return _inline(figure, "Matching distance against iteration for each attack.")


def psnr_strip(attacks: Sequence[AttackEvidence]) -> Markup:
    """PSNR of every image, each attack above its no-update baseline."""
    with _style("psnr"):
        figure, axes = _canvas(height=max(_HEIGHT, 96 + 68 * len(attacks)))
        for number, attack in enumerate(attacks):
            color = _colour(number)
            _dots(axes, attack.psnr, 2 * number, color=color, facecolors=color)
            _dots(axes, attack.baseline_psnr, 2 * number + 1, color=color, facecolors="none")
        axes.axvline(RECOGNISABLE_DB, color=_INK, linewidth=1, linestyle="--", zorder=1)
        axes.annotate(
            f"{RECOGNISABLE_DB:g} dB",
            (RECOGNISABLE_DB, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
        )
        labels = [label for attack in attacks for label in (_short(attack.name), "no update")]
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_xlabel("PSNR in dB (higher: closer to the original)")
        axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
        axes.tick_params(axis="y", length=0)
        return _inline(figure, "PSNR of every image for each attack and its baseline.")


def agreement(paths: Mapping[int, Straightness]) -> Markup:
    """Cosine of the update with one gradient along the line, the best place of each client marked.

    Args:
        paths: by client.
    """
    with _style("agreement"):
        figure, axes = _canvas(height=_HEIGHT)
        for number, (client, path) in enumerate(paths.items()):
            _client_line(axes, path.alphas, path.cosines, number, client)
            axes.plot(path.best_alpha, path.best_cosine, "o", color=_colour(number), clip_on=False)
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.set(xlabel="Way from the received to the returned weights", ylabel="Agreement")
        axes.set_xlim(0, 1)
        _up_to_one(axes, min(min(path.cosines) for path in paths.values()))
        _legend(figure, paths)
        return _inline(figure, "Agreement of one step with all steps along the way.")


def flatness(paths: Mapping[int, Straightness]) -> Markup:
    """Share of the gradient in the best plane against the local step.

    Args:
        paths: by client.
    """
    with _style("flatness"):
        figure, axes = _canvas(height=_HEIGHT)
        for number, (client, path) in enumerate(paths.items()):
            steps = [step + 1 for step in path.steps]
            _client_line(axes, steps, path.plane_shares, number, client)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.set_xlim(0, max(path.total_steps for path in paths.values()) + 1)
        _up_to_one(axes, min(path.least_plane_share for path in paths.values()))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set(xlabel="Local step", ylabel="Share in the plane")
        _legend(figure, paths)
        return _inline(figure, "Share of the gradient in one plane at each local step.")


def _client_line(
    axes: Axes, x: Sequence[float], y: Sequence[float], number: int, client: int
) -> None:
    """One client's curve; a single point would be no line, so it is a dot."""
    axes.plot(
        x,
        y,
        color=_colour(number),
        linestyle=_DASHES[number // SERIES % len(_DASHES)],
        marker="o" if len(x) == 1 else None,
        linewidth=1.6,
        label=f"client {client}",
    )


def _up_to_one(axes: Axes, lowest: float) -> None:
    """The same scale for both charts of a path, so that what hardly falls looks flat."""
    bottom = min(0.5, math.floor(10 * lowest) / 10)
    axes.set_ylim(bottom, 1 + 0.03 * (1 - bottom))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def _legend(figure: Figure, paths: Mapping[int, Straightness]) -> None:
    """Names for a few lines; one needs none, and many would fill the chart."""
    if 1 < len(paths) <= SERIES:
        figure.legend(loc="outside upper left", ncols=3, frameon=False)


def _style(salt: str) -> AbstractContextManager[None]:
    """Settings for all charts; ``salt`` makes their element ids repeatable and distinct."""
    return matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": salt,
            "text.parse_math": False,
            "text.color": _INK,
            "font.size": 12,
            "axes.labelcolor": _INK,
            "axes.labelsize": 12,
            "axes.edgecolor": _RULE,
            "axes.grid": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "grid.color": _RULE,
            "grid.alpha": 0.45,
            "grid.linewidth": 0.6,
            "xtick.color": _RULE,
            "ytick.color": _RULE,
            "xtick.labelcolor": _INK,
            "ytick.labelcolor": _INK,
        }
    )


def _canvas(height: int) -> tuple[Figure, Axes]:
    """A figure whose units are CSS pixels at its natural width."""
    figure = Figure(figsize=(_WIDTH / 72, height / 72), layout="constrained")
    return figure, figure.add_subplot()


def _short(name: str) -> str:
    """A name that leaves room for the chart; matplotlib would hide one that starts with ``_``."""
    line = " ".join(name.split()).lstrip("_") or "attack"
    return line if len(line) <= _LONGEST_NAME else line[: _LONGEST_NAME - 1] + "…"


def _colour(series: int) -> str:
    return f"#0000{16 + series % SERIES:02x}"


def _thinned(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """At most a few hundred points, first and last included; what is not finite is left out."""
    steps = np.linspace(0, len(values) - 1, min(len(values), _MOST_POINTS)).round().astype(np.int64)
    kept = steps[np.isfinite(values[steps])]
    return kept + 1, values[kept]


def _dots(axes: Axes, values: list[float], row: int, *, color: str, facecolors: str) -> None:
    """One dot per image, spread evenly over the height of the row by the golden ratio."""
    spread = (np.arange(len(values)) * 0.618 % 1 - 0.5) * 0.6 if len(values) > 1 else [0.0]
    axes.scatter(
        values,
        row + np.asarray(spread),
        s=22,
        edgecolors=color,
        facecolors=facecolors,
        alpha=0.8,
        linewidths=1.2,
        zorder=2,
    )


def _inline(figure: Figure, description: str) -> Markup:
    """The SVG element alone, described for those who cannot see it."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with warnings.catch_warnings():
        # The browser draws the text: what is missing from matplotlib's own font does not matter.
        warnings.filterwarnings("ignore", "Glyph")
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<style.*?</style>", "", svg)  # it would apply to the whole page
    svg = re.sub(r' (?:xmlns(?::xlink)?|version|width="[\d.]+pt" height)="[^"]*"', "", svg, count=4)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # the same in every figure, and nothing points there
    svg = re.sub(r"font-family: [^;]*; ", "", svg)
    for stand_in, colour in _STAND_INS.items():
        svg = svg.replace(stand_in, colour)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{description}"', 1))
