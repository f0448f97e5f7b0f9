"""The methods of an audit with their references, as the code that implements them names them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from leakscope.attack.papers import RECIPES
from leakscope.audit.evidence import Evidence
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


def defence_methods(scenario: str) -> list[Method]:
    """The defences that a resolved scenario names.

    Args:
        scenario: as YAML, may be empty.
    """
    try:
        content = yaml.safe_load(scenario)
    except (yaml.YAMLError, RecursionError):
        return []
    names = dict.fromkeys(name for name in _defence_names(content) if name in DEFENCES)
    return [Method(name, (), _first_line(DEFENCES[name])) for name in names]


def _defence_names(content: Any) -> Iterable[str]:
    protections = content.get("defences") if isinstance(content, dict) else None
    for protection in protections if isinstance(protections, list) else ():
        parts = protection.get("parts") if isinstance(protection, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and isinstance(part.get("name"), str):
                yield part["name"]


def _first_line(documented: Any) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]
