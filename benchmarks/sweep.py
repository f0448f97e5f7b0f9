"""Five hundred short trials: are all cores busy, does memory stay, is Ray the same?

    python benchmarks/sweep.py [--trials 500] [--folder out/sweep]

- one: seconds for a trial by itself, in a process that does nothing else, averaged over a few.
- processes: the rate for all trials on all cores, as a share of what a single trial would suggest;
  memory of the process that hands them out, after a tenth of the trials and after all of them.
- ray: the same on a cluster with one simulated machine per core, all on this computer, and whether
  the results are the same, bit for bit.

Run this on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from ray.cluster_utils import Cluster as Machines

from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.audits import Resources, Scenario
from leakmeter.audits.plan import plan
from leakmeter.audits.trials import FOUND
from leakmeter.execution import Trial
from leakmeter.execution.executors import Cache, Worker, cores
from leakmeter.execution.progress import Screen
from leakmeter.execution.store import Store
from leakmeter.execution.sweep import sweep
from leakmeter.execution.trial import Job, Outcome, Record, perform
from leakmeter.state import digest


def scenario(trials: int) -> Scenario:
    """Two attacks and their baselines on one client for each of many networks."""
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


class Memory(Screen):
    """Records how much memory this process holds after every trial [MiB]."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[float] = []

    def finish(self, job: Job, outcome: Outcome) -> None:
        """Also record the memory."""
        super().finish(job, outcome)
        lines = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        self.held.append(int(lines["VmRSS"].split()[0]) / 1024)


def alone(trials: list[Trial], folder: Path) -> float:
    """Seconds for one trial in this process, with one thread."""
    torch.set_num_threads(1)
    took, worker = [], Worker()
    for trial in trials[:24]:
        began = time.perf_counter()
        outcome = perform(Job(trial, str(folder)), worker)
        took.append(time.perf_counter() - began)
        assert outcome.state == "done", outcome
    return statistics.mean(took[4:])


def together(trials: list[Trial], folder: Path, resources: Resources) -> tuple[float, list[float]]:
    """Seconds for all trials, and this process's memory after each."""
    store = Store(folder)
    store.prepare()
    began = time.perf_counter()
    with Memory() as screen:
        assert sweep(store, trials, resources, screen) == len(trials)
    return time.perf_counter() - began, screen.held


def essence(folder: Path) -> dict[str, str]:
    """Everything that was found, for a bit-by-bit comparison."""
    store, all_found = Store(folder), {}
    for trial in store.finished():
        result = json.dumps(Record.load(store, trial).result)
        rebuilt = Reconstruction.load(folder / "trials" / trial / FOUND)
        all_found[trial] = digest({"images": rebuilt.images}, result)
    return all_found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=Path("out/sweep"))
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    began = time.perf_counter()
    wanted = scenario(options.trials)
    trials = plan(wanted, wanted.settings(), Cache()).trials
    print(f"{len(trials)} trials planned in {time.perf_counter() - began:.1f} s")
    one = alone(trials, options.folder / "alone")
    print(f"one by itself: {one:.2f} s")
    ideal = len(trials) * one / cores()
    took, held = together(trials, options.folder / "processes", Resources(processes=cores()))
    early, late = held[len(held) // 10], held[-1]
    print(
        f"{cores()} processes: {took:.0f} s, ideal {ideal:.0f} s: {ideal / took:.0%} of the ideal "
        f"rate; this process holds {early:.0f} MiB after {len(held) // 10} trials, {late:.0f} MiB "
        f"after {len(held)}"
    )
    machines: Any = Machines(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(cores() - 1):
        machines.add_node(num_cpus=1)
    took, _ = together(trials, options.folder / "ray", Resources(ray=machines.address))
    same = essence(options.folder / "ray") == essence(options.folder / "processes")
    print(f"ray: {took:.0f} s: {ideal / took:.0%} of the ideal rate; same bits: {same}")
    machines.shutdown()


if __name__ == "__main__":
    main()
