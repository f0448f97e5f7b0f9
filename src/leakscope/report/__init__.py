"""What leaked, for an engineer and a privacy officer: one HTML file, and its numbers as data."""

from leakscope.report.compare import Comparison, compare
from leakscope.report.compare import show as show_comparison
from leakscope.report.page import render, write
from leakscope.report.results import Results, leakage
from leakscope.report.results import write as write_results
from leakscope.report.summary import Summary, summary
from leakscope.report.verdict import Verdict, verdict

__all__ = [
    "Comparison",
    "Results",
    "Summary",
    "Verdict",
    "compare",
    "leakage",
    "render",
    "show_comparison",
    "summary",
    "verdict",
    "write",
    "write_results",
]
