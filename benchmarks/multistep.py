"""SME and IG on weights after many local steps, set beside table 2 of the SME paper.

    python benchmarks/multistep.py --data cifar100.npz

Prints mean PSNR with a 95 % interval over clients, and L_sim, for N=10 and N=50 (E=20, B=10).
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import leakscope as ls
from leakscope.attack.trajectory import Start

PAPER = {(10, "ig"): (22.3, 0.102), (10, "sme"): (26.9, 0.040)}
PAPER |= {(50, "ig"): (14.8, 0.154), (50, "sme"): (21.7, 0.047)}


def attack_clients(
    data: ls.data.Dataset, examples: int, clients: int, iterations: int
) -> dict[str, list[tuple[float, float, float]]]:
    """(PSNR, L_sim, seconds) of every client by attack; both attacks share every setting."""
    sme = ls.papers.sme(iterations)
    attacks = {"ig": replace(sme, trajectory=Start()), "sme": sme}
    results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in attacks}
    for client in track(range(clients), description=f"N={examples}"):
        generator = torch.Generator().manual_seed(client)
        some = torch.randperm(len(data), generator=generator)[:examples]
        images, labels = data.images[some], data.labels[some]
        model = ls.models.build("cnn-cifar", classes=data.classes, seed=client)
        update = ls.Client(
            model,
            images,
            labels,
            epochs=20,
            batch_size=10,
            lr=0.004,
            normalize="cifar100",
            seed=client,
        ).train()
        for name, attack in attacks.items():
            found = attack.run(model, update, labels=labels, seed=0)
            psnr = ls.measure.images(found.images, images).psnr.mean().item()
            results[name].append((psnr, found.history["match"][-1].item(), found.seconds))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="CIFAR-100 as .npz")
    parser.add_argument("--clients", type=int, default=3, help="for N=10; one for N=50")
    parser.add_argument("--iterations", type=int, default=300)
    options = parser.parse_args()
    data = ls.data.load(f"npz:{options.data}")
    table = Table("N", "attack", "clients", "PSNR [dB]", "95 %", "paper", "L_sim", "paper", "s")
    for examples, clients in ((10, options.clients), (50, 1)):
        for name, rows in attack_clients(data, examples, clients, options.iterations).items():
            psnr, match, seconds = torch.tensor(rows, dtype=torch.float64).unbind(1)
            spread = ls.measure.interval(psnr)
            paper, paper_match = PAPER[examples, name]
            table.add_row(
                str(examples),
                name,
                str(clients),
                f"{spread.mean:.2f}",
                f"{spread.low:.2f} .. {spread.high:.2f}" if clients > 1 else "-",
                str(paper),
                f"{match.mean():.3f}",
                f"{paper_match:.3f}",
                f"{seconds.mean():.0f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
