"""Whole audits: from a scenario file to measured evidence on disk."""

from leakscope.audit.advise import knobs
from leakscope.audit.evidence import Configuration, Evidence, Provenance, Truth, Utility
from leakscope.audit.run import prepare_folder, run, run_settings
from leakscope.audit.scenario import Scenario

__all__ = [
    "Configuration",
    "Evidence",
    "Provenance",
    "Scenario",
    "Truth",
    "Utility",
    "knobs",
    "prepare_folder",
    "run",
    "run_settings",
]
