"""The examples find what their texts say, run as a user runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# As in conftest.py: one thread for each of the test processes.
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(command, cwd=cwd, env=ONE_THREAD, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return done.stdout


def numbers(output: str, form: str) -> list[float]:
    """All numbers that stand in ``output`` where ``form`` has a hash."""
    return [float(found) for found in re.findall(form.replace("#", r"(\d+(?:\.\d+)?)"), output)]


def opacus_hides(output: str) -> None:
    plain, private = numbers(output, "recognized # of 8")
    assert plain >= 5
    assert private == 0
    assert numbers(output, r"epsilon +#")[-1] < 20


def color_helps(output: str) -> None:
    without, with_it = numbers(output, "# dB")
    assert with_it > without + 0.5


def simpson_beats_ig(output: str) -> None:
    ig, sme, simpson, retrace = numbers(output, "# dB")
    assert simpson > ig + 3
    assert abs(simpson - sme) < 2
    assert retrace > ig + 3


def words_are_read(output: str) -> None:
    sapag, _, blind = numbers(output, r"(?m)^(?:SAPAG|DLG|no update) +#%")
    assert sapag >= blind + 40


def tokens_are_read(output: str) -> None:
    found, blind = numbers(output, r"(?m)^(?:IG|no update) +#%")
    assert found >= blind + 30


@pytest.mark.parametrize(
    ("script", "options", "check"),
    [
        ("opacus_client.py", [], opacus_hides),
        ("new_prior.py", ["60"], color_helps),
        ("new_attack.py", ["60"], simpson_beats_ig),
        ("text.py", ["--iterations", "200"], words_are_read),
        ("transformer.py", ["200"], tokens_are_read),
    ],
)
def test_example(script: str, options: list[str], check: Callable[[str], None]) -> None:
    check(run(sys.executable, EXAMPLES / script, *options))


def test_own_model_and_own_pictures(tmp_path: Path) -> None:
    """The commands that own.yaml shows, in a copy of its folder."""
    folder = tmp_path / "own_model"
    shutil.copytree(EXAMPLES / "own_model", folder)
    shown = re.findall(r"^#     (.*)$", (folder / "own.yaml").read_text(), re.MULTILINE)
    assert shown[0] == "cd examples/own_model"
    assert shown[1] == "python make_images.py"
    run(sys.executable, "make_images.py", cwd=folder)
    assert len(list(folder.glob("images/*/*.png"))) == 128
    program, *options = shown[2].split()
    output = run(Path(sys.executable).with_name(program), *options, cwd=folder)
    assert "All 4 training images could be read out of this update and recognized" in output
    assert (folder / "out" / "report.html").exists()


@pytest.mark.parametrize(
    ("script", "package", "extra"),
    [("opacus_client.py", "opacus", "dp"), ("transformer.py", "transformers", "text")],
)
def test_a_missing_extra_is_named(script: str, package: str, extra: str) -> None:
    program = (
        f"import runpy, sys; sys.modules[{package!r}] = None; "
        f"runpy.run_path({str(EXAMPLES / script)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"pip install --constraint constraints.txt '.[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
