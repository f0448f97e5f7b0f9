"""How well the replay score, which needs no truth, ranks reconstructions by their true quality.

    python benchmarks/replay_score.py --data FOLDER [--clients 3]

FOLDER holds femnist.npz and cifar100.npz. Attacks clients that hold ten images with every attack
that accepts weights after local steps, with few iterations and with many. For each client it prints
Spearman's rank correlation between replay score and PSNR, and what auto would have lost by its
choice.
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import spearmanr

import leakmeter as lm
from leakmeter import papers
from leakmeter.attacks.matched import MatchedAttack

NETWORKS = {"femnist": "cnn-femnist", "cifar100": "cnn-cifar"}


def attacks() -> dict[str, MatchedAttack]:
    """All attacks, by name and number of iterations."""
    found: dict[str, MatchedAttack] = {
        "fedleak 150": papers.fedleak(150),
        "agic 150": papers.agic(150),
        "dlg_adam 150": papers.dlg_adam(150),
        "ig_l2 150": papers.ig_l2(150),
        "ig 150": papers.ig(150),
        "nl_sme 150": papers.nl_sme(150),
        "ig_fedavg 20": papers.ig_fedavg(20),
        "dlfa 20": papers.dlfa(20),
    }
    for iterations in (10, 50, 150):
        found[f"ig, SME's settings {iterations}"] = papers.ig(iterations, lr=1.0, sign=False)
        found[f"sme {iterations}"] = papers.sme(iterations)
        found[f"retrace {iterations}"] = papers.retrace(iterations)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder of femnist.npz and cifar100.npz")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--examples", type=int, default=10)
    options = parser.parse_args()
    screen = Console(stderr=True)
    table = Table("data", "batch size", "client", "rank correlation", "best by score", "lost [dB]")
    jobs = [
        (name, batch_size, client)
        for name in NETWORKS
        for batch_size in (10, 5)
        for client in range(options.clients)
    ]
    for name, batch_size, client in track(jobs, description="clients", console=screen):
        data = lm.data.load(f"npz:{options.data}/{name}.npz")
        generator = torch.Generator().manual_seed(client)
        some = torch.randperm(len(data), generator=generator)[: options.examples]
        images, labels = data.images[some], data.labels[some]
        channels, size, _ = data.shape
        model = lm.models.build(
            NETWORKS[name], classes=data.classes, channels=channels, size=size, seed=client
        )
        update = lm.Client(
            model,
            images,
            labels,
            epochs=10,
            batch_size=batch_size,
            lr=0.004,
            normalize=name,
            seed=client,
        ).train()
        rows = {}
        for label, attack in attacks().items():
            found = attack.run(model, update, labels=labels)
            quality = lm.measure.images(found.images, images).psnr.mean().item()
            rows[label] = (lm.replay_score(model, update, found), quality)
            screen.log(f"{name} B={batch_size} client {client} {label}: {rows[label]}")
        scores, psnrs = zip(*rows.values(), strict=True)
        chosen = max(rows, key=lambda label: rows[label][0])
        table.add_row(
            name,
            str(batch_size),
            str(client),
            f"{spearmanr(scores, psnrs).statistic:.2f}",
            chosen,
            f"{max(psnrs) - rows[chosen][1]:.2f}",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
