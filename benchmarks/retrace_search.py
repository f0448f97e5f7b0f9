"""Which settings suit Retrace: each varied alone around the defaults, on the same clients.

    python benchmarks/retrace_search.py --data FOLDER --set femnist --examples 10 --epochs 20

FOLDER holds cifar100.npz or femnist.npz. Prints PSNR and seconds for the single-step ceiling (auto
on one gradient of the same images), for SME, and for every setting. Labels are known, and the
client lr is 0.004.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import leakmeter as lm
from leakmeter import papers
from leakmeter.attacks.adam import Adam
from leakmeter.attacks.attack import Attack
from leakmeter.attacks.matched import MatchedAttack
from leakmeter.attacks.retrace import Retrace
from leakmeter.attacks.schedule import CosineDecay, Schedule, StepDecay
from leakmeter.bench import victim
from leakmeter.bench.table import Victim

SCHEDULES: dict[str, Schedule] = {"in steps": StepDecay(), "cosine": CosineDecay()}
NETWORKS = {"cifar100": "cnn-cifar", "femnist": "cnn-femnist"}
BETAS = ((0.9, 0.999), (0.8, 0.99), (0.5, 0.95))
"""Adam's decay rates, for the mean gradient (its momentum) and for the mean square."""
VARIED: dict[str, tuple[Any, ...]] = {
    "lr": (0.2, 0.8),
    "nodes": (1, 2, 5),
    "every": (10, 50),
    "tv": (0.002, 0.03),
    "damping": (0.03, 0.3),
    "relu_curvature": (0.0, 0.02, 0.1),
}


def attacks(iterations: int, adaptive: bool) -> Iterator[tuple[str, MatchedAttack]]:
    """SME, Retrace, and Retrace with one setting changed.

    Damping matters only if clients use Adam; differentiating through the end of the training
    (unrolling) is only possible if they do not.
    """
    yield "sme", papers.sme(iterations)
    usual = papers.retrace(iterations)
    path = usual.trajectory
    assert isinstance(usual.solver, Adam)
    assert isinstance(path, Retrace)
    yield "retrace", usual
    for eighths in (0, 3, 5):
        grown = replace(path, grow=iterations * eighths // 8)
        yield f"all nodes after {eighths}/8", replace(usual, trajectory=grown)
    if not adaptive:
        for name, unroll in {"never": None, "after 3/4": iterations * 3 // 4}.items():
            yield f"unrolled {name}", replace(usual, trajectory=replace(path, unroll=unroll))
        for strides in (4, 16):
            yield f"strides {strides}", replace(usual, trajectory=replace(path, strides=strides))
    for name, decay in SCHEDULES.items():
        yield f"decay {name}", replace(usual, solver=replace(usual.solver, decay=decay))
    for betas in BETAS:
        named = f"momentum {betas[0]:g}, {betas[1]:g}"
        yield named, replace(usual, solver=replace(usual.solver, betas=betas))
    for option, values in VARIED.items():
        for value in values if option != "damping" or adaptive else ():
            yield f"{option} {value:g}", papers.retrace(iterations, **{option: value})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--set", choices=NETWORKS, default="femnist")
    parser.add_argument("--examples", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=300)
    options = parser.parse_args()
    adaptive = options.optimizer != "sgd"
    row = Victim(
        data=options.set,
        model=NETWORKS[options.set],
        examples=options.examples,
        epochs=options.epochs,
        batch_size=options.batch_size,
        settings={"optimizer": "adam", "lr": 3e-5} if adaptive else {},
    )
    clients = [victim.make(row, options.data, number) for number in range(options.clients)]
    single = papers.auto(options.iterations)
    sent = replace(row, shares="gradient", settings={})
    shared = [victim.make(sent, options.data, number) for number in range(options.clients)]
    tried: list[tuple[str, Attack, list[victim.Attacked]]] = [("single step", single, shared)]
    tried += [(name, attack, clients) for name, attack in attacks(options.iterations, adaptive)]
    table = Table("setting", "PSNR [dB]", "seconds")
    for name, attack, victims in tried:
        found = [each_attack(attack, each) for each in victims]
        psnr, seconds = torch.tensor(found, dtype=torch.float64).mean(0).tolist()
        print(f"{name}: {psnr:.2f} dB, {seconds:.0f} s", flush=True)
        table.add_row(name, f"{psnr:.2f}", f"{seconds:.0f}")
    Console().print(table)


def each_attack(attack: Attack, attacked: victim.Attacked) -> tuple[float, float]:
    """(PSNR, seconds) on one client."""
    found = attack.run(attacked.model, attacked.update, labels=attacked.labels)
    return lm.measure.images(found.images, attacked.images).psnr.mean().item(), found.seconds


if __name__ == "__main__":
    main()
