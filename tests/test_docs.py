"""What the documentation shows works as shown."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml
from typer.testing import CliRunner

from leakmeter.attacks.papers import RECIPES
from leakmeter.audits import Scenario
from leakmeter.cli import app
from leakmeter.execution import executors

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
GATES = sorted((ROOT / "examples" / "gate").glob("*.yml"))
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """Arguments of every line of a shell that calls leakmeter."""
    lines = text.replace("\\\n", " ").splitlines()
    found = [re.fullmatch(r"\s*(?:[./]*\.venv/bin/)?leakmeter (.*)", line) for line in lines]
    return [shlex.split(match[1], comments=True) for match in found if match]


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


@each_page
def test_commands_are_understood(page: Path) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    outside = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"^ {4,}(\.venv/bin/)?leakmeter ", outside, re.MULTILINE), "fence it as sh"
    for name in re.findall(r"`(?:\.venv/bin/)?leakmeter ([a-z]+)", outside):
        assert name in group.commands
    for block in blocks(page, "sh"):
        for name, *arguments in commands(block):
            group.commands[name].make_context(name, arguments)  # fails as the command line would


@each_page
def test_examples_that_are_named_exist(page: Path) -> None:
    for path in re.findall(r"(?<![\w/])examples/[\w/.-]*\w", page.read_text()):
        assert (ROOT / path).exists(), path


@each_page
def test_yaml_blocks_are_scenarios_or_gates(page: Path) -> None:
    gates = [gate.read_text() for gate in GATES]
    for block in blocks(page, "yaml"):
        if block not in gates:
            Scenario.model_validate(yaml.safe_load(block))


def test_the_readme_shows_the_example_as_it_is() -> None:
    shown, stored = blocks(ROOT / "README.md", "yaml")[0], ROOT / "examples" / "photos.yaml"
    assert yaml.safe_load(shown) == yaml.safe_load(stored.read_text())


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
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


def test_every_attack_is_explained() -> None:
    table, *sections = (ROOT / "docs" / "attacks.md").read_text().split("\n## ")
    headings = {name for section in sections for name in section.splitlines()[0].split(", ")}
    for recipe in RECIPES:
        assert f"`{recipe}`" in table
        assert recipe in headings


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_a_gate_is_shown_as_it_is_and_decides(
    gate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gate.read_text() in blocks(ROOT / "docs" / "gate.md", "yaml")
    calls = [line for line in strings(yaml.safe_load(gate.read_text())) if commands(line)]
    audit, compare = (arguments for call in calls for arguments in commands(call))
    assert (audit[0], compare[0]) == ("audit", "compare")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(executors, "cores", lambda: 1)  # in this process
    runner = CliRunner()

    Path("leakage.yaml").write_text(one_face(noise=9))
    assert runner.invoke(app, audit).exit_code == 0
    Path("out/leakage/results.json").rename("leakage-baseline.json")

    Path("leakage.yaml").write_text(one_face(noise=1e-6))
    failed = runner.invoke(app, audit)
    said = "held another audit" in failed.stderr  # an attack with less noise is another one
    assert failed.stderr.endswith("ours: 100% of the images leak\n")
    assert (failed.exit_code, said) == (1, True)
    for path in ("report.html", "results.json"):
        assert Path("out/leakage", path).exists()
        assert f"out/leakage/{path}" in gate.read_text()
    compared = runner.invoke(app, compare)
    assert compared.exit_code == 0
    assert "0%→100%" in compared.stdout


def one_face(noise: float) -> str:
    """A scenario of an instant: exact without noise."""
    defense = {"label": "ours", "name": "noise", "options": {"clip": 1, "multiplier": noise}}
    scenario = {
        "model": {"name": "mlp"},
        "data": {"source": "faces"},
        "client": {"examples": 1, "shares": "gradient"},
        "attacks": [{"name": "closed_form"}],
        "defenses": [defense],
    }
    return json.dumps(scenario)


def strings(value: object) -> list[str]:
    """Every string within nested lists and mappings."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in strings(part)]
