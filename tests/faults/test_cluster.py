"""A Ray cluster of two machines on this one, one of which dies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults import sweeps
from faults.sweeps import done, essence, finished, started, until

pytest.importorskip("ray")

CLUSTER = """
import sys
from ray.cluster_utils import Cluster

settings = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **settings})
node = cluster.add_node(**settings)
print(cluster.address, flush=True)
for line in sys.stdin:
    cluster.remove_node(node, allow_graceful=False)
    print("killed", flush=True)
cluster.shutdown()
"""


@pytest.fixture
def two_nodes() -> Iterator[subprocess.Popen[str]]:
    """A process that says the address of a cluster, and kills one of its machines when told."""
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process
        process.communicate(timeout=60)


def test_two_machines_find_the_same_and_one_may_die(
    desk: Path,
    undisturbed: dict[str, str],
    two_nodes: subprocess.Popen[str],
    figures: Counter[str],
) -> None:
    assert two_nodes.stdin is not None
    assert two_nodes.stdout is not None
    address = two_nodes.stdout.readline().strip()
    code, said = finished(desk, "--ray", address)
    assert code == 0, said
    assert essence(desk) == undisturbed

    disturbed = sweeps.desk(desk.parent / "disturbed")
    with started(disturbed, "--ray", address) as audit:
        until(lambda: len(done(disturbed)) >= 3 or audit.poll() is not None)
        time.sleep(0.5)
        two_nodes.stdin.write("kill\n")
        two_nodes.stdin.flush()
        assert two_nodes.stdout.readline() == "killed\n"
        figures["machines killed"] += 1
        _, err = audit.communicate(timeout=300)
    assert audit.returncode == 0, err
    found = essence(disturbed)
    figures["trials checked"] += len(undisturbed)
    figures["trials lost"] += len(undisturbed.keys() - found.keys())
    assert found == undisturbed


def test_no_cluster_at_the_address_is_one_clear_line(desk: Path) -> None:
    code, said = finished(desk, "--ray", "127.0.0.1:9")
    assert code == 2
    assert said.startswith("error: --ray 127.0.0.1:9: no cluster there")


WORK = """
import time

def slowly(job, progress):
    time.sleep(job)
    return job
"""

MACHINES = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
from ray.cluster_utils import Cluster as Machines
from leakmeter.execution.ray import RayCluster
from leakmeter.execution.executors import Lost
from leakmeter.errors import LeakmeterError
from work import slowly

def machine(cores, gibibytes, **more):
    size = {"memory": gibibytes * 2**30, "object_store_memory": 100 * 2**20}
    return {"num_cpus": cores, **size, **more}

def head(cores):
    settings = machine(cores, 1, include_dashboard=False)
    return Machines(initialize_head=True, head_node_args=settings)

def later(seconds, work, *arguments, **more):
    threading.Timer(seconds, work, arguments, more).start()

def do(cluster, *jobs, gibibytes=0):
    weigh = lambda job: gibibytes * 2**30
    return [result for _, result in cluster.do(slowly, jobs, lambda *_: None, weigh=weigh)]
"""
"""Ray writes to the terminal by ways of its own, so what is found goes to a file."""


def on_machines(folder: Path, script: str) -> list[str]:
    """What a script that makes and unmakes machines says, line by line."""
    (folder / "work.py").write_text(WORK)
    end = subprocess.run(
        [sys.executable, "-c", f"{MACHINES}\nsaid = open('said.txt', 'w')\n{script}"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert end.returncode == 0, end.stderr[-3000:]
    return (folder / "said.txt").read_text().splitlines()


LARGE = """
machines = head(1)
large = machines.add_node(**machine(1, 4))
with RayCluster(machines.address, 1) as cluster:
    assert cluster.most == 4 * 2**30
    later(4, machines.remove_node, large, allow_graceful=False)
    both = do(cluster, 100, 101, gibibytes=3)
    assert all(isinstance(result, Lost) for result in both), both
    print([result.reason for result in both], cluster.most, file=said)
    print(do(cluster, 0, gibibytes=3), file=said)
machines.shutdown()
"""


def test_what_only_a_dead_machine_could_hold_does_not_wait_for_it(
    tmp_path: Path, figures: Counter[str]
) -> None:
    lost, done = on_machines(tmp_path, LARGE)
    figures["machines killed"] += 1
    assert "no machine that is left has the memory for it" in lost
    assert str(2**30) in lost
    assert done == "[0]"


LONELY = """
machines = head(0)
only = machines.add_node(**machine(1, 1))
with RayCluster(machines.address, 1) as cluster:
    later(4, machines.remove_node, only, allow_graceful=False)
    lost, = do(cluster, 100)
    print(lost.reason, file=said)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(do, cluster, 0)
        time.sleep(3)
        assert not waiting.done()
        machines.add_node(**machine(1, 1))
        print(waiting.result(), file=said)
machines.shutdown()
"""


def test_work_waits_for_a_new_machine_when_none_is_left(
    tmp_path: Path, figures: Counter[str]
) -> None:
    lost, done = on_machines(tmp_path, LONELY)
    figures["machines killed"] += 1
    assert lost.startswith("its worker was lost: ")
    assert done == "[0]"


BARE = """
machines = head(1)
machines.add_node(**machine(1, 4, env_vars={"PYTHONPATH": "bare"}))
with RayCluster(machines.address, 1) as cluster:
    try:
        print(do(cluster, 0, gibibytes=3), file=said)
    except LeakmeterError as error:
        print(error, file=said)
machines.shutdown()
"""


def test_a_machine_without_leakmeter_is_named_at_once(
    tmp_path: Path, figures: Counter[str]
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "leakmeter.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'leakmeter'\")"
    )
    (said,) = on_machines(tmp_path, BARE.replace('"bare"', repr(str(tmp_path / "bare"))))
    figures["machines without leakmeter"] += 1
    assert said.startswith("a machine of the cluster cannot run leakmeter: ")
    assert "No module named 'leakmeter'" in said
    assert "install the same version" in said
