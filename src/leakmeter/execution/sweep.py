"""Does all missing trials on any executor and loses none."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from leakmeter.errors import StorageError, require
from leakmeter.execution.budget import Cost, ordered, probe
from leakmeter.execution.executors import Cache, Executor, Here, Lost, Pool, cores
from leakmeter.execution.progress import Screen, duration
from leakmeter.execution.ray import RayCluster
from leakmeter.execution.store import Store
from leakmeter.execution.trial import Job, Outcome, Record, Trial, keep_failure, perform

ATTEMPTS = 3
"""How often a trial is tried if its process dies; one that fails by itself is not retried."""

WORTH_SAYING = 2.0
"""Work of at least this many seconds is announced with an estimate."""

PAUSE = 0.5
"""Seconds between two checks on trials that another process is doing."""


@dataclass(frozen=True)
class Resources:
    """How the work is done; the results do not depend on it.

    Attributes:
        processes: how many work at a time; with one, it is this process.
        threads: torch threads in each; by default as many as there are cores for every trial.
        ray: address of a Ray cluster, or ``local``, instead of processes.
        budget: seconds after which no trial is started.
    """

    processes: int = 1
    threads: int | None = None
    ray: str | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        require("processes", self.processes, least=1)
        if self.threads is not None:
            require("threads", self.threads, least=1)


def sweep(
    store: Store,
    trials: Sequence[Trial],
    resources: Resources,
    screen: Screen,
    cache: Cache | None = None,
) -> int:
    """Do those of ``trials`` that the store lacks, and repeat those that are damaged there.

    Args:
        store: where the results go.
        trials: all trials, each once.
        resources: how the work is done.
        screen: shows the progress.
        cache: what was made while the trials were planned, for use in this process.

    Returns:
        How many were done here rather than by another process in the meantime.
    """
    deadline = None if resources.budget is None else time.monotonic() + resources.budget
    missing = _missing(store, trials)
    screen.expect(len(trials), len(trials) - len(missing))
    if not missing:
        return 0
    # This depends on the whole plan, not on what is left of it, because the number of threads
    # changes the last bits. How many cores a cluster's machines have is not known here.
    threads = resources.threads or (1 if resources.ray else max(1, cores() // len(trials)))
    own_process = any(trial.own_process for trial in missing)
    processes = min(len(missing), resources.processes)
    with _executor(resources, threads, processes, own_process, cache) as executor:
        work = _Sweep(store, executor, screen)
        work.begin(trials, missing, deadline)
        left = None if deadline is None else (deadline - time.monotonic()) * executor.processes
        work.finish(left, deadline)
    store.tidy([trial.id for trial in trials])
    return work.done


def _missing(store: Store, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that are missing from the store or damaged there."""
    there = set(store.finished())
    for trial in trials:
        if trial.id in there and not store.sound(trial.id):
            store.quarantine(trial.id)
            there.remove(trial.id)
    return [trial for trial in trials if trial.id not in there]


@contextmanager
def _executor(
    resources: Resources, threads: int, processes: int, own_process: bool, cache: Cache | None
) -> Iterator[Executor]:
    if resources.ray is not None:
        with RayCluster(resources.ray, threads, own_process) as cluster:
            yield cluster
    elif processes == 1 and not own_process:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            yield Here(cache)
        finally:
            torch.set_num_threads(before)
    else:
        with Pool(processes, threads, own_process) as pool:
            yield pool


