"""Stores each finished trial in a folder, whole or not at all, locally or at any fsspec URL."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
from filelock import FileLock, Timeout
from fsspec.implementations.local import LocalFileSystem

from leakmeter.errors import StorageError
from leakmeter.execution.kept import cache_folder

SHARED = "shared"
"""Folder where running trials keep what others need as well."""

MANIFEST = "manifest.json"
"""Lists every file of a trial with its SHA-256. Written last: a trial without one is not there."""


class Store:
    """Where an audit stores everything.

    ``trials/ID/`` holds a finished trial, ``failed/ID.json`` says why one failed, and
    ``quarantine/`` keeps what was damaged. Work under way is in ``.work/``, or, where the results
    go to a URL, in the cache of the machine that does it.

    Args:
        out: a folder, or a URL that fsspec can open.
    """

    def __init__(self, out: str | Path) -> None:
        try:
            self.fs, self.root = fsspec.url_to_fs(str(out))
        except (ValueError, ImportError) as error:
            raise StorageError(f"cannot open {out}: {error}") from None
        self.name = str(out)
        self.folder = Path(self.root) if isinstance(self.fs, LocalFileSystem) else None
        self.url = self.name if self.folder is None else str(self.folder)
        key = hashlib.sha256(self.root.encode()).hexdigest()[:16]
        self._work = cache_folder() / "work" / key if self.folder is None else self.folder / ".work"

    def prepare(self) -> None:
        """Create the store and check that it can be written to, before any work starts."""
        with self._storing():
            self.fs.makedirs(self.root, exist_ok=True)
            probe = self._path(f".writable-{uuid.uuid4().hex}")  # others may try at the same time
            self.fs.pipe_file(probe, b"yes")
            self.fs.rm_file(probe)

    def finished(self) -> list[str]:
        """Return the ids of the trials that are there, damaged or not."""
        return self._names("trials")

    def sound(self, trial: str, only: str | None = None) -> bool:
        """Return whether a trial, or one file of it, is there exactly as it was written."""
        try:
            manifest = json.loads(self.read(trial, MANIFEST))
            names = manifest if only is None else [only]
            return bool(manifest) and all(
                hashlib.sha256(self.read(trial, name)).hexdigest() == manifest[name]
                for name in names
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def read(self, trial: str, name: str) -> bytes:
        """Read one file of a trial."""
        content: bytes = self.fs.cat_file(self._path("trials", trial, name))
        return content

    def scratch(self, trial: str) -> Path:
        """Return a local folder for a running trial; an earlier attempt may have left files."""
        folder = self._work / trial
        with self._storing():
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def forget(self, trial: str) -> None:
        """Remove the trial's folder made by :meth:`scratch`."""
        shutil.rmtree(self._work / trial, ignore_errors=True)
        with suppress(OSError):  # others are under way
            self._work.rmdir()

    def publish(self, trial: str, files: dict[str, Path]) -> None:
        """Publish a trial as a whole, unless it is there already, and forget its failures.

        Args:
            trial: its id.
            files: by name.
        """
        sums = {n: hashlib.sha256(file.read_bytes()).hexdigest() for n, file in files.items()}
        manifest = json.dumps(sums, indent=2).encode()
        with self._storing():
            if self.folder is None:
                # Two machines may publish it at the same time and mix up their files: the last
                # one to check notices and repairs it.
                while not self.sound(trial):
                    for name, file in files.items():
                        self.fs.pipe_file(self._path("trials", trial, name), file.read_bytes())
                    self.fs.pipe_file(self._path("trials", trial, MANIFEST), manifest)
            else:
                self._appear(trial, files, manifest)
            self.forgive(trial)
        shutil.rmtree(self._work / trial, ignore_errors=True)

    def _appear(self, trial: str, files: dict[str, Path], manifest: bytes) -> None:
        """Publish on disk by one renaming; after a power failure, the checksums show any damage."""
        assert self.folder is not None
        draft = self._work / trial / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for name, file in files.items():
            shutil.move(file, draft / name)
        (draft / MANIFEST).write_bytes(manifest)
        target = self.folder / "trials" / trial
        target.parent.mkdir(exist_ok=True)
        try:
            draft.rename(target)
        except OSError:
            if not self.sound(trial):  # else somebody was faster, with the same result
                raise

    def quarantine(self, trial: str) -> None:
        """Move a damaged trial aside.

        At a URL, a trial without a manifest does not count as damaged: another machine may just be
        writing it.
        """
        if self.folder is None and not self.fs.exists(self._path("trials", trial, MANIFEST)):
            return
        place = self._path("quarantine", f"{trial}.{uuid.uuid4().hex[:8]}")
        with self._storing(), suppress(FileNotFoundError):  # somebody else has done it
            self.fs.makedirs(self._path("quarantine"), exist_ok=True)
            self.fs.mv(self._path("trials", trial), place, recursive=True)
        logging.getLogger("leakmeter").warning(
            "%s was damaged: it is in quarantine/ and will be done again", trial
        )

    def fail(self, trial: str, record: dict[str, Any]) -> None:
        """Record why a trial failed."""
        self.write(f"failed/{trial}.json", json.dumps(record, indent=2))

    def forgive(self, trial: str) -> None:
        """Forget that a trial failed."""
        with suppress(FileNotFoundError):
            self.fs.rm_file(self._path("failed", f"{trial}.json"))

    def failures(self) -> dict[str, dict[str, Any]]:
        """Return the records of all failures by trial."""
        found = {}
        for name in self._names("failed"):
            with suppress(OSError, ValueError):
                found[name.removesuffix(".json")] = json.loads(self.text(f"failed/{name}"))
        return found

    @contextmanager
    def claim(self, trial: str) -> Iterator[bool]:
        """Try to claim the trial; the claim ends with this process at the latest.

        At a URL there are no locks: two audits may do the same work there, with the same result.
        """
        if self.folder is None:
            yield True
            return
        with self._storing():
            self._work.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._work / f"{trial}.lock", timeout=0)
        with self._storing():
            ours = _acquired(lock)
        try:
            yield ours
        finally:
            lock.release()

    def claimed(self) -> list[str]:
        """Return the ids of the trials that some process is working on now."""
        if self.folder is None or not self._work.exists():
            return []
        found = []
        for file in sorted(self._work.glob("*.lock")):
            # Without write permission there, this cannot be determined.
            with suppress(StorageError), self.claim(file.stem) as free:
                if not free:
                    found.append(file.stem)
        return found

    def tidy(self, trials: Iterable[str]) -> None:
        """Remove the locks of those ``trials`` that are finished, and the folder they were in."""
        done = set(self.finished())
        for trial in trials:
            if trial in done:
                (self._work / f"{trial}.lock").unlink(missing_ok=True)
        if self._work.is_dir() and {path.name for path in self._work.iterdir()} <= {SHARED}:
            shutil.rmtree(self._work, ignore_errors=True)

    def write(self, name: str, text: str) -> None:
        """Write a text file, whole or not at all."""
        with self._storing():
            self.fs.makedirs(self._path(name).rsplit("/", 1)[0], exist_ok=True)
            _write_whole(self.fs, self._path(name), text)

    def text(self, name: str) -> str:
        """Read a text file; :class:`FileNotFoundError` if there is none."""
        content: bytes = self.fs.cat_file(self._path(name))
        return content.decode()

    def _path(self, *parts: str) -> str:
        return "/".join([self.root.rstrip("/"), *parts])

    def _names(self, folder: str) -> list[str]:
        try:
            listed = self.fs.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in listed)

    @contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise StorageError(f"cannot write to {self.name}: {reason}") from None


def _acquired(lock: FileLock) -> bool:
    try:
        lock.acquire()
    except Timeout:  # an OSError, but none of the store's
        return False
    return True


def write_whole(path: str | Path, text: str) -> None:
    """Write a local file or one at a URL so that nobody ever sees half of it."""
    fs, place = fsspec.url_to_fs(str(path))
    _write_whole(fs, place, text)


def _write_whole(fs: Any, path: str, text: str) -> None:
    place = Path(path)
    try:
        if not isinstance(fs, LocalFileSystem):
            fs.pipe_file(path, text.encode())
            return
        draft = place.with_name(f".{place.name}.{os.getpid()}.partial")
        try:
            draft.touch(mode=0o600)  # a report shows private images
            draft.write_text(text, encoding="utf-8", newline="")
            draft.replace(place)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from None
