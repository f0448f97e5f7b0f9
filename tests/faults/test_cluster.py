"""A Ray cluster of two machines on this one, one of which dies."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults import sweeps
from faults.sweeps import done, essence, finished, started, until

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    settings = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 * 2**20}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=settings)
    try:
        cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
        yield cluster
    finally:
        cluster.shutdown()


def test_two_machines_find_the_same_and_one_may_die(
    desk: Path, undisturbed: dict[str, str], two_nodes: Any, figures: Counter[str]
) -> None:
    code, said = finished(desk, "--ray", two_nodes.address)
    assert code == 0, said
    assert essence(desk) == undisturbed

    disturbed = sweeps.desk(desk.parent / "disturbed")
    with started(disturbed, "--ray", two_nodes.address) as audit:
        until(lambda: len(done(disturbed)) >= 3 or audit.poll() is not None)
        time.sleep(0.5)
        (node,) = two_nodes.worker_nodes
        two_nodes.remove_node(node, allow_graceful=False)
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
