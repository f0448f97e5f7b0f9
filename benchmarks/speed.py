"""How fast the attacks are, as ratios measured in one run on this machine.

    python benchmarks/speed.py --data FOLDER [iteration] [target] [growth] [processes]

FOLDER holds cifar100.npz. If no parts are named, all four run. Run this on an idle machine.

- iteration: time of an iteration divided by the time of a forward pass, both eager and compiled.
  Counting arithmetic alone, a gradient of a gradient takes 7 with constant weights, and 9 if the
  weights get a gradient, too.
- target: time until the images are as good as SME's final ones, compared with a plain transcription
  of its algorithm 1 with 1,000 iterations. An attack's schedule ends with its last iteration, so
  each attack is run with more and more iterations until it gets there; only the last run counts.
- growth: how the time of an iteration and the memory grow with the number of images and local
  steps.
- processes: clients attacked one after another with all threads, or in parallel with one thread
  each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import leakmeter as lm
from leakmeter import papers
from leakmeter.attacks.compiling import Compiling
from leakmeter.attacks.matched import MatchedAttack
from leakmeter.attacks.retrace import Retrace
from leakmeter.execution.memory import fresh_peak, peak_memory

RECIPES: dict[str, Callable[[int], MatchedAttack]] = {
    "ig": lambda iterations: papers.ig(iterations, lr=1.0, tv=0.005, sign=False),
    "sme": papers.sme,
    "nl_sme": papers.nl_sme,
    "retrace, one place": lambda iterations: papers.retrace(iterations, nodes=1),
    "retrace": papers.retrace,
}
GROWING: dict[str, Callable[[int], MatchedAttack]] = {
    "sme": papers.sme,
    "retrace": lambda iterations: unrolled(iterations, None),
    "retrace, its end": lambda iterations: unrolled(iterations, 0),
}
BUDGETS = (20, 30, 40, 50, 60, 80, 120, 160, 320, 640)


def unrolled(iterations: int, since: int | None) -> MatchedAttack:
    """Retrace with three places throughout, unrolling the end from iteration ``since`` on."""
    return replace(papers.retrace(iterations), trajectory=Retrace(unroll=since))


@dataclass(frozen=True, eq=False)
class Victim:
    """A client and what it sent."""

    model: nn.Module
    update: lm.Update
    images: Tensor
    labels: Tensor


def victim(
    folder: Path, examples: int, epochs: int, batch_size: int, model: str = "cnn-cifar"
) -> Victim:
    """A CIFAR-100 client with the network and step size of the SME paper."""
    data = lm.data.load(f"npz:{folder / 'cifar100.npz'}")
    some = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:examples]
    images, labels = data.images[some], data.labels[some]
    network = lm.models.build(model, classes=data.classes)
    client = lm.Client(
        network,
        images,
        labels,
        epochs=epochs,
        batch_size=batch_size,
        lr=0.004,
        normalize="cifar100",
    )
    return Victim(network, client.train(), images, labels)


def each_iteration(
    attack: MatchedAttack, attacked: Victim, compiling: Compiling = "never", skip: int = 1
) -> list[float]:
    """Seconds for every iteration except the first ones, which allocate or compile."""
    times: list[float] = []
    attack.run(
        attacked.model,
        attacked.update,
        labels=attacked.labels,
        compiling=compiling,
        on_progress=lambda done, total, match: times.append(time.perf_counter()),
    )
    return [later - sooner for sooner, later in pairwise(times)][skip:]


def forward_seconds(attacked: Victim) -> float:
    """Seconds for a forward pass over all of the client's images."""
    took = []
    with torch.no_grad():
        for _ in range(12):
            began = time.perf_counter()
            attacked.model(attacked.images)
            took.append(time.perf_counter() - began)
    return statistics.median(took)


def iteration(folder: Path, screen: Console) -> None:
    """Part one."""
    table = Table("network", "images", "attack", "forward [ms]", "eager", "compiled", "gain")
    for model, examples in (("cnn-cifar", 50), ("cnn-cifar", 10), ("lenet-zhu", 50)):
        attacked = victim(folder, examples, epochs=5, batch_size=10, model=model)
        # All places throughout: if iterations change halfway, no time is typical.
        for name, recipe in {**RECIPES, "retrace": GROWING["retrace"]}.items():
            attack = recipe(16)
            slow = statistics.median(each_iteration(attack, attacked))
            forward = forward_seconds(attacked)
            eager = slow / forward
            fast = statistics.median(each_iteration(attack, attacked, "always", 8)) / forward
            table.add_row(
                model,
                str(examples),
                name,
                f"{1e3 * forward:.1f}",
                f"{eager:.1f}",
                f"{fast:.1f}",
                f"{eager / fast:.2f}",
            )
            screen.log(f"{model} {examples} {name}: {eager:.1f} eager, {fast:.1f} compiled")
    screen.print(table)


