"""One self-contained HTML file that shows what leaked, to an engineer and a privacy officer."""

from leakscope.report.page import render, write
from leakscope.report.verdict import Verdict, verdict

__all__ = ["Verdict", "render", "verdict", "write"]
