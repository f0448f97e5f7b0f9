"""leakmeter: how much private training data can be read out of a federated-learning update.

The names below are the public interface. They load when first used, so that
``leakmeter --help`` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leakmeter import attacks, audits, data, federated, measure, models
    from leakmeter.attacks import papers
    from leakmeter.attacks.attack import Attack
    from leakmeter.attacks.reconstruction import Reconstruction
    from leakmeter.attacks.replay import replay_score
    from leakmeter.errors import LeakmeterError
    from leakmeter.federated.client import Client
    from leakmeter.front import AuditReport, attack, audit, names
    from leakmeter.recording import record, update_from_files
    from leakmeter.update import Protocol, Update

__version__ = "0.1.0"

__all__ = [
    "Attack",
    "AuditReport",
    "Client",
    "LeakmeterError",
    "Protocol",
    "Reconstruction",
    "Update",
    "attack",
    "attacks",
    "audit",
    "audits",
    "data",
    "federated",
    "measure",
    "models",
    "names",
    "papers",
    "record",
    "replay_score",
    "update_from_files",
]

_HOMES = {
    "Attack": "leakmeter.attacks.attack",
    "AuditReport": "leakmeter.front",
    "Client": "leakmeter.federated.client",
    "LeakmeterError": "leakmeter.errors",
    "Protocol": "leakmeter.update",
    "Reconstruction": "leakmeter.attacks.reconstruction",
    "Update": "leakmeter.update",
    "attack": "leakmeter.front",
    "audit": "leakmeter.front",
    "names": "leakmeter.front",
    "record": "leakmeter.recording",
    "replay_score": "leakmeter.attacks.replay",
    "update_from_files": "leakmeter.recording",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        home = "leakmeter.attacks" if name == "papers" else "leakmeter"
        return importlib.import_module(f"{home}.{name}")
    raise AttributeError(f"module 'leakmeter' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
