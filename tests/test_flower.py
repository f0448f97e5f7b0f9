"""Recording Flower runs: under the simulation engine, and in this process."""

from __future__ import annotations

import copy
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    Strategy,
)
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file

import leakmeter as lm
from flower_clients import LoopGrid, network, train
from leakmeter.integrations.flower import FlowerRecorder
from leakmeter.state import State, under
from victims import same_bits

EXAMPLE = Path(__file__).parents[1] / "examples" / "flower"


@pytest.fixture(autouse=True)
def _task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages carry the identity of the run, which Flower's engine otherwise sets."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def client_app(
    train: Callable[[Message, Context], Message] = train, mods: list[Any] | None = None
) -> ClientApp:
    app = ClientApp(mods=mods)
    app.train()(train)
    app.evaluate()(evaluate)
    return app


def evaluate(message: Message, context: Context) -> Message:
    metrics = MetricRecord({"num-examples": 1, "loss": 0.5})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def run(
    grid: Grid,
    strategy: Strategy | None = None,
    rounds: int = 2,
    config: dict[str, Any] | None = None,
) -> State:
    strategy = strategy or FedAvg(fraction_evaluate=0.0, min_train_nodes=3)
    start = ArrayRecord(network().state_dict())
    result = strategy.start(grid, start, num_rounds=rounds, train_config=ConfigRecord(config or {}))
    return dict(result.arrays.to_torch_state_dict())


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strategies ask nodes in the same order every time: sums round the same way."""
    monkeypatch.setattr(
        "flwr.serverapp.strategy.strategy_utils.random.sample", lambda nodes, size: nodes[:size]
    )


def recorded(folder: Path) -> dict[str, lm.Update]:
    return {
        str(path.relative_to(folder).with_suffix("")): lm.Update.load(path)
        for path in sorted(folder.glob("*/*.safetensors"))
    }


def same_update(a: lm.Update, b: lm.Update) -> bool:
    return same_bits(dict(sorted(a.tensors.items())), dict(sorted(b.tensors.items())))


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "leakmeter" and record.levelno >= logging.WARNING
    ]


def test_under_the_simulation_engine_every_way_records_the_same_and_changes_nothing(
    tmp_path: Path,
) -> None:
    here = Path(__file__).parent
    subprocess.run(
        [sys.executable, here / "flower_simulation.py", tmp_path],
        check=True,
        timeout=240,
        env=os.environ | {"PYTHONPATH": str(here), "FLWR_TELEMETRY_ENABLED": "0"},
    )
    models = load_file(tmp_path / "models.safetensors")
    plain = under(models, "plain/")
    assert len(plain) == len(network().state_dict())
    assert same_bits(plain, under(models, "grid/"))
    assert same_bits(plain, under(models, "strategy/"))
    by_grid = recorded(tmp_path / "grid")
    assert len(by_grid) == 4
    assert {name.split("/")[0] for name in by_grid} == {"round-0001", "round-0002"}
    for way in ("strategy", "mod"):
        others = recorded(tmp_path / way)
        assert list(others) == list(by_grid)
        assert all(same_update(by_grid[name], others[name]) for name in by_grid)
    for name, update in by_grid.items():
        assert update.num_examples in (3, 4)
        assert (update.protocol.epochs, update.protocol.lr) == (2, 0.05)
        assert update.after is not None
        assert not torch.equal(update.before["1.0.weight"], update.after["1.0.weight"])
        update.check(network())
        if name.startswith("round-0001"):
            start = network().state_dict()
            assert all(torch.equal(update.before[key], start[key]) for key in start)


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("way", ["grid", "strategy", "mod"])
@pytest.mark.parametrize("strategy", [FedAvg, FedAdam], ids=lambda kind: kind.__name__)
def test_the_global_model_is_the_same_to_the_last_bit(
    way: str, strategy: type[FedAvg], tmp_path: Path
) -> None:
    def make() -> FedAvg:
        return strategy(min_train_nodes=3, weighted_by_key="num-examples")

    plain = run(LoopGrid(client_app()), make())
    recorder = FlowerRecorder(tmp_path)
    if way == "grid":
        found = run(recorder.grid(LoopGrid(client_app())), make())
    elif way == "strategy":
        found = run(LoopGrid(client_app()), recorder.strategy(make()))
    else:
        found = run(LoopGrid(client_app(mods=[recorder.mod])), make())
    assert same_bits(plain, found)
    assert len(recorded(tmp_path)) == 6


def test_records_say_what_was_sent_and_what_came_back(tmp_path: Path) -> None:
    final = run(
        FlowerRecorder(tmp_path, classes=5, lr=0.25).grid(LoopGrid(client_app())),
        rounds=1,
        config={"batch-size": 8, "local_epochs": 2, "lr": 0.05, "optimizer": "lion"},
    )
    updates = recorded(tmp_path)
    assert list(updates) == [f"round-0001/client-{node}" for node in (100, 101, 102)]
    protocol = updates["round-0001/client-100"].protocol
    assert (protocol.batch_size, protocol.epochs, protocol.classes) == (8, 2, 5)
    assert protocol.lr == 0.25, "what the user says counts more than the configuration"
    assert protocol.optimizer is None, "what leakmeter does not know stays unknown"
    assert [update.num_examples for update in updates.values()] == [3, 4, 5]
    biases = [update.after["1.3.bias"] for update in updates.values() if update.after is not None]
    mean = (3 * biases[0] + 4 * biases[1] + 5 * biases[2]) / 12
    torch.testing.assert_close(final["1.3.bias"], mean)


def ask(node: int, turn: int | None = None, kind: str = MessageType.TRAIN) -> Message:
    config = ConfigRecord({} if turn is None else {"server-round": turn, "lr": 0.5})
    content = RecordDict({"arrays": ArrayRecord(network().state_dict()), "config": config})
    return Message(content, node, kind)


def test_pushed_messages_are_paired_with_the_replies_that_are_pulled_later(tmp_path: Path) -> None:
    grid = FlowerRecorder(tmp_path).grid(LoopGrid(client_app()))
    first = list(grid.push_messages(ask(node, 1) for node in (100, 101)))
    evaluation = list(grid.push_messages([ask(102, 1, MessageType.EVALUATE)]))
    second = list(grid.push_messages([ask(100, 2)]))
    assert recorded(tmp_path) == {}
    assert [reply.metadata.src_node_id for reply in grid.pull_messages(second)] == [100]
    assert list(recorded(tmp_path)) == ["round-0002/client-100"]
    assert len(list(grid.pull_messages([*evaluation, *first]))) == 3
    assert list(recorded(tmp_path)) == [
        "round-0001/client-100",
        "round-0001/client-101",
        "round-0002/client-100",
    ]
    assert list(grid.pull_messages(first)) == []


def test_rounds_are_counted_where_nobody_numbers_them(tmp_path: Path) -> None:
    app = client_app()
    app.train("with_care")(train)
    grid = FlowerRecorder(tmp_path).grid(LoopGrid(app))
    for node in (100, 101, 100):
        grid.send_and_receive([ask(node)])
    custom = ask(102, kind="train.with_care")
    custom.metadata.group_id = "7"
    grid.send_and_receive([custom])
    assert list(recorded(tmp_path)) == [
        "round-0001/client-100",
        "round-0001/client-101",
        "round-0002/client-100",
        "round-0007/client-102",
    ]


def test_requests_are_recorded_as_they_were_when_they_were_sent(tmp_path: Path) -> None:
    grid = FlowerRecorder(tmp_path).grid(LoopGrid(client_app()))
    message = ask(100, 1)
    sent = grid.push_messages([message])
    message.content.config_records["config"]["lr"] = 0.125
    message.content.array_records["arrays"].clear()
    grid.pull_messages(sent)
    update = recorded(tmp_path)["round-0001/client-100"]
    assert update.protocol.lr == 0.5
    assert torch.equal(update.before["1.0.weight"], network().state_dict()["1.0.weight"])


def test_requests_that_have_expired_are_forgotten(tmp_path: Path) -> None:
    grid = FlowerRecorder(tmp_path).grid(LoopGrid(client_app()))
    late = ask(100, 1)
    sent = list(grid.push_messages([late]))
    late.metadata.created_at = 0.0
    sent += grid.push_messages([ask(101, 1)])
    assert len(list(grid.pull_messages(sent))) == 2
    assert list(recorded(tmp_path)) == ["round-0001/client-101"]


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize(
    ("sampling", "names"),
    [
        ({"every": 2}, [(turn, node) for turn in (2, 4) for node in (100, 101, 102)]),
        ({"clients": [101]}, [(turn, 101) for turn in (1, 2, 3, 4)]),
        ({"per_round": 1}, [(turn, 100) for turn in (1, 2, 3, 4)]),
        ({"every": 3, "clients": [101, 102], "per_round": 1}, [(3, 101)]),
    ],
    ids=str,
)
def test_sampling(sampling: dict[str, Any], names: list[tuple[int, int]], tmp_path: Path) -> None:
    run(FlowerRecorder(tmp_path, **sampling).grid(LoopGrid(client_app())), rounds=4)
    assert list(recorded(tmp_path)) == [f"round-{turn:04}/client-{node}" for turn, node in names]


@pytest.mark.usefixtures("in_order")
def test_a_full_disk_is_one_warning_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = run(LoopGrid(client_app()))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lm.Update, "save", full)
    assert same_bits(plain, run(FlowerRecorder(tmp_path).grid(LoopGrid(client_app()))))
    assert len(warned(caplog)) == 1
    assert "No space left on device" in warned(caplog)[0]


def test_a_folder_that_cannot_be_made_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    run(FlowerRecorder(tmp_path / "file").grid(LoopGrid(client_app())))
    assert len(warned(caplog)) == 1
    assert "round 1, client 10" in warned(caplog)[0]


def answer(**records: Any) -> Callable[[Message, Context], Message]:
    """A client whose node 100 answers with ``records`` in place of its own."""

    def odd(message: Message, context: Context) -> Message:
        reply = train(message, context)
        if context.node_id == 100:
            for name, record in records.items():
                if record is None:
                    del reply.content[name]
                else:
                    reply.content[name] = record
        return reply

    return odd


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ({"arrays": None}, "0 records of arrays"),
        ({"arrays": ArrayRecord()}, "arrays came without names"),
        ({"arrays": ArrayRecord([np.zeros(2)])}, "names=list(model.state_dict())"),
        ({"arrays": ArrayRecord({"w": Array(np.zeros(2))})}, "after does not match before"),
        ({"arrays": ArrayRecord({"w": Array("f", (1,), "odd", b"x")})}, "odd"),
        ({"metrics": None}, "num-examples = None"),
        ({"metrics": MetricRecord({"num-examples": 0})}, "num_examples is 0"),
        ({"metrics": MetricRecord({"num-examples": 2.5})}, "num-examples = 2.5"),
        ({"metrics": MetricRecord({"num-examples": float("nan")})}, "NaN"),
        ({"metrics": MetricRecord({"num-examples": [1, 2]})}, "num-examples = [1, 2]"),
    ],
    ids=str,
)
def test_a_reply_that_makes_no_sense_is_one_warning_and_the_others_are_kept(
    records: dict[str, Any], says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = FlowerRecorder(tmp_path).grid(LoopGrid(client_app(answer(**records))))
    for turn in (1, 2):
        messages = [ask(node, turn) for node in (100, 101)]
        assert len(list(grid.send_and_receive(messages))) == 2
    assert len(warned(caplog)) == 1
    assert says.lower() in warned(caplog)[0].lower()
    assert list(recorded(tmp_path)) == ["round-0001/client-101", "round-0002/client-101"]


def test_a_request_without_weights_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = client_app(lambda message, context: Message(message.content, reply_to=message))
    grid = FlowerRecorder(tmp_path).grid(LoopGrid(app))
    for _ in range(2):
        message = Message(RecordDict({"key": ConfigRecord({"a": 1})}), 100, MessageType.TRAIN)
        assert len(list(grid.send_and_receive([message]))) == 1
    assert len(warned(caplog)) == 1


def test_clients_that_fail_are_left_out_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(message: Message, context: Context) -> Message:
        if context.node_id == 100:
            raise RuntimeError("out of memory")
        return train(message, context)

    run(FlowerRecorder(tmp_path, per_round=2).grid(LoopGrid(client_app(fails))), rounds=1)
    assert list(recorded(tmp_path)) == ["round-0001/client-101", "round-0001/client-102"]
    assert warned(caplog) == []


@pytest.mark.parametrize("kind", ["half", "double"])
def test_weights_sent_in_another_precision(kind: str, tmp_path: Path) -> None:
    def other(message: Message, context: Context) -> Message:
        reply = train(message, context)
        state = reply.content.array_records["arrays"].to_torch_state_dict()
        reply.content["arrays"] = ArrayRecord(
            {
                name: Array((getattr(t, kind)() if t.is_floating_point() else t).numpy())
                for name, t in state.items()
            }
        )
        return reply

    FlowerRecorder(tmp_path).grid(LoopGrid(client_app(other))).send_and_receive([ask(100)])
    update = recorded(tmp_path)["round-0001/client-100"]
    assert update.before["1.0.weight"].dtype == {
        "half": torch.float32,
        "double": torch.float64,
    }.get(kind)


class Legacy(NumPyClient):
    def __init__(self, place: int) -> None:
        self.place = place

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict]:  # type: ignore[type-arg]
        return [array + 1 for array in parameters], 3 + self.place, {}


def test_legacy_lists_get_the_names_of_the_model(tmp_path: Path) -> None:
    def serve(folder: Path, **options: Any) -> None:
        app = ClientApp(
            lambda context: Legacy(int(context.node_config["partition-id"])).to_client()
        )
        arrays = [tensor.numpy() for tensor in network().state_dict().values()]
        strategy = LegacyFedAvg(
            fraction_evaluate=0.0,
            initial_parameters=ndarrays_to_parameters(arrays),
            on_fit_config_fn=lambda turn: {"local_epochs": turn, "batch_size": 16},
        )
        context = LegacyContext(
            Context(1, 0, {}, RecordDict(), {}), ServerConfig(num_rounds=2), strategy
        )
        DefaultWorkflow()(FlowerRecorder(folder, **options).grid(LoopGrid(app, 2)), context)

    serve(tmp_path / "named", names=list(network().state_dict()))
    updates = recorded(tmp_path / "named")
    assert list(updates) == [
        f"round-000{turn}/client-{node}" for turn in (1, 2) for node in (100, 101)
    ]
    last = updates["round-0002/client-101"]
    assert last.num_examples == 4
    assert (last.protocol.epochs, last.protocol.batch_size) == (2, 16)
    last.check(network())
    first = updates["round-0001/client-100"]
    start = network().state_dict()
    assert first.after is not None
    assert all(torch.equal(first.after[name], start[name] + 1) for name in start)
    serve(tmp_path / "nameless")
    assert recorded(tmp_path / "nameless") == {}


def distance(update: lm.Update) -> float:
    names = [name for name, tensor in update.before.items() if tensor.is_floating_point()]
    return float(torch.cat([u.flatten() for u in update.observed(names).values()]).norm())


def test_the_place_of_the_mod_decides_whether_the_raw_update_is_seen(tmp_path: Path) -> None:
    raw, protected, arrived = (FlowerRecorder(tmp_path / name) for name in ("raw", "dp", "grid"))
    noise = LocalDpMod(clipping_norm=1e-3, sensitivity=1e-3, epsilon=1.0, delta=1e-5)
    app = client_app(mods=[protected.mod, noise, raw.mod])
    run(arrived.grid(LoopGrid(app)), rounds=1)
    honest = FlowerRecorder(tmp_path / "honest")
    run(honest.grid(LoopGrid(client_app())), rounds=1)
    for name, update in recorded(tmp_path / "honest").items():
        assert same_update(update, recorded(tmp_path / "raw")[name])
        assert not same_update(update, recorded(tmp_path / "dp")[name])
        assert same_update(recorded(tmp_path / "dp")[name], recorded(tmp_path / "grid")[name])


def test_clipping_on_either_side_is_seen_from_outside_only(tmp_path: Path) -> None:
    clip = 1e-3
    raw, clipped = FlowerRecorder(tmp_path / "raw"), FlowerRecorder(tmp_path / "clipped")
    app = client_app(mods=[clipped.mod, fixedclipping_mod, raw.mod])
    average = FedAvg(fraction_evaluate=0.0, min_train_nodes=3)
    private = DifferentialPrivacyClientSideFixedClipping(average, 0.0, clip, 3)
    run(LoopGrid(app), private, rounds=1)
    inner, outer = FlowerRecorder(tmp_path / "inner"), FlowerRecorder(tmp_path / "outer")
    server = DifferentialPrivacyServerSideFixedClipping(inner.strategy(average), 0.0, clip, 3)
    run(LoopGrid(client_app()), outer.strategy(server), rounds=1)
    for seen in ("raw", "outer"):
        sizes = [distance(update) for update in recorded(tmp_path / seen).values()]
        assert len(sizes) == 3
        assert all(size > 10 * clip for size in sizes)
    for seen in ("clipped", "inner"):
        sizes = [distance(update) for update in recorded(tmp_path / seen).values()]
        assert len(sizes) == 3
        assert all(0 < size <= 1.01 * clip for size in sizes)


def test_a_strategy_with_a_start_of_its_own_is_refused(tmp_path: Path) -> None:
    class Own(FedAvg):
        def start(self, *args: Any, **options: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(lm.LeakmeterError, match="record the grid instead"):
        FlowerRecorder(tmp_path).strategy(Own())


def test_wrappers_pass_on_what_they_do_not_know(tmp_path: Path) -> None:
    recorder = FlowerRecorder(tmp_path)
    strategy = recorder.strategy(FedAvg(weighted_by_key="size"))
    assert strategy.weighted_by_key == "size"  # type: ignore[attr-defined]
    assert copy.copy(strategy).weighted_by_key == "size"  # type: ignore[attr-defined]
    grid = recorder.grid(LoopGrid(client_app()))
    assert isinstance(grid, Grid)
    assert grid.nodes == {100: 0, 101: 1, 102: 2}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"every": 0}, "every is 0"),
        ({"per_round": 0}, "per_round is 0"),
        ({"lr": -1}, "lr: "),
        ({"speed": 1}, "speed: "),
        ({"normalize": "photo"}, "did you mean 'photos'"),
    ],
    ids=str,
)
def test_mistakes_are_told_before_the_run(options: dict[str, Any], says: str) -> None:
    with pytest.raises(lm.LeakmeterError, match=says):
        FlowerRecorder("unused", **options)


@pytest.fixture
def photos_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)


@pytest.mark.usefixtures("photos_app")
def test_photographs_are_read_out_of_what_the_example_recorded(tmp_path: Path) -> None:
    from photos_app import client_app, server_app, task  # type: ignore[import-not-found]

    config: dict[str, bool | float | int | str] = {
        "num-server-rounds": 1,
        "local-epochs": 5,
        "batch-size": 4,
        "learning-rate": 0.004,
        "recorded": str(tmp_path),
    }
    grid = LoopGrid(client_app.app, nodes=2)
    server_app.main(grid, Context(1, 0, {}, RecordDict(), config))
    update = recorded(tmp_path)["round-0001/client-100"]
    images, labels = task.load(0)
    found = lm.papers.sme(iterations=200).run(task.Net(), update)
    assert sorted(found.labels.tolist()) == sorted(labels.tolist())
    assert lm.measure.images(found.images, images).psnr.min() > 18


def test_flower_stays_optional() -> None:
    script = """
import sys
sys.modules["flwr"] = None
import leakmeter as lm
for name in lm.__all__:
    getattr(lm, name)
try:
    import leakmeter.integrations.flower
except lm.LeakmeterError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert "pip install 'flwr[simulation]>=1.41'" in done.stdout
