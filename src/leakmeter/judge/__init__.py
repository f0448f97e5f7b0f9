"""The only place that decides what leaks, how certain that is, and why."""

from leakmeter.judge.advice import IGNORED
from leakmeter.judge.evidence import Configuration, Evidence, Provenance, Truth, Utility
from leakmeter.judge.judge import judge, label_facts, strongest_first
from leakmeter.judge.results import (
    AttackResult,
    ConfigurationResult,
    Results,
    change,
)
from leakmeter.judge.rule import Leak, Level

__all__ = [
    "IGNORED",
    "AttackResult",
    "Configuration",
    "ConfigurationResult",
    "Evidence",
    "Leak",
    "Level",
    "Provenance",
    "Results",
    "Truth",
    "Utility",
    "change",
    "judge",
    "label_facts",
    "strongest_first",
]
