"""Spreads work over many machines with Ray."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Any, Self

import torch

from leakmeter.errors import LeakmeterError
from leakmeter.execution.executors import (
    Cache,
    Follow,
    J,
    Lost,
    R,
    Weigh,
    Work,
    Worker,
    nothing,
)

SECONDS_BETWEEN_LOOKS = 0.5

SECONDS_TO_ANSWER = 10.0


class RayCluster:
    """A Ray cluster; every machine must reach the results, and have leakmeter and the data.

    Args:
        address: the cluster's address, such as ``10.0.0.1:6379`` or ``auto``; ``local`` starts a
            cluster here.
        threads: the number of torch threads for each trial.
        own_process: whether each job needs its own process, which Ray cannot guarantee.
    """

    def __init__(self, address: str, threads: int, own_process: bool = False) -> None:
        if own_process:
            raise LeakmeterError(
                "--ray: these trials measure memory, so each needs a process of its own, which a "
                "cluster cannot promise: run them without it"
            )
        try:
            import ray
        except ImportError:
            raise LeakmeterError("--ray needs the package ray: pip install 'ray>=2.40'") from None
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of it
        self._ray: Any = ray
        self._threads = threads
        _check_reachable(address)
        try:
            ray.init(
                address=None if address == "local" else address,
                include_dashboard=False if address == "local" else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise LeakmeterError(f"--ray {address}: no cluster there: {reason}") from None
        try:
            self._count_machines()
        except LeakmeterError:
            ray.shutdown()
            raise

    def _count_machines(self) -> None:
        """Check which machines are alive: some may have died or joined."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        able = [node for node in nodes if node.get("CPU", 0) >= self._threads]
        if not able:
            raise LeakmeterError(f"--threads {self._threads}: no machine there has as many cores")
        places = [int(node["CPU"]) // self._threads for node in able]
        memory = [int(node["memory"]) for node in able]
        self.processes, self.most = sum(places), max(memory)
        self.share = min(size // count for size, count in zip(memory, places, strict=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ray.shutdown()

    def do(
        self,
        work: Work[J, R],
        jobs: Iterable[J],
        follow: Follow[J],
        weigh: Weigh[J] = nothing,
    ) -> Generator[tuple[J, R | Lost], None, None]:
        """Yield each job and its result; see :class:`~leakmeter.execution.executors.Executor`.

        Ray itself finds a machine with a free core and enough memory, and notices lost ones.
        """
        ray = self._ray
        task = ray.remote(num_cpus=self._threads, max_retries=0)(_serve)
        waiting, running = iter(jobs), dict[Any, tuple[J, int]]()
        try:
            while True:
                while len(running) < self.processes and (job := next(waiting, None)) is not None:
                    room = min(weigh(job), self.most)
                    under_way = task.options(memory=room).remote(work, job, self._threads)
                    running[under_way] = job, room
                    follow(job, 0.0, None)
                if not running:
                    return
                finished, _ = ray.wait(list(running), timeout=SECONDS_BETWEEN_LOOKS)
                for done in finished:
                    yield running.pop(done)[0], self._result(done)
                if finished:
                    continue
                with contextlib.suppress(LeakmeterError):  # no machine is there: others may join
                    self._count_machines()
                for stuck in [each for each, (_, room) in running.items() if room > self.most]:
                    ray.cancel(stuck)
                    lost = Lost("no machine that is left has the memory for it")
                    yield running.pop(stuck)[0], lost
        finally:
            for left in running:
                with contextlib.suppress(Exception):  # whatever happens to what nobody waits for
                    ray.cancel(left, force=True)

    def _result(self, done: Any) -> Any:
        try:
            return self._ray.get(done)
        except self._ray.exceptions.RayTaskError as error:  # trials record their own errors
            raise LeakmeterError(
                f"a machine of the cluster cannot run leakmeter: {_last_line(error)}: install the "
                "same version of everything on all of them"
            ) from None
        except self._ray.exceptions.RayError as error:
            return Lost(f"its worker was lost: {type(error).__name__} {_last_line(error)}".strip())


def _last_line(error: Exception) -> str:
    """Return the last line of a traceback, which says what went wrong."""
    return "".join(str(error).strip().splitlines()[-1:])


def _check_reachable(address: str) -> None:
    """Refuse an address that does not answer; Ray itself would keep trying for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return  # a word, such as auto
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise LeakmeterError(f"--ray {address}: no cluster there: {error}") from None


_CACHE = Cache()
"""The cache of a worker process in the cluster, which serves a single audit."""


def _serve(work: Work[J, R], job: J, threads: int) -> R:
    torch.set_num_threads(threads)
    return work(job, Worker(cache=_CACHE))
