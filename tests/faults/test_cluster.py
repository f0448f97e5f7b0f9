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

def badly(job, progress):
    raise ModuleNotFoundError("No module named 'leakscope'")
"""

LARGE = """
import sys, threading
from ray.cluster_utils import Cluster as Machines
from leakscope.audit.cluster import Cluster
from leakscope.audit.crew import Lost
from leakscope.errors import LeakscopeError
from work import badly, slowly

settings = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
head = {"include_dashboard": False, "memory": 2**30, **settings}
machines = Machines(initialize_head=True, head_node_args=head)
large = machines.add_node(memory=4 * 2**30, **settings)
follow = lambda job, share, match: None
with Cluster(machines.address, 1) as cluster:
    assert cluster.most == 4 * 2**30
    kill = lambda: machines.remove_node(large, allow_graceful=False)
    threading.Timer(4, kill).start()
    both = list(cluster.do(slowly, [100, 101], follow, weigh=lambda job: 3 * 2**30))
    assert all(isinstance(result, Lost) for _, result in both), both
    said = open("said.txt", "w")
    print([result.reason for _, result in both], cluster.most, file=said)
    print(list(cluster.do(slowly, [0], follow, weigh=lambda job: 3 * 2**30)), file=said)
    try:
        list(cluster.do(badly, [0], follow))
    except LeakscopeError as error:
        print(error, file=said)
    said.close()
machines.shutdown()
"""


def test_what_only_a_dead_machine_could_hold_does_not_wait_for_it(
    tmp_path: Path, figures: Counter[str]
) -> None:
    """And what fails outside a trial, as an import does, ends the work instead of being retried."""
    (tmp_path / "work.py").write_text(WORK)
    end = subprocess.run(
        [sys.executable, "-c", LARGE],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    figures["machines killed"] += 1
    assert end.returncode == 0, end.stderr[-3000:]
    lost, done, refused = (tmp_path / "said.txt").read_text().splitlines()
    assert "no machine that is left has the memory for it" in lost
    assert str(2**30) in lost
    assert done == "[(0, 0)]"
    assert refused.startswith("a machine of the cluster cannot run leakscope: ")
    assert "ModuleNotFoundError" in refused
    assert "install the same version" in refused
