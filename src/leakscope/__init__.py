"""leakscope: how much private training data can be read out of a federated-learning update.

The names below are the public interface. They load when first used, so that
``leakscope --help`` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leakscope import data, federated, measure, models
    from leakscope.attack import papers
    from leakscope.attack.attack import Attack
    from leakscope.attack.reconstruction import Reconstruction
    from leakscope.attack.replay import replay_score
    from leakscope.errors import LeakscopeError
    from leakscope.federated.client import Client
    from leakscope.recording import record, update_from_files
    from leakscope.update import Protocol, Update

__version__ = "0.1.0"

__all__ = [
    "Attack",
    "Client",
    "LeakscopeError",
    "Protocol",
    "Reconstruction",
    "Update",
    "data",
    "federated",
    "measure",
    "models",
    "papers",
    "record",
    "replay_score",
    "update_from_files",
]

_HOMES = {
    "Attack": "leakscope.attack.attack",
    "Client": "leakscope.federated.client",
    "LeakscopeError": "leakscope.errors",
    "Protocol": "leakscope.update",
    "Reconstruction": "leakscope.attack.reconstruction",
    "record": "leakscope.recording",
    "replay_score": "leakscope.attack.replay",
    "Update": "leakscope.update",
    "update_from_files": "leakscope.recording",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        home = "leakscope.attack" if name == "papers" else "leakscope"
        return importlib.import_module(f"{home}.{name}")
    raise AttributeError(f"module 'leakscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
