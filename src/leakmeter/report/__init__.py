"""What leaked, for an engineer and a privacy officer: one HTML file, and its numbers as data."""

from leakmeter.report.compare import Comparison, compare
from leakmeter.report.compare import show as show_comparison
from leakmeter.report.export import write_results
from leakmeter.report.page import render, write

__all__ = [
    "Comparison",
    "compare",
    "render",
    "show_comparison",
    "write",
    "write_results",
]
