"""Runs whole audits, from a scenario file to measured evidence on disk."""

from leakmeter.audits.advise import knobs
from leakmeter.audits.folder import Folder
from leakmeter.audits.recorded import RecordedAudit
from leakmeter.audits.run import run, run_recorded
from leakmeter.audits.scenario import Scenario
from leakmeter.execution.sweep import Resources

__all__ = [
    "Folder",
    "RecordedAudit",
    "Resources",
    "Scenario",
    "knobs",
    "run",
    "run_recorded",
]
