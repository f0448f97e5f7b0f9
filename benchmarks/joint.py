"""Whether two gradients of the same images give away more than one (AGIC, section IV-B).

    python benchmarks/joint.py --data FOLDER --clients 10

FOLDER holds femnist.npz. Every client computes the gradient of eight images twice: on a fresh
network, and again after that network has learned from a thousand other images. Prints the PSNR for
each gradient alone and for both together, with the second weighted at a tenth (as in the paper) or
equally. Labels are known.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import leakmeter as lm
from leakmeter import papers
from leakmeter.attacks import joint


def tried(data: lm.data.Dataset, seed: int, iterations: int) -> list[float]:
    """PSNR from the first gradient, from the second, and from both with each weight."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    mine, others = order[:8], order[8:1008]
    images, labels = data.images[mine], data.labels[mine]
    first, second = (
        lm.models.build("cnn-femnist", classes=data.classes, seed=seed) for _ in range(2)
    )
    learned = lm.Client(
        first,
        data.images[others],
        data.labels[others],
        epochs=1,
        batch_size=50,
        lr=0.01,
        normalize="femnist",
        seed=seed,
    ).train()
    assert learned.after is not None
    second.load_state_dict(learned.after)
    updates = [
        lm.Client(network, images, labels, normalize="femnist").gradient()
        for network in (first, second)
    ]
    attack = replace(papers.ig(tv=0.005, sign=False), solver=papers.retrace(iterations).solver)
    found = [attack.run(first, each, labels=labels, seed=n) for n, each in enumerate(updates)]
    for weight in (0.1, 1.0):
        together = joint.reconstruct(
            attack,
            first,
            [[update] for update in updates],
            labels=[[labels]] * 2,
            rehearsal=iterations // 4,
            later=weight,
        )
        found.append(together.found)
    return [lm.measure.images(each.images, images).psnr.mean().item() for each in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=100)
    options = parser.parse_args()
    data = lm.data.load(f"npz:{options.data / 'femnist.npz'}")
    table = Table("client", "first", "second", "both, a tenth", "both, equal")
    rows = []
    for seed in range(options.clients):
        rows.append(tried(data, seed, options.iterations))
        table.add_row(str(seed), *(f"{psnr:.1f}" for psnr in rows[-1]))
        print(seed, *(f"{psnr:.1f}" for psnr in rows[-1]), flush=True)
    mean = torch.tensor(rows, dtype=torch.float64).mean(0).tolist()
    table.add_row("mean", *(f"{psnr:.1f}" for psnr in mean))
    Console().print(table)


if __name__ == "__main__":
    main()
