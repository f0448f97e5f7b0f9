"""Coverage-guided fuzzing of everything that reads a file from outside.

    python tests/faults/fuzz.py TARGET FOLDER [libFuzzer options]

FOLDER holds valid files to start from, and gets what was found to be interesting. Only a
LeakmeterError may escape, and no file may make the process large or slow.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["leakmeter"]):
    from leakmeter import data
    from leakmeter.audits import Scenario
    from leakmeter.errors import LeakmeterError
    from leakmeter.judge import Results
    from leakmeter.recording import update_from_files
    from leakmeter.update import Update

PLACE = Path(tempfile.mkdtemp(prefix="fuzz"))


def in_folder(kind: str, *names: str) -> Callable[[Path], object]:
    """A reader of a folder whose first file is the one under test, the others being valid."""

    def read(file: Path) -> object:
        file.replace(PLACE / names[0])
        return data.load(f"{kind}:{PLACE}")

    return read


TARGETS: dict[str, Callable[[Path], object]] = {
    "update": Update.load,
    "scenario": Scenario.load,
    "results": Results.load,
    "npz": lambda file: data.load(f"npz:{file}"),
    "cifar100": in_folder("cifar100", "train"),
    "femnist": in_folder("femnist", "all_data_0.json"),
    "mnist": in_folder("mnist", "train-images-idx3-ubyte"),
    "folder": in_folder("folder", "a/picture.png"),
    "torch": lambda file: update_from_files(file, file, num_examples=1),
}
"""What reads each kind of file."""


def prepare(target: str, folder: Path) -> None:
    """Put the valid neighbors of the file under test where it is read."""
    neighbors = folder.parent / f"{folder.name}-neighbors"
    for file in neighbors.rglob("*") if neighbors.exists() else ():
        place = PLACE / file.relative_to(neighbors)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.is_file():
            place.write_bytes(file.read_bytes())


def main() -> None:
    target, folder, *options = sys.argv[1:]
    prepare(target, Path(folder))
    read, file = TARGETS[target], PLACE / "file"

    def try_one(content: bytes) -> None:
        file.write_bytes(content)
        with contextlib.suppress(LeakmeterError):
            read(file)

    atheris.Setup([sys.argv[0], folder, *options], try_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
