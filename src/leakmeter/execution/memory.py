"""Measures available and used memory, and stops a process before memory runs out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STATUS, _SYSTEM = Path("/proc/self/status"), Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_CONTAINER = {
    _CGROUP / "memory.max": _CGROUP / "memory.current",
    _CGROUP / "memory/memory.limit_in_bytes": _CGROUP / "memory/memory.usage_in_bytes",
}

UNKNOWN = 2**40
"""Assumed where the system does not say how much memory there is: then there is no limit."""


def available() -> int:
    """Return the bytes that new work may take on this machine or in this container."""
    if _SYSTEM.exists():
        return min([_field(_SYSTEM, "MemAvailable"), *_in_container()])
    if hasattr(os, "sysconf"):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 0.8)
    return UNKNOWN


def _in_container() -> list[int]:
    """Return the bytes left of the container's memory limits (cgroups of version 2 and 1)."""
    left = []
    for most, used in _CONTAINER.items():
        with suppress(OSError, ValueError):  # not there, or "max"
            left.append(max(0, int(most.read_text()) - int(used.read_text())))
    return left


def fresh_peak() -> int:
    """Reset the memory peak where the system can, and return what this process holds now."""
    with suppress(OSError):  # only Linux can
        Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()


def peak_memory() -> int:
    """Return the most memory that this process ever held, in bytes.

    On Linux a new process inherits its parent's peak in ``ru_maxrss``, so its own is read there.
    """
    if _STATUS.exists():
        return _field(_STATUS, "VmHWM")
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def at_most(size: int | None) -> Iterator[None]:
    """Limit this process to ``size`` bytes in all: more raises an error instead of killing it.

    Only Linux counts what is allocated; elsewhere, and for ``None``, there is no limit.
    """
    if size is None or not sys.platform.startswith("linux"):
        yield
        return
    import resource

    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    held = _field(_STATUS, "VmData") - _field(_STATUS, "VmRSS")  # reserved, never touched
    limit = size + max(0, held)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if most < 0 else min(limit, most), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


def is_shortage(error: Exception) -> bool:
    """Return whether ``error`` says that memory could not be allocated."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


def _field(file: Path, name: str) -> int:
    """Read a number of kilobytes from one of the kernel's tables and return it in bytes."""
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines())
    return int(lines[name].split()[0]) * 1024
