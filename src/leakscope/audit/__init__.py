"""Whole audits: from a scenario file to measured evidence on disk."""

from leakscope.audit.advise import knobs
from leakscope.audit.evidence import Configuration, Evidence, Provenance, Truth, Utility
from leakscope.audit.run import read_back, run, run_recorded, run_settings
from leakscope.audit.scenario import Scenario
from leakscope.audit.sweep import Means

__all__ = [
    "Configuration",
    "Evidence",
    "Means",
    "Provenance",
    "Scenario",
    "Truth",
    "Utility",
    "knobs",
    "read_back",
    "run",
    "run_recorded",
    "run_settings",
]
