"""Does auto choose well between Retrace and Retrace with less smoothing?

    python benchmarks/auto_choice.py [--iterations 300] [--iterations 60]

Runs on twelve updates of one to three embedded photographs, with two networks. For each it prints
the PSNR of both attacks, the share of the update that their replays leave unexplained
(1 - replay score), and the gain from the second attack, in parentheses where auto would keep the
first. Labels are known.

auto itself tries the second attack only with 200 iterations or more; this shows why.
"""

from __future__ import annotations

import argparse
from itertools import product

from rich.console import Console
from rich.table import Table

import leakmeter as lm
from leakmeter import papers
from leakmeter.attacks.auto import CLEARLY

NETWORKS = ("cnn-femnist", "cnn-cifar")
CLIENTS = (
    (1, 5, 0.004),
    (1, 20, 0.02),
    (2, 5, 0.02),
    (2, 20, 0.004),
    (3, 10, 0.001),
    (3, 20, 0.02),
)
"""Photographs, epochs, step size."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, action="append", help="300 and 60 by default")
    options = parser.parse_args()
    photos = lm.data.load("photos", size=32)
    screen = Console()
    for iterations in options.iterations or (300, 60):
        candidates = {each.name: each.attack for each in papers.auto(iterations).candidates}
        table = Table("client", "plain [dB]", "sharp [dB]", "plain left", "sharp left", "gained")
        for network, (count, epochs, lr) in product(NETWORKS, CLIENTS):
            images, labels = photos.images[-count:], photos.labels[-count:]
            model = lm.models.build(network, classes=photos.classes, channels=3, size=32)
            client = lm.Client(model, images, labels, epochs=epochs, lr=lr, normalize="photos")
            update = client.train()
            quality, left = [], []
            for name in ("retrace", "retrace_sharp"):
                found = candidates[name].run(model, update, labels=labels, compiling="never")
                quality.append(lm.measure.images(found.images, images).psnr.mean().item())
                left.append(1 - lm.replay_score(model, update, found))
            gained = f"{quality[1] - quality[0]:+.1f}"
            table.add_row(
                f"{network} N={count} E={epochs} lr={lr:g}",
                *(f"{each:.1f}" for each in quality),
                *(f"{each:.5f}" for each in left),
                gained if left[1] < CLEARLY * left[0] else f"({gained})",
            )
        screen.print(f"{iterations} iterations")
        screen.print(table)


if __name__ == "__main__":
    main()
