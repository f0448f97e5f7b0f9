"""What leaked, for an engineer and a privacy officer: one HTML file, and its numbers as data."""

from leakscope.report.compare import Comparison, compare
from leakscope.report.compare import show as show_comparison
from leakscope.report.export import write_results
from leakscope.report.page import render, write

__all__ = [
    "Comparison",
    "compare",
    "render",
    "show_comparison",
    "write",
    "write_results",
]