def transcription(attacked: Victim, iterations: int = 1000) -> Tensor:
    """A direct transcription of algorithm 1 of the SME paper, with torch's own Adam."""
    protocol = attacked.update.protocol
    assert protocol.normalize is not None
    assert attacked.update.after is not None
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in protocol.normalize)
    names = [name for name, _ in attacked.model.named_parameters()]
    start = [attacked.update.before[name] for name in names]
    end = [attacked.update.after[name] for name in names]
    moved = [a - b for a, b in zip(start, end, strict=True)]
    torch.manual_seed(0)
    x = torch.randn_like(attacked.images).requires_grad_()
    alpha = torch.tensor(0.5, requires_grad=True)
    optimizer = torch.optim.Adam([{"params": [x], "lr": 1.0}, {"params": [alpha], "lr": 1e-3}])
    stages = [iterations * part // 8 for part in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, stages, 0.1)
    for _ in range(iterations):
        optimizer.zero_grad()
        weights = [(1 - alpha) * a + alpha * b for a, b in zip(start, end, strict=True)]
        logits = torch.func.functional_call(
            attacked.model, dict(zip(names, weights, strict=True)), (x,)
        )
        loss = nn.functional.cross_entropy(logits, attacked.labels)
        gradient = torch.autograd.grad(loss, weights, create_graph=True)
        dot = sum((g * m).sum() for g, m in zip(gradient, moved, strict=True))
        size = sum(g.square().sum() for g in gradient).sqrt()  # type: ignore[union-attr]
        length = sum(m.square().sum() for m in moved).sqrt()  # type: ignore[union-attr]
        across = (x[..., 1:] - x[..., :-1]).abs().mean()
        down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
        (1 - dot / (size * length) + 0.005 * (across + down)).backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            x.copy_(torch.maximum(torch.minimum(x, (1 - mean) / std), -mean / std))
            alpha.clamp_(0, 1)
    return (x.detach() * std + mean).clamp(0, 1)


def psnr(found: Tensor, attacked: Victim) -> float:
    return lm.measure.images(found, attacked.images).psnr.mean().item()


def target(folder: Path, screen: Console) -> None:
    """Part two."""
    table = Table("client", "attack", "iterations", "PSNR [dB]", "seconds", "times faster")
    recipes: dict[str, Callable[[int], Any]] = {
        name: RECIPES[name] for name in ("sme", "nl_sme", "retrace, one place", "retrace")
    }
    recipes["auto"] = papers.auto
    for examples, epochs in ((10, 20), (50, 20)):
        attacked = victim(folder, examples, epochs, batch_size=10)
        client = f"N={examples} E={epochs} B=10"
        began = time.perf_counter()
        goal = psnr(transcription(attacked), attacked)
        plain = time.perf_counter() - began
        table.add_row(client, "algorithm 1", "1000", f"{goal:.2f}", f"{plain:.0f}", "1")
        screen.log(f"{client} algorithm 1: {goal:.2f} dB in {plain:.0f} s")
        for name, recipe in recipes.items():
            for iterations in BUDGETS:
                began = time.perf_counter()
                found = recipe(iterations).run(
                    attacked.model, attacked.update, labels=attacked.labels
                )
                took, quality = time.perf_counter() - began, psnr(found.images, attacked)
                screen.log(f"{client} {name} {iterations}: {quality:.2f} dB in {took:.0f} s")
                if quality >= goal - 0.05:
                    break
            reached = quality >= goal - 0.05
            table.add_row(
                client,
                name,
                str(iterations),
                f"{quality:.2f}",
                f"{took:.0f}",
                f"{plain / took:.1f}" if reached else "not reached",
            )
    screen.print(table)


def cost(folder: Path, name: str, examples: int, epochs: int, batch_size: int) -> list[float]:
    """[seconds per iteration, seconds of one-time work, GiB added]; needs its own process."""
    attacked = victim(folder, examples, epochs, batch_size)
    before = fresh_peak()
    attack = GROWING[name](5)
    began = time.perf_counter()
    pauses = each_iteration(attack, attacked)
    whole = time.perf_counter() - began
    memory = (peak_memory() - before) / 2**30
    usual = statistics.median(pauses)
    return [usual, max(0.0, whole - 5 * usual), memory]


def growth(folder: Path, screen: Console) -> None:
    """Part three."""
    table = Table("attack", "N", "T", "iteration [s]", "all else [s]", "memory [GiB]")
    by_examples = [(count, 20, 10) for count in (10, 50, 100, 200)]
    by_steps = [(10, epochs, 10) for epochs in (10, 100, 1000)]
    for name in GROWING:
        for examples, epochs, batch_size in by_examples + by_steps:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                spent = pool.submit(cost, folder, name, examples, epochs, batch_size).result()
            steps = epochs * -(-examples // batch_size)
            table.add_row(name, str(examples), str(steps), *(f"{number:.2f}" for number in spent))
            screen.log(f"{name} N={examples} T={steps}: {spent}")
    screen.print(table)


def alone(folder: Path, threads: int) -> None:
    """Attack one client with ``threads`` threads."""
    torch.set_num_threads(threads)
    attacked = victim(folder, 10, 5, 10)
    papers.sme(60).run(attacked.model, attacked.update, labels=attacked.labels, compiling="never")


def processes(folder: Path, screen: Console) -> None:
    """Part four."""
    cores = torch.get_num_threads()
    context = multiprocessing.get_context("spawn")
    took = {}
    for workers, threads in ((1, cores), (cores, 1)):
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            list(pool.map(alone, [folder] * workers, [threads] * workers))  # starts the workers
            began = time.perf_counter()
            list(pool.map(alone, [folder] * 2 * cores, [threads] * 2 * cores))
            took[workers] = time.perf_counter() - began
    screen.print(
        f"{2 * cores} clients: {took[1]:.1f} s one after another with {cores} threads, "
        f"{took[cores]:.1f} s side by side with one thread each "
        f"({took[1] / took[cores]:.2f} times as fast)"
    )


PARTS = {"iteration": iteration, "target": target, "growth": growth, "processes": processes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=Path, help="folder of cifar100.npz")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all by default")
    options = parser.parse_args()
    screen = Console(width=100)
    for name in options.parts or PARTS:
        screen.rule(name)
        PARTS[name](options.data, screen)


if __name__ == "__main__":
    main()
