"""The methods of an audit with their references, as the code that implements them names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leakscope.attack.papers import RECIPES
from leakscope.audit.evidence import Configuration, Evidence
from leakscope.federated.defences import DEFENCES


@dataclass(frozen=True)
class Method:
    """An attack or a defence.

    Attributes:
        name: in scenarios.
        labels: what the report calls it where that is something else.
        about: what it is and where it comes from.
    """

    name: str
    labels: tuple[str, ...]
    about: str


def attack_methods(evidence: Sequence[Evidence]) -> list[Method]:
    """The recipes that the evidence names; a label alone does not tell which recipe it was."""
    labels: dict[str, dict[str, None]] = {}
    for run in evidence:
        if run.recipe in RECIPES:
            labels.setdefault(run.recipe, {})[run.attack] = None
    return [
        Method(name, tuple(each for each in given if each != name), _first_line(RECIPES[name]))
        for name, given in labels.items()
    ]


def defence_methods(configurations: Sequence[Configuration]) -> list[Method]:
    """The defences of all configurations, each once."""
    names = dict.fromkeys(name for each in configurations for name in each.parts)
    return [Method(name, (), _first_line(DEFENCES[name])) for name in names if name in DEFENCES]


def _first_line(documented: Any) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]
