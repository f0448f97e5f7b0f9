"""The one error type that crosses leakscope's boundary."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


class LeakscopeError(ValueError):
    """Bad input: the message names the offending field and says what to do.

    The command line prints the message in one line and exits with code 2.
    """


class StorageError(LeakscopeError):
    """Results cannot be written: no other work would fare better until that is mended."""


def require(
    name: str, value: float, *, above: float | None = None, least: float = 0, most: float = math.inf
) -> None:
    """Refuse a number that is not finite or out of range.

    Args:
        name: of the field.
        value: what it was set to.
        above: what it must exceed.
        least: the smallest it may be where ``above`` is not given.
        most: the largest it may be.
    """
    low = value >= least if above is None else value > above
    if low and value <= most and math.isfinite(value):
        return
    words = f"{least:g} or more" if above is None else f"a number above {above:g}"
    words += f" and at most {most:g}" if most < math.inf else ""
    words += "" if math.isfinite(value) else ", finite"
    raise LeakscopeError(f"{name} is {value}: use {words}")


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
