"""Recording clients of NVIDIA FLARE: its own filter chain is run, without its network."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import FilterKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.app_common.app_constant import AppConstants
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType

import leakmeter as lm
from leakmeter.integrations.nvflare import RecordingFilter
from victims import same_bits, tiny_update

UPDATE = tiny_update()


def numbers(state: dict[str, Any] | None) -> dict[str, Any]:
    assert state is not None
    return {name: tensor.numpy() for name, tensor in state.items()}


def task(turn: int | None = 3) -> Shareable:
    sent: Shareable = DXO(DataKind.WEIGHTS, numbers(UPDATE.before)).to_shareable()
    if turn is not None:
        sent.set_header(AppConstants.CURRENT_ROUND, turn)
    return sent


def result(kind: str = DataKind.WEIGHTS, **meta: Any) -> Shareable:
    data = numbers(UPDATE.after)
    if kind == DataKind.WEIGHT_DIFF:
        data = {name: array - UPDATE.before[name].numpy() for name, array in data.items()}
    return DXO(kind, data, meta or {"num_examples": 3}).to_shareable()


def exchange(task: Shareable, result: Shareable, site: str = "site-1", **options: Any) -> Shareable:
    """What a client's runner does with its filters around a task."""
    context = FLContext()
    context.set_prop(ReservedKey.IDENTITY_NAME, site, private=False, sticky=True)
    chain = {"train/in": [RecordingFilter(**options)], "train/out": [RecordingFilter(**options)]}
    apply_filters("task_data_filters", task, context, chain, "train", FilterKey.IN)
    for array in from_shareable(task).data.values():
        array += 1  # an executor may train in place
    return apply_filters("task_result_filters", result, context, chain, "train", FilterKey.OUT)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "UPDATE", tiny_update())


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF], ids=str)
def test_weights_and_differences_are_recorded(kind: str, tmp_path: Path) -> None:
    reply = result(kind)
    untouched = {name: array.copy() for name, array in from_shareable(reply).data.items()}
    passed = exchange(task(), reply, folder=str(tmp_path), protocol={"lr": 0.05, "classes": 5})
    assert passed is reply
    assert all((from_shareable(passed).data[name] == untouched[name]).all() for name in untouched)
    (path,) = tmp_path.glob("*/*")
    assert path.relative_to(tmp_path) == Path("round-0003/client-site-1.safetensors")
    update, honest = lm.Update.load(path), tiny_update()
    assert same_bits(dict(sorted(update.before.items())), dict(sorted(honest.before.items())))
    assert update.after is not None
    assert honest.after is not None
    for name, tensor in honest.after.items():
        torch.testing.assert_close(update.after[name], tensor)
    assert update.num_examples == 3
    assert update.protocol == lm.Protocol(lr=0.05, classes=5)


@pytest.mark.parametrize("options", [{"every": 2}, {"clients": ["site-2"]}], ids=str)
def test_sampling(options: dict[str, Any], tmp_path: Path) -> None:
    exchange(task(), result(), folder=str(tmp_path), **options)
    assert list(tmp_path.iterdir()) == []
    exchange(task(4), result(), "site-2", folder=str(tmp_path), **options)
    assert len(list(tmp_path.glob("*/*"))) == 1


@pytest.mark.parametrize(
    ("turn", "reply", "warnings"),
    [
        (3, make_reply(ReturnCode.EXECUTION_EXCEPTION), 0),
        (None, result(), 0),
        (3, Shareable(), 1),
        (3, result(steps=4), 1),
        (3, DXO(DataKind.METRICS, {"loss": 1.0}).to_shareable(), 1),
    ],
    ids=["failed", "no round", "no weights", "no count", "metrics"],
)
def test_what_cannot_be_recorded_does_not_stop_the_client(
    turn: int | None,
    reply: Shareable,
    warnings: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert exchange(task(turn), reply, folder=str(tmp_path)) is reply
    assert list(tmp_path.iterdir()) == []
    found = [r for r in caplog.records if r.name == "leakmeter" and r.levelno >= logging.WARNING]
    assert len(found) == warnings


def test_a_job_carries_the_settings(tmp_path: Path) -> None:
    recorder = RecordingFilter("/records", every=5, protocol={"input_shape": [3, 32, 32]})
    job = FedJob(name="recorded")
    for kind in (FilterType.TASK_DATA, FilterType.TASK_RESULT):
        job.to(recorder, "site-1", filter_type=kind, tasks=["train"])
    job.export_job(str(tmp_path))
    (path,) = tmp_path.glob("**/config_fed_client*")
    config = json.loads(path.read_text())
    for chain in ("task_data_filters", "task_result_filters"):
        ((only,),) = (entry["filters"] for entry in config[chain])
        module, _, name = only["path"].rpartition(".")
        assert (module, name) == ("leakmeter.integrations.nvflare", "RecordingFilter")
        made = RecordingFilter(**only["args"])
        assert (made.folder, made.every, made.protocol) == ("/records", 5, recorder.protocol)


def test_nvflare_stays_optional() -> None:
    script = """
import sys
sys.modules["nvflare"] = None
try:
    import leakmeter.integrations.nvflare
except ValueError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith("LeakmeterError")
    assert "pip install 'nvflare>=2.9'" in done.stdout
