"""Whole audits: from a scenario file to measured evidence on disk."""

from leakscope.audit.advise import knobs
from leakscope.audit.folder import Folder
from leakscope.audit.recorded import RecordedAudit
from leakscope.audit.run import run, run_recorded
from leakscope.audit.scenario import Scenario
from leakscope.execution.sweep import Resources

__all__ = [
    "Folder",
    "RecordedAudit",
    "Resources",
    "Scenario",
    "knobs",
    "run",
    "run_recorded",
]
