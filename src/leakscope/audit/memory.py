"""How much memory there is, how much was used, and how to be stopped before it runs out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STATUS, _SYSTEM = Path("/proc/self/status"), Path("/proc/meminfo")


def available() -> int:
    """Bytes that new work may take on this machine."""
    if _SYSTEM.exists():
        return _field(_SYSTEM, "MemAvailable")
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 0.8)


def fresh_peak() -> int:
    """What this process holds now, where the system can forget its earlier peak."""
    with suppress(OSError):  # only Linux can
        Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()


def peak_memory() -> int:
    """The most this process ever held, in bytes.

    Linux hands the parent's peak on to a new process in ``ru_maxrss``, so its own is read there.
    """
    if _STATUS.exists():
        return _field(_STATUS, "VmHWM")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def at_most(size: int | None) -> Iterator[None]:
    """Let this process allocate ``size`` bytes in all: more raises an error and kills nobody.

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
    """Whether ``error`` says that memory could not be had."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


def _field(file: Path, name: str) -> int:
    """A number of kilobytes from one of the kernel's tables, in bytes."""
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines())
    return int(lines[name].split()[0]) * 1024
