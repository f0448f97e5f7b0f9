"""Whole audits: from a scenario file to measured evidence on disk."""

from leakscope.audit.evidence import Evidence, Provenance, Truth
from leakscope.audit.run import run
from leakscope.audit.scenario import Scenario

__all__ = ["Evidence", "Provenance", "Scenario", "Truth", "run"]