class _Sweep:
    """The state of the work: what is waiting, what it costs, what has failed how often."""

    def __init__(self, store: Store, executor: Executor, screen: Screen) -> None:
        self.store, self.executor, self.screen = store, executor, screen
        self.queue: deque[Job] = deque()
        self.taken: list[Job] = []
        self.costs: dict[str, Cost] = {}
        self.begun: Counter[str] = Counter()
        self.waiting: dict[str, Trial] = {}
        self.left: Counter[str] = Counter()
        self.done = 0

    def begin(
        self, trials: Sequence[Trial], missing: Sequence[Trial], deadline: float | None
    ) -> None:
        """Find out what trials cost, from finished ones or by starting one of each kind."""
        self.waiting = {trial.id: trial for trial in missing}
        self.left.update(trial.alike for trial in missing)
        kinds: dict[str, Trial] = {}
        for trial in missing:
            kinds.setdefault(trial.alike, trial)
        for trial in trials:
            if (kind := trial.alike) in kinds and trial.id not in self.waiting:
                known = Record.load(self.store, trial.id)
                self.costs[kind] = Cost(known.seconds, known.memory)
                del kinds[kind]
        if len(missing) <= self.executor.processes and deadline is None:
            return  # all start at once
        self.queue.extend(self._job(trial) for trial in kinds.values())
        jobs = self._jobs(deadline)
        for job, result in self.executor.do(probe, jobs, self.screen.follow, self._weight):
            if isinstance(result, Cost):
                self.costs[job.trial.alike] = result
                self.screen.pause(job)
            else:
                self._handle(job, result)
        self.taken.clear()  # they wait with the others, and so does what was not probed in time
        self.queue.clear()

    def finish(self, budget: float | None, deadline: float | None) -> None:
        """Do what is left, the longest first; with a ``budget``, what fits it, by repetition."""
        plan = ordered(list(self.waiting.values()), self.costs, budget)
        if len(plan) < len(self.waiting):
            self.screen.say(f"{len(plan)} of {len(self.waiting)} trials fit the budget")
        self.left = Counter(trial.alike for trial in plan)
        self._announce(plan)
        self.queue.extend(self._job(trial) for trial in plan)
        while self.queue:
            jobs = self._jobs(deadline)
            for job, result in self.executor.do(perform, jobs, self.screen.follow, self._weight):
                self._handle(job, result)
                self._foretell()
            if deadline is not None and time.monotonic() >= deadline:
                return
            if self.taken:
                time.sleep(PAUSE)
            self.queue.extend(self.taken)
            self.taken.clear()

    def _jobs(self, deadline: float | None) -> Iterator[Job]:
        return _Queue(self.queue, deadline)

    def _handle(self, job: Job, result: Outcome | Lost) -> None:
        """Count a job as over, or queue it for another try."""
        trial = job.trial
        if isinstance(result, Lost):
            self.begun[trial.id] += 1
            if self.begun[trial.id] < ATTEMPTS:
                # The machine that is gone may have been the largest.
                memory = None if job.memory is None else min(job.memory, self.executor.most)
                self._again(replace(job, memory=memory))
                return
            result = Outcome("failed", f"{result.reason}, {ATTEMPTS} times")
            keep_failure(self.store, trial, result.error)
        elif result.state == "unwritable":
            raise StorageError(f"{result.error}: fix that and run the same command again")
        elif result.state == "taken":
            self.screen.pause(job)
            self.taken.append(job)
            return
        elif result.state == "short":
            if job.memory is not None and job.memory < self.executor.most:
                self._again(replace(job, memory=self.executor.most))
                return
            result = Outcome("failed", result.error)
            keep_failure(self.store, trial, result.error)
        del self.waiting[trial.id]
        self.left[trial.alike] -= 1
        self.done += result.state == "done"
        if result.state in ("done", "found"):
            self.costs.setdefault(trial.alike, Cost(result.seconds, result.memory))
        self.screen.finish(job, result)

    def _again(self, job: Job) -> None:
        self.screen.pause(job)
        self.queue.append(job)

    def _job(self, trial: Trial) -> Job:
        """Make a job with a fair share of the memory, or more if it is known to need that."""
        cost, memory = self.costs.get(trial.alike), self.executor.share
        if cost is not None:
            memory = max(memory, min(self.executor.most, int(1.25 * cost.memory)))
        return Job(trial, self.store.url, memory=memory)

    def _weight(self, job: Job) -> int:
        """Return the memory that the job is known to need, or all that it may take."""
        cost, share = self.costs.get(job.trial.alike), self.executor.share
        if cost is None or (job.memory is not None and job.memory > share):
            return job.memory or share
        return min(share, cost.memory)

    def _foretell(self) -> None:
        seconds = sum(cost.seconds * self.left[kind] for kind, cost in self.costs.items())
        self.screen.estimate(seconds / self.executor.processes)

    def _announce(self, plan: Sequence[Trial]) -> None:
        """Announce what the work will cost, as far as that is known."""
        known = [self.costs[trial.alike].seconds for trial in plan if trial.alike in self.costs]
        longest = max([sum(known) / self.executor.processes, *known])
        if len(known) == len(plan) and longest > WORTH_SAYING:
            self.screen.say(
                f"{len(plan)} trial{'s' if len(plan) > 1 else ''}, {self.executor.processes} at a "
                f"time: about {duration(longest)}"
            )


class _Queue(Iterator[Job]):
    """Yields waiting jobs, including any that are added later."""

    def __init__(self, jobs: deque[Job], deadline: float | None) -> None:
        self.jobs, self.deadline = jobs, deadline

    def __next__(self) -> Job:
        if not self.jobs or (self.deadline is not None and time.monotonic() >= self.deadline):
            raise StopIteration
        return self.jobs.popleft()
