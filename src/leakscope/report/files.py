"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from leakscope.errors import LeakscopeError


def write_whole(text: str, path: Path) -> None:
    """Write ``text`` beside ``path`` and move it there, so no half file is ever seen."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.touch(mode=0o600)  # a report shows private images
        partial.write_text(text, encoding="utf-8", newline="")
        partial.replace(path)
    except OSError as error:
        raise LeakscopeError(f"cannot write {path}: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
