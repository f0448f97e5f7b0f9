"""Five hundred short trials: are all cores busy, does memory stay, is Ray the same?

    python benchmarks/sweep.py [--trials 500] [--folder out/sweep]

- one: seconds of a trial by itself, in a process that does nothing else, mean of some.
- processes: all trials on all cores, as a share of the rate that one trial promises; memory of the
  process that hands them out after a tenth of them and after all.
- ray: the same on a cluster of as many machines as there are cores, all of them this one, and
  whether it found the same, bit for bit.

Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from ray.cluster_utils import Cluster as Machines

from leakscope.audit import Means, Scenario
from leakscope.audit.collect import found
from leakscope.audit.crew import cores
from leakscope.audit.plan import distinct, plan
from leakscope.audit.progress import Board
from leakscope.audit.store import Store
from leakscope.audit.sweep import sweep
from leakscope.audit.trial import Job, Outcome, Trial, load_result, perform
from leakscope.state import digest


def scenario(trials: int) -> Scenario:
    """Two attacks and their baselines on a client of each of many networks."""
    attacks = [{"name": name, "options": {"iterations": 60}} for name in ("sme", "ig")]
    return Scenario.model_validate(
        {
            "model": {"name": "lenet-zhu"},
            "data": {"source": "photos", "size": 32},
            "client": {"examples": 4, "epochs": 2},
            "attacks": attacks,
            "vary": {"model.seed": list(range(trials // 4))},
        }
    )


class Memory(Board):
    """Notes what this process holds after every trial [MiB]."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[float] = []

    def finish(self, job: Job, outcome: Outcome) -> None:
        """Also note the memory."""
        super().finish(job, outcome)
        lines = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        self.held.append(int(lines["VmRSS"].split()[0]) / 1024)


def alone(trials: list[Trial], folder: Path) -> float:
    """Seconds of one trial, in this process with one thread."""
    torch.set_num_threads(1)
    took = []
    for trial in trials[:24]:
        began = time.perf_counter()
        outcome = perform(Job(trial, str(folder)), lambda done, total, match: None)
        took.append(time.perf_counter() - began)
        assert outcome.state == "done", outcome
    return statistics.mean(took[4:])


def together(trials: list[Trial], folder: Path, means: Means) -> tuple[float, list[float]]:
    """Seconds of all trials, and memory of this process after each."""
    store = Store(folder)
    store.prepare()
    began = time.perf_counter()
    with Memory() as board:
        assert sweep(store, trials, means, board) == len(trials)
    return time.perf_counter() - began, board.held


def essence(folder: Path) -> dict[str, str]:
    """Everything that was found, bit by bit."""
    store, all_found = Store(folder), {}
    for trial in store.finished():
        scores = load_result(store, trial).scores
        assert scores is not None
        rebuilt = found(store, trial)
        all_found[trial] = digest({"images": rebuilt.images}, scores.model_dump_json())
    return all_found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=Path("out/sweep"))
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    began = time.perf_counter()
    trials = distinct(plan(scenario(options.trials).settings()))
    print(f"{len(trials)} trials planned in {time.perf_counter() - began:.1f} s")
    one = alone(trials, options.folder / "alone")
    print(f"one by itself: {one:.2f} s")
    ideal = len(trials) * one / cores()
    took, held = together(trials, options.folder / "processes", Means(processes=cores()))
    early, late = held[len(held) // 10], held[-1]
    print(
        f"{cores()} processes: {took:.0f} s, ideal {ideal:.0f} s: {ideal / took:.0%} of the ideal "
        f"rate; this process holds {early:.0f} MiB after {len(held) // 10} trials, {late:.0f} MiB "
        f"after {len(held)}"
    )
    machines: Any = Machines(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(cores() - 1):
        machines.add_node(num_cpus=1)
    took, _ = together(trials, options.folder / "ray", Means(ray=machines.address))
    same = essence(options.folder / "ray") == essence(options.folder / "processes")
    print(f"ray: {took:.0f} s: {ideal / took:.0%} of the ideal rate; same bits: {same}")
    machines.shutdown()


if __name__ == "__main__":
    main()
