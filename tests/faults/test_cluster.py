"""A Ray cluster of two machines on this one, one of which dies."""

from __future__ import annotations

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
