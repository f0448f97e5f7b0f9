"""What the documentation shows works as shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from leakscope.audit import Scenario

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name
)
def test_python_blocks_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec", dont_inherit=True), names)


def test_the_readme_shows_the_example_as_it_is() -> None:
    shown, stored = blocks(ROOT / "README.md", "yaml")[0], ROOT / "examples" / "photos.yaml"
    assert yaml.safe_load(shown) == yaml.safe_load(stored.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_every_scenario_field_is_documented() -> None:
    text = (ROOT / "docs" / "scenarios.md").read_text()
    for field in Scenario.model_fields:
        assert re.search(rf"`{field}[`.]", text), field
    for part in ("client", "federation", "attacks", "utility"):
        model = Scenario.model_fields[part].annotation
        for inner in (model, *getattr(model, "__args__", ())):
            for field in getattr(inner, "model_fields", {}):
                assert f"`{field}`" in text, f"{part}.{field}"
