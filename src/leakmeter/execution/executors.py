"""Executors: this process, or several that can be stopped at any time and may die."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from threading import Thread
from typing import Any, Protocol, SupportsFloat, TypeVar

import torch

from leakmeter.execution.kept import Pause, Paused, Progress
from leakmeter.execution.memory import available

SECONDS_TO_STOP = 0.6
"""Seconds after which a process that does not stop by itself is terminated."""

SECONDS_BETWEEN_REPORTS = 0.2

SPARE = 0.9
"""Share of the free memory that work may take."""

J = TypeVar("J")
R = TypeVar("R")
T = TypeVar("T")


class Cache:
    """Holds what several jobs of one worker need, made once; it lives as long as the worker."""

    def __init__(self) -> None:
        self._made: dict[Callable[..., Any], OrderedDict[Hashable, Any]] = {}

    def get(self, make: Callable[..., T], *arguments: Hashable, most: int = 2) -> T:
        """Return ``make(self, *arguments)``, or its earlier result.

        Args:
            make: makes the value; its first argument is this cache.
            arguments: everything that the value depends on.
            most: how many results of ``make`` are kept, the most recently used ones.
        """
        made = self._made.setdefault(make, OrderedDict())
        if arguments not in made:
            result = make(self, *arguments)
            made[arguments] = result
            while len(made) > most:
                made.popitem(last=False)
        made.move_to_end(arguments)
        found: T = made[arguments]
        return found


@dataclass(frozen=True)
class Worker:
    """The worker, as the job it is doing sees it.

    Attributes:
        progress: called with the progress of the job.
        paused: called to ask whether the job is to pause.
        cache: results cached by earlier jobs of the same worker.
    """

    progress: Progress = lambda done, total, figure: None
    paused: Paused = lambda: False
    cache: Cache = field(default_factory=Cache)


Work = Callable[[J, Worker], R]
Follow = Callable[[J, float, float | None], None]
"""Called with a job, the share of it that is done, and the figure it shows, if it has one."""

Weigh = Callable[[J], int]


def nothing(job: object) -> int:
    """Return a weight of zero."""
    return 0


@dataclass(frozen=True)
class Lost:
    """Takes the place of a result that will never come.

    Attributes:
        reason: the reason in words.
    """

    reason: str


def usable_memory() -> int:
    """Return the bytes that work may take here: most of what is free."""
    return int(SPARE * available())


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Executor(Protocol):
    """Does jobs.

    Attributes:
        processes: how many processes work at a time.
        most: the most memory that a job can get, in bytes.
        share: bytes that each gets if all work at the same time.
    """

    processes: int
    most: int
    share: int

    def do(
        self,
        work: Work[J, R],
        jobs: Iterable[J],
        follow: Follow[J],
        weigh: Weigh[J] = nothing,
    ) -> Generator[tuple[J, R | Lost], None, None]:
        """Yield each job and its result, in the order in which they finish.

        Args:
            work: a function that a new process can import.
            jobs: taken one by one as there is room for them; whoever reads the results may add
                more, as long as some are still running.
            follow: called with the progress of each job.
            weigh: returns the bytes that a job needs; it waits until they are free.
        """
        ...


class Here:
    """An executor that uses this process, with all its threads.

    Args:
        cache: what has been made in this process before.
    """

    processes = 1

    def __init__(self, cache: Cache | None = None) -> None:
        self.most = self.share = usable_memory()
        self._cache = cache or Cache()

    def do(
        self,
        work: Work[J, R],
        jobs: Iterable[J],
        follow: Follow[J],
        weigh: Weigh[J] = nothing,
    ) -> Generator[tuple[J, R | Lost], None, None]:
        """Each job and its result; see :class:`Executor`."""
        for job in jobs:
            shown = -math.inf

            def report(
                done: int, total: int, figure: SupportsFloat | None = None, job: J = job
            ) -> None:
                nonlocal shown
                if time.monotonic() - shown >= SECONDS_BETWEEN_REPORTS:
                    shown = time.monotonic()
                    follow(job, done / total, None if figure is None else float(figure))

            yield job, work(job, Worker(report, cache=self._cache))


@dataclass(eq=False)
class _Process:
    process: SpawnProcess
    connection: Connection[Any, Any]
    job: Any = None


class Pool:
    """An executor with its own processes, kept from one :meth:`do` to the next.

    Args:
        processes: how many processes work at a time.
        threads: the number of torch threads in each process.
        own_process: whether each job needs a process that did and will do nothing else.
    """

    def __init__(self, processes: int, threads: int, own_process: bool = False) -> None:
        self.processes = processes
        self.most = usable_memory()
        self.share = self.most // processes
        self._threads, self._own_process = threads, own_process
        self._context = get_context("spawn")
        self._stop = self._context.Event()
        self._busy: list[_Process] = []
        self._idle: list[_Process] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        _end(self._busy + self._idle)

    def do(
        self,
        work: Work[J, R],
        jobs: Iterable[J],
        follow: Follow[J],
        weigh: Weigh[J] = nothing,
    ) -> Generator[tuple[J, R | Lost], None, None]:
        """Each job and its result; see :class:`Executor`."""
        waiting, heavy = iter(jobs), list[J]()
        while True:
            while len(self._busy) < self.processes:
                job = heavy.pop() if heavy else next(waiting, None)
                if job is None:
                    break
                taken = sum(weigh(process.job) for process in self._busy)
                if self._busy and taken + weigh(job) > self.most:
                    heavy.append(job)
                    break
                self._assign(work, job)
            if not self._busy:
                return
            wait([process.connection for process in self._busy], SECONDS_BETWEEN_REPORTS)
            for process in list(self._busy):
                news = _news(process, follow)
                if news is not None:
                    self._busy.remove(process)
                    if self._own_process or isinstance(news[0], Lost):
                        _end([process])
                    else:
                        self._idle.append(process)
                    yield process.job, news[0]

    def _assign(self, work: Work[J, R], job: J) -> None:
        self._idle = [process for process in self._idle if process.process.is_alive()]
        process = self._hire() if self._own_process or not self._idle else self._idle.pop()
        process.job = job
        self._busy.append(process)
        with suppress(ConnectionError):  # a dead process is noticed when its messages are read
            process.connection.send((work, job))

    def _hire(self) -> _Process:
        mine, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(theirs, self._stop, self._threads), daemon=True
        )
        process.start()
        theirs.close()
        return _Process(process, mine)


def _news(process: _Process, follow: Follow[Any]) -> tuple[Any] | None:
    """Return the result in a tuple once there is one; pass on the progress."""
    try:
        while process.connection.poll():
            share, news = process.connection.recv()
            if share is None:
                return (news,)
            follow(process.job, share, news)
    except (EOFError, OSError):
        return (Lost("its process died, perhaps for want of memory"),)
    return None


def _end(processes: list[_Process]) -> None:
    for process in processes:
        process.connection.close()
    deadline = time.monotonic() + SECONDS_TO_STOP
    for process in processes:
        process.process.join(max(0.0, deadline - time.monotonic()))
        if process.process.is_alive():
            process.process.kill()
            process.process.join()


def _outlive_nobody() -> None:
    """End this process at once when its parent is gone, even in the middle of an iteration."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _serve(connection: Connection[Any, Any], stop: Event, threads: int) -> None:
    """Run a worker: receive jobs and send progress and results until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    Thread(target=_outlive_nobody, daemon=True).start()
    torch.set_num_threads(threads)
    reported, listened = time.monotonic(), True

    def report(done: int, total: int, figure: SupportsFloat | None = None) -> None:
        nonlocal reported, listened
        if time.monotonic() - reported >= SECONDS_BETWEEN_REPORTS:
            reported = time.monotonic()
            try:
                connection.send((done / total, None if figure is None else float(figure)))
            except OSError:  # nobody is there anymore
                listened = False

    worker = Worker(report, lambda: stop.is_set() or not listened)
    with suppress(Pause, EOFError, OSError):
        while True:
            work, job = connection.recv()
            connection.send((0.0, None))
            connection.send((None, work(job, worker)))
