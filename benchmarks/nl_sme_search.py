"""Which rates and penalties suit NL-SME, whose paper prints none.

    python benchmarks/nl_sme_search.py --data FOLDER --set cifar100 --examples 10 --epochs 20

FOLDER holds cifar100.npz or femnist.npz (``images``, ``labels``). Prints PSNR and L_sim for SME and
for every setting on the same clients, best first. Labels are known, batches hold 10 images, and the
client lr is 0.004.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import leakmeter as lm
from leakmeter.attacks.matched import MatchedAttack
from leakmeter.attacks.trajectory import Bezier

NETWORKS = {"cifar100": "cnn-cifar", "femnist": "cnn-femnist"}


def settings(paths: list[float], scalings: list[float], keeps: list[float]) -> dict[str, Bezier]:
    """Every combination of rates for P1 and d, with the same value for both penalties."""
    grid = itertools.product(paths, scalings, keeps)
    return {
        f"path {path:g} scaling {scaling:g} penalty {keep:g}": Bezier(
            lr_t=1e-2,
            lr_path=path,
            lr_scaling=scaling,
            keep_path=keep,
            keep_scaling=keep,
            path=path > 0,
            scaling=scaling > 0,
        )
        for path, scaling, keep in grid
    }


def attack_client(
    attack: MatchedAttack, data: lm.data.Dataset, options: argparse.Namespace, client: int
) -> tuple[float, float]:
    """(PSNR, L_sim) on the client with this number."""
    generator = torch.Generator().manual_seed(client)
    some = torch.randperm(len(data), generator=generator)[: options.examples]
    images, labels = data.images[some], data.labels[some]
    channels, size, _ = data.shape
    model = lm.models.build(
        NETWORKS[options.set], classes=data.classes, channels=channels, size=size, seed=client
    )
    update = lm.Client(
        model,
        images,
        labels,
        epochs=options.epochs,
        batch_size=10,
        lr=0.004,
        normalize=options.set,
        seed=client,
    ).train()
    found = attack.run(model, update, labels=labels)
    psnr = lm.measure.images(found.images, images).psnr.mean().item()
    return psnr, found.history["match"][-1].item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder of cifar100.npz and femnist.npz")
    parser.add_argument("--set", choices=NETWORKS, default="cifar100")
    parser.add_argument("--examples", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 101])
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--path", type=float, nargs="+", default=[1e-5, 1e-4, 1e-3])
    parser.add_argument("--scaling", type=float, nargs="+", default=[1e-4, 1e-3, 1e-2])
    parser.add_argument("--penalty", type=float, nargs="+", default=[0.0, 1e-2])
    options = parser.parse_args()
    data = lm.data.load(f"npz:{options.data}/{options.set}.npz")
    sme = lm.papers.sme(options.iterations)
    attacks = {"sme": sme}
    for name, bezier in settings(options.path, options.scaling, options.penalty).items():
        attacks[name] = replace(sme, trajectory=bezier)
    results = {}
    screen = Console(stderr=True)
    for name, attack in track(attacks.items(), description="settings", console=screen):
        rows = [attack_client(attack, data, options, client) for client in options.clients]
        results[name] = torch.tensor(rows, dtype=torch.float64).mean(0).tolist()
        print(f"{name}: {results[name][0]:.2f} dB, L_sim {results[name][1]:.4f}", flush=True)
    table = Table("setting", "PSNR [dB]", "L_sim")
    for name, (psnr, match) in sorted(results.items(), key=lambda item: -item[1][0]):
        table.add_row(name, f"{psnr:.2f}", f"{match:.4f}")
    Console().print(table)


if __name__ == "__main__":
    main()
