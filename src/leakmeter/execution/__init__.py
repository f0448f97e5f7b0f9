"""Does any kind of work exactly once, on any machine, without losing results.

``kept`` is for one piece of work in a folder, ``sweep`` for many independent ones in a store.
"""

from leakmeter.execution.kept import (
    Checkpoint,
    Pause,
    Paused,
    Progress,
    cache_folder,
    exclusive,
    kept,
)
from leakmeter.execution.trial import Context, Done, Trial

__all__ = [
    "Checkpoint",
    "Context",
    "Done",
    "Pause",
    "Paused",
    "Progress",
    "Trial",
    "cache_folder",
    "exclusive",
    "kept",
]
