"""The notebook tells what happens: it runs, its claims hold, and it is stored with its pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

STORY = Path(__file__).parents[1] / "docs" / "story.ipynb"


def code_cells() -> list[Any]:
    notebook = nbformat.read(STORY, as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_story_runs_and_what_it_says_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cells assert the numbers that its text gives."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(STORY, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    assert sum("assert " in cell.source for cell in code_cells()) >= 8


def test_the_story_is_stored_with_its_pictures() -> None:
    assert STORY.stat().st_size < 1_000_000
    cells = code_cells()
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 9
