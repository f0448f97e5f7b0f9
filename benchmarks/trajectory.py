"""How straight the paths of FEMNIST clients are, set beside table 1 of the SME paper.

    python benchmarks/trajectory.py --data femnist.npz

Prints mean ± standard deviation over clients (N=50, lr 0.004, untrained network). According to the
paper's formula w(alpha) = alpha w0 + (1 - alpha) wT, "alpha = 0" would be wT, but its numbers match
w0. The cosine is therefore printed at both ends.
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import leakmeter as lm
from leakmeter.measure import Straightness

EXAMPLES = 50
PAPER = {
    (10, 50): (".996±.002", ".984±.008", ".997±.002"),
    (50, 50): (".977±.009", ".867±.041", ".980±.007"),
    (10, 10): (".977±.008", ".872±.037", ".979±.007"),
}
"""By (epochs, batch size): smallest share in the plane, cosine at alpha = 0, largest cosine."""


def path(data: lm.data.Dataset, epochs: int, batch_size: int, seed: int) -> Straightness:
    """The path of one client with its own examples, network, and order."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.randperm(len(data), generator=generator)[:EXAMPLES]
    client = lm.Client(
        lm.models.build("cnn-femnist", classes=data.classes, seed=seed),
        data.images[some],
        data.labels[some],
        epochs=epochs,
        batch_size=batch_size,
        lr=0.004,
        normalize="femnist",
        seed=seed,
    )
    return lm.measure.straightness(client)


def spread(values: list[float]) -> str:
    numbers = torch.tensor(values, dtype=torch.float64)
    deviation = f"±{numbers.std():.3f}" if len(values) > 1 else ""
    return f"{numbers.mean():.3f}{deviation}".replace("0.", ".")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="FEMNIST as .npz")
    parser.add_argument("--clients", type=int, default=5)
    options = parser.parse_args()
    data = lm.data.load(f"npz:{options.data}")
    table = Table(
        *("E", "B", "min share", "paper", "cos w0", "cos wT", "paper", "max cos", "paper"),
        title=f"{options.clients} clients each; the paper has 100",
        padding=0,
    )
    for (epochs, batch_size), (share, start, best) in PAPER.items():
        seeds = track(range(options.clients), description=f"E={epochs} B={batch_size}")
        paths = [path(data, epochs, batch_size, seed) for seed in seeds]
        table.add_row(
            str(epochs),
            str(batch_size),
            spread([one.least_plane_share for one in paths]),
            share,
            spread([one.start_cosine for one in paths]),
            spread([one.cosines[-1] for one in paths]),
            start,
            spread([one.best_cosine for one in paths]),
            best,
        )
    Console().print(table)


if __name__ == "__main__":
    main()
