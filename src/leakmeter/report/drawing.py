"""Inline SVG that takes its colors and fonts from the page, in light and dark.

Matplotlib cannot write ``currentColor`` or ``var(--name)``. So every color here is a near-black
stand-in, and :func:`inline` replaces it with the page's own.
"""

from __future__ import annotations

import io
import re
import warnings
from contextlib import AbstractContextManager

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from leakmeter.judge import Level

SERIES = 5
"""How many series colors the style sheet has; further series repeat them with another dash."""

DASHES = ("-", "--", ":", "-.")

INK, RULE = "#000001", "#000002"
STATUS: dict[Level, str] = {
    "leaks": "#000003",
    "leaks in part": "#000004",
    "could not break it": "#000005",
}
"""The color of each verdict that can be drawn."""

_STAND_INS = {
    INK: "currentColor",
    RULE: "var(--rule-strong)",
    STATUS["leaks"]: "var(--leaks)",
    STATUS["leaks in part"]: "var(--part)",
    STATUS["could not break it"]: "var(--unbroken)",
} | {f"#0000{16 + i:02x}": f"var(--series-{i})" for i in range(SERIES)}


def style(salt: str) -> AbstractContextManager[None]:
    """Return settings for all charts; ``salt`` makes their element ids repeatable and distinct."""
    return matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": salt,
            "text.parse_math": False,
            "text.color": INK,
            "font.size": 12,
            "axes.labelcolor": INK,
            "axes.labelsize": 12,
            "axes.edgecolor": RULE,
            "axes.grid": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "grid.color": RULE,
            "grid.alpha": 0.45,
            "grid.linewidth": 0.6,
            "xtick.color": RULE,
            "ytick.color": RULE,
            "xtick.labelcolor": INK,
            "ytick.labelcolor": INK,
        }
    )


def canvas(width: int, height: int) -> Figure:
    """A figure whose units are CSS pixels at its natural width."""
    return Figure(figsize=(width / 72, height / 72))


def short(name: str, longest: int) -> str:
    """Shorten a name to leave room for the chart; matplotlib would hide a leading ``_``."""
    line = " ".join(name.split()).lstrip("_") or "attack"
    return line if len(line) <= longest else line[: longest - 1] + "…"


def series_color(series: int) -> str:
    """Return the color of the series with this index."""
    return f"#0000{16 + series % SERIES:02x}"


def inline(figure: Figure, description: str) -> Markup:
    """Return the SVG element alone, with a description for screen readers."""
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
    for stand_in, color in _STAND_INS.items():
        svg = svg.replace(stand_in, color)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{description}"', 1))
