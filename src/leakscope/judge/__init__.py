"""The only place that says what leaks, how sure that is, and why."""

from leakscope.judge.advice import IGNORED
from leakscope.judge.evidence import Configuration, Evidence, Provenance, Truth, Utility
from leakscope.judge.judge import judge, label_facts, strongest_first
from leakscope.judge.results import (
    AttackResult,
    ConfigurationResult,
    Results,
    change,
)
from leakscope.judge.rule import Leak, Level

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
