"""Finished trials on disk, one file each, found again by everything they depend on."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import leakscope
from leakscope.audit.store import write_whole
from leakscope.bench import sources
from leakscope.bench.table import Row
from leakscope.bench.trial import Job, Outcome, build


@dataclass(frozen=True)
class Store:
    """The outcomes of one table.

    Attributes:
        folder: where their files are.
        data: folder of the data files.
    """

    folder: Path
    data: Path

    def job(self, row: Row, repeat: int) -> Job:
        """The trial of a row, with a checkpoint beside its file."""
        path = self._path(row, f"r{repeat:03d}")
        return Job(row, repeat, self.data, path.with_suffix(".checkpoint"))

    def save(self, job: Job, outcome: Outcome) -> None:
        """Write an outcome, whole or not at all."""
        record = {
            "row": job.row.name,
            "repeat": job.repeat,
            "iterations": job.row.iterations,
            "metrics": outcome.metrics,
            "error": outcome.error,
        }
        path = self._path(job.row, f"r{job.repeat:03d}")
        write_whole(path, json.dumps(record, indent=2) + "\n")

    def outcomes(self, row: Row) -> dict[int, Outcome]:
        """All outcomes of a row by repeat, failures included."""
        found = {}
        for path in sorted(self.folder.glob(self._path(row, "r*").name)):
            record = json.loads(path.read_text(encoding="utf-8"))
            found[record["repeat"]] = Outcome(record["metrics"], record["error"])
        return found

    def finished(self, row: Row) -> dict[int, Outcome]:
        """The outcomes that need not be tried again."""
        return {
            repeat: outcome for repeat, outcome in self.outcomes(row).items() if not outcome.error
        }

    def _path(self, row: Row, repeat: str) -> Path:
        slug = re.sub(r"[^a-z0-9=]+", "-", row.name.lower())
        return self.folder / f"{slug}.{repeat}.{self._key(row)[:12]}.json"

    def _key(self, row: Row) -> str:
        """What the outcome depends on besides the repeat; ``build`` fills in recipes' defaults."""
        if row.victim is None:
            file = sources.locate_text(self.data)
        else:
            file = sources.locate(self.data, row.victim.data)
        task = (row.victim, row.recipe, row.labels_known, row.kind, row.settings, row.iterations)
        identity = repr((leakscope.__version__, sources.fingerprint(file), task, build(row)))
        return hashlib.sha256(identity.encode()).hexdigest()
