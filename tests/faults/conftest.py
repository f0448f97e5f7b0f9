from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from faults import sweeps

FIGURES: Counter[str] = Counter({"trials lost": 0, "crashes": 0})
"""What was done to the software, and what came of it."""


@pytest.fixture
def figures() -> Counter[str]:
    return FIGURES


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the sweep finds when nothing happens to it."""
    folder = sweeps.desk(tmp_path_factory.mktemp("undisturbed"))
    code, said = sweeps.finished(folder, "--processes", "1")
    assert code == 0, said
    found = sweeps.essence(folder)
    assert len(found) == sweeps.TRIALS
    return found


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    return sweeps.desk(tmp_path / "desk")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    words = ", ".join(f"{name}: {count}" for name, count in sorted(FIGURES.items()))
    terminalreporter.write_line(f"figures: {words}")
