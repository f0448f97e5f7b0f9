"""Draws the pictures of the README and the docs from what some commands leave behind.

make demo
leakmeter audit examples/defenses.yaml --out out/defenses
leakmeter audit examples/many_steps.yaml --out out/many_steps
python docs/figures.py out/demo out/defenses out/ways out/many_steps

The third is the folder of the tutorial's audit of defenses.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from playwright.sync_api import sync_playwright
from torch import Tensor

from leakmeter.audits import Folder

IMAGES = Path(__file__).parent / "images"


def strip(out: Path, name: str) -> None:
    """Originals, and what each attack read out of the weights, one column per image."""
    evidence, _ = Folder(out).read()
    assert evidence[0].truth is not None
    truth = evidence[0].truth.images
    rows: list[tuple[str, Tensor, list[str]]] = [("what the client had", truth, [])]
    for run in evidence:
        assert run.finding is not None
        scores = run.finding.scores
        title = f"read out of its weights ({run.attack.upper()})"
        notes = [f"{psnr:.0f} dB" for psnr in scores.psnr]
        rows.append((title, run.found.images[torch.tensor(scores.pairs)], notes))
    figure = Figure(figsize=(1.15 * len(truth), 1.42 * len(rows)), layout="constrained")
    panels = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for panel, (title, images, notes) in zip(panels, rows, strict=True):
        panel.suptitle(title, fontsize=10, x=0.01, ha="left")
        for axes, index in zip(panel.subplots(1, len(images)), range(len(images)), strict=True):
            axes.imshow(images[index].permute(1, 2, 0), interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.set_xlabel(notes[index] if notes else " ", fontsize=8)
    figure.savefig(IMAGES / name, dpi=110, facecolor="white")


def screenshots(demo: Path, defenses: Path, ways: Path) -> None:
    """Parts of the reports, as a browser shows them."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1100, "height": 450})
        page.goto((demo / "report.html").resolve().as_uri())
        page.screenshot(path=IMAGES / "report.png")
        for part in (
            "assumptions",
            "pictures",
            "numbers .scroll",
            "curves .charts",
            "path .charts",
        ):
            page.locator(f"#{part}").screenshot(path=IMAGES / f"{part.split()[0]}.png")
        page.goto((defenses / "report.html").resolve().as_uri())
        for part in ("verdict", "matrix", "frontier"):
            page.locator(f"#{part}").screenshot(path=IMAGES / f"{part}.png")
        page.goto((ways / "report.html").resolve().as_uri())
        page.locator("#matrix").screenshot(path=IMAGES / "ways.png")
        browser.close()


if __name__ == "__main__":
    demo, defenses, ways, many_steps = map(Path, sys.argv[1:])
    strip(demo, "demo.png")
    strip(many_steps, "many_steps.png")
    screenshots(demo, defenses, ways)
