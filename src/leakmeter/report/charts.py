"""Curves of attacks and of clients' paths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from leakmeter.judge import AttackResult, Evidence
from leakmeter.measure import RECOGNIZABLE_DB, Straightness
from leakmeter.report.drawing import (
    DASHES,
    INK,
    SERIES,
    canvas,
    inline,
    series_color,
    short,
    style,
)

Curves = Mapping[str, Sequence[Evidence]]
"""The runs to draw, by display name: attacks, or the strongest one of each configuration."""

_WIDTH, _HEIGHT = 420, 300
_WIDE = 640
_MOST_POINTS = 400
_LONGEST_NAME, _LONGEST_WIDE = 18, 34


def convergence(curves: Curves, wide: bool = False) -> Markup:
    """Plot matching distance against iteration, with a color per name and a line per client."""
    with style("convergence"):
        names = _names(curves, wide)
        columns = (76 if wide else 50) // (max(map(len, names)) + 6)
        extra = 20 * ((len(curves) - 1) // columns)
        figure, axes = _axes(_WIDE if wide else _WIDTH, _HEIGHT + extra)
        lowest, highest = math.inf, 0.0
        for number, (name, runs) in enumerate(zip(names, curves.values(), strict=True)):
            for client, run in enumerate(runs):
                steps, match = _thinned(run.found.history["match"].double().numpy())
                lowest, highest = min(lowest, match.min()), max(highest, match.max())
                axes.plot(
                    steps,
                    match,
                    color=series_color(number),
                    linestyle=DASHES[number // SERIES % len(DASHES)],
                    linewidth=2 if len(runs) == 1 else 1.1,
                    label=name if client == 0 else None,
                )
        if lowest > 0 and highest / lowest > 10:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set(xlabel="Iteration", ylabel="Matching distance")
        figure.legend(loc="outside upper left", ncols=columns, frameon=False)
        return inline(figure, "Matching distance against iteration.")


def psnr_strip(curves: Mapping[str, AttackResult], wide: bool = False) -> Markup:
    """Plot the PSNR of every image, each attack above its no-update baseline."""
    with style("psnr"):
        height = max(_HEIGHT, 96 + (44 if wide else 68) * len(curves))
        figure, axes = _axes(_WIDE if wide else _WIDTH, height)
        for number, attack in enumerate(curves.values()):
            color = series_color(number)
            _dots(axes, attack.psnr, 2 * number, color=color, facecolors=color)
            _dots(axes, attack.baseline_psnr, 2 * number + 1, color=color, facecolors="none")
        axes.axvline(RECOGNIZABLE_DB, color=INK, linewidth=1, linestyle="--", zorder=1)
        axes.annotate(
            f"{RECOGNIZABLE_DB:g} dB",
            (RECOGNIZABLE_DB, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
        )
        labels = [label for name in _names(curves, wide) for label in (name, "no update")]
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_xlabel("PSNR in dB (higher: closer to the original)")
        axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
        axes.tick_params(axis="y", length=0)
        return inline(figure, "PSNR of every image, and the same without the update.")


def agreement(paths: Mapping[int, Straightness]) -> Markup:
    """Plot the cosine of the update with one gradient along the line, marking the best place.

    Args:
        paths: by client.
    """
    with style("agreement"):
        figure, axes = _axes(_WIDTH, _HEIGHT)
        for number, (client, path) in enumerate(paths.items()):
            _client_line(axes, path.alphas, path.cosines, number, client)
            axes.plot(
                path.best_alpha, path.best_cosine, "o", color=series_color(number), clip_on=False
            )
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.set(xlabel="Way from the received to the returned weights", ylabel="Agreement")
        axes.set_xlim(0, 1)
        _up_to_one(axes, min(min(path.cosines) for path in paths.values()))
        _legend(figure, paths)
        return inline(figure, "Agreement of one step with all steps along the way.")


def flatness(paths: Mapping[int, Straightness]) -> Markup:
    """Plot the share of the gradient in the best plane against the local step.

    Args:
        paths: by client.
    """
    with style("flatness"):
        figure, axes = _axes(_WIDTH, _HEIGHT)
        for number, (client, path) in enumerate(paths.items()):
            steps = [step + 1 for step in path.steps]
            _client_line(axes, steps, path.plane_shares, number, client)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.set_xlim(0, max(path.total_steps for path in paths.values()) + 1)
        _up_to_one(axes, min(path.least_plane_share for path in paths.values()))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set(xlabel="Local step", ylabel="Share in the plane")
        _legend(figure, paths)
        return inline(figure, "Share of the gradient in one plane at each local step.")


def _client_line(
    axes: Axes, x: Sequence[float], y: Sequence[float], number: int, client: int
) -> None:
    """Draw one client's curve; a single point is drawn as a dot."""
    axes.plot(
        x,
        y,
        color=series_color(number),
        linestyle=DASHES[number // SERIES % len(DASHES)],
        marker="o" if len(x) == 1 else None,
        linewidth=1.6,
        label=f"client {client}",
    )


def _up_to_one(axes: Axes, lowest: float) -> None:
    """Use the same scale for both charts of a path, so that what hardly falls looks flat."""
    bottom = min(0.5, math.floor(10 * lowest) / 10)
    axes.set_ylim(bottom, 1 + 0.03 * (1 - bottom))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def _legend(figure: Figure, paths: Mapping[int, Straightness]) -> None:
    """Add a legend for a few lines; one needs none, and many would fill the chart."""
    if 1 < len(paths) <= SERIES:
        figure.legend(loc="outside upper left", ncols=3, frameon=False)


def _thinned(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Thin to a few hundred finite points at most, the first and last included."""
    steps = np.linspace(0, len(values) - 1, min(len(values), _MOST_POINTS)).round().astype(np.int64)
    kept = steps[np.isfinite(values[steps])]
    return kept + 1, values[kept]


def _dots(axes: Axes, values: list[float], row: int, *, color: str, facecolors: str) -> None:
    """Draw one dot per image, spread evenly over the height of the row by the golden ratio."""
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


def _axes(width: int, height: int) -> tuple[Figure, Axes]:
    """Return an empty chart that makes room for its labels."""
    figure = canvas(width, height)
    figure.set_layout_engine("constrained")
    return figure, figure.add_subplot()


def _names(curves: Iterable[str], wide: bool) -> list[str]:
    return [short(name, _LONGEST_WIDE if wide else _LONGEST_NAME) for name in curves]
