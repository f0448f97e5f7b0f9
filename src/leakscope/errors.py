"""The one error type that crosses leakscope's boundary."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LeakscopeError(ValueError):
    """Bad input: the message names the offending field and says what to do.

    The command line prints the message in one line and exits with code 2.
    """


def unknown(kind: str, name: str, known: Iterable[str]) -> LeakscopeError:
    """An error for a name that does not exist, with the nearest valid one.

    Args:
        kind: what the name stands for, e.g. ``"model"``.
        name: what was asked for.
        known: all valid names.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return LeakscopeError(f"unknown {kind} {name!r}: {hint}valid: {', '.join(names)}")
