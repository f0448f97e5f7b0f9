"""Work spread over processes that can be stopped at any time and may die one by one."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from threading import Thread
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from leakscope.attack.solver import Progress
from leakscope.audit.memory import available

SECONDS_TO_STOP = 0.6
"""After this a process that does not stop by itself is ended."""

SECONDS_BETWEEN_REPORTS = 0.2

SPARE = 0.9
"""Share of the free memory that work may take."""

J = TypeVar("J")
R = TypeVar("R")

Work = Callable[[J, Progress], R]
Follow = Callable[[J, float, float | None], None]
"""Called with a job, the share of it that is done, and how well it matches, if that is known."""


Weigh = Callable[[J], int]


def nothing(job: object) -> int:
    """Weighs nothing."""
    return 0


@dataclass(frozen=True)
class Lost:
    """Takes the place of a result that will never come.

    Attributes:
        reason: in words.
    """

    reason: str


def usable_memory() -> int:
    """Bytes that work may take here: most of what is free."""
    return int(SPARE * available())


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Crew(Protocol):
    """Those who do the work.

    Attributes:
        processes: how many at a time.
        most: bytes of memory that a job can get at the most.
        share: bytes that each gets where all work at a time.
    """

    processes: int
    most: int
    share: int

    def do(
        self,
        work: Work[J, R],
        jobs: Iterable[J],
        follow: Follow[J],
        *,
        limit: float = math.inf,
        alone: bool = False,
        weigh: Weigh[J] = nothing,
    ) -> Generator[tuple[J, R | Lost], None, None]:
        """Each job and its result, in the order in which they finish.

        Args:
            work: a function that a new process can import.
            jobs: taken one by one as there is room for them; whoever reads the results may add
                more, as long as some are under way.
            follow: follows them.
            limit: seconds without news after which a job is given up, where that is possible.
            alone: whether each needs a process that did and will do nothing else.
            weigh: bytes that a job needs; it waits until they are free.
        """
        ...


class Here:
    """This process, with all its threads."""

    processes = 1

    def __init__(self) -> None:
        self.most = self.share = usable_memory()

    def do(
        self,
        work: Work[J, R],
        jobs: Iterable[J],
        follow: Follow[J],
        *,
        limit: float = math.inf,
        alone: bool = False,
        weigh: Weigh[J] = nothing,
    ) -> Generator[tuple[J, R | Lost], None, None]:
        """Each job and its result; see :class:`Crew`."""
        for job in jobs:
            shown = -math.inf

            def report(done: int, total: int, match: Tensor | None, job: J = job) -> None:
                nonlocal shown
                if time.monotonic() - shown >= SECONDS_BETWEEN_REPORTS:
                    shown = time.monotonic()
                    follow(job, done / total, None if match is None else match.item())

            yield job, work(job, report)


@dataclass(eq=False)
class _Worker:
    process: SpawnProcess
    connection: Connection[Any, Any]
    job: Any = None
    since: float = math.inf  # when it last reported; importing torch does not count


class Pool:
    """Processes of their own, kept from one :meth:`do` to the next.

    Args:
        processes: how many at a time.
        threads: of torch, in each.
    """

    def __init__(self, processes: int, threads: int) -> None:
        self.processes = processes
        self.most = usable_memory()
        self.share = self.most // processes
        self._threads = threads
        self._context = get_context("spawn")
        self._stop = self._context.Event()
        self._busy: list[_Worker] = []
        self._idle: list[_Worker] = []

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
        *,
        limit: float = math.inf,
        alone: bool = False,
        weigh: Weigh[J] = nothing,
    ) -> Generator[tuple[J, R | Lost], None, None]:
        """Each job and its result; see :class:`Crew`."""
        waiting, heavy = iter(jobs), list[J]()
        while True:
            while len(self._busy) < self.processes:
                job = heavy.pop() if heavy else next(waiting, None)
                if job is None:
                    break
                taken = sum(weigh(worker.job) for worker in self._busy)
                if self._busy and taken + weigh(job) > self.most:
                    heavy.append(job)
                    break
                self._assign(work, job, alone)
            if not self._busy:
                return
            wait([worker.connection for worker in self._busy], SECONDS_BETWEEN_REPORTS)
            for worker in list(self._busy):
                news = _news(worker, follow, limit)
                if news is not None:
                    self._busy.remove(worker)
                    if alone or isinstance(news[0], Lost):
                        _end([worker])
                    else:
                        self._idle.append(worker)
                    yield worker.job, news[0]

    def _assign(self, work: Work[J, R], job: J, alone: bool) -> None:
        self._idle = [worker for worker in self._idle if worker.process.is_alive()]
        worker = self._hire() if alone or not self._idle else self._idle.pop()
        worker.job, worker.since = job, math.inf
        self._busy.append(worker)
        with suppress(ConnectionError):  # one that died is noticed when its news is read
            worker.connection.send((work, job))

    def _hire(self) -> _Worker:
        mine, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(theirs, self._stop, self._threads), daemon=True
        )
        process.start()
        theirs.close()
        return _Worker(process, mine)


def _news(worker: _Worker, follow: Follow[Any], limit: float) -> tuple[Any] | None:
    """The result in a tuple once there is one; shares done are handed on."""
    try:
        while worker.connection.poll():
            share, news = worker.connection.recv()
            if share is None:
                return (news,)
            worker.since = time.monotonic()
            follow(worker.job, share, news)
    except (EOFError, OSError):
        return (Lost("its process died, perhaps for want of memory"),)
    if time.monotonic() - worker.since > limit:
        return (Lost(f"gave no sign of life for {limit:.0f} s"),)
    return None


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.connection.close()
    deadline = time.monotonic() + SECONDS_TO_STOP
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def _outlive_nobody() -> None:
    """End this process at once when its parent is gone, however long the current iteration."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _serve(connection: Connection[Any, Any], stop: Event, threads: int) -> None:
    """A worker's life: jobs come in, shares and results go out, until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    Thread(target=_outlive_nobody, daemon=True).start()
    torch.set_num_threads(threads)
    reported = time.monotonic()

    def report(done: int, total: int, match: Tensor | None) -> None:
        nonlocal reported
        if stop.is_set():
            raise KeyboardInterrupt
        if time.monotonic() - reported >= SECONDS_BETWEEN_REPORTS:
            reported = time.monotonic()
            try:
                connection.send((done / total, None if match is None else match.item()))
            except OSError:  # nobody is there any more
                raise KeyboardInterrupt from None

    with suppress(KeyboardInterrupt, EOFError, OSError):
        while True:
            work, job = connection.recv()
            connection.send((0.0, None))
            connection.send((None, work(job, report)))
