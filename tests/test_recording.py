"""Recording a training loop of one's own, and updates from two files."""

from __future__ import annotations

import io
import logging
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import leakmeter as lm
from leakmeter import LeakmeterError
from leakmeter.recording import Recorder
from victims import examples, same_bits, tiny, tiny_update

KNOWN: dict[str, Any] = {"epochs": 2, "batch_size": 3, "lr": 0.05, "classes": 5}


def step(model: nn.Module) -> None:
    images, labels = examples()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def test_a_loop_is_recorded_as_a_client_would_send_it(tmp_path: Path) -> None:
    model, path = tiny(), tmp_path / "new" / "u.safetensors"
    with lm.record(model, path, num_examples=3, **KNOWN):
        step(model)
    update = lm.Update.load(path)
    client = lm.Client(tiny(), *examples(), epochs=2, lr=0.05).train()
    assert same_bits(dict(sorted(update.before.items())), dict(sorted(tiny().state_dict().items())))
    assert update.after is not None
    assert client.after is not None
    for name, tensor in client.after.items():
        torch.testing.assert_close(update.after[name], tensor)
    assert update.num_examples == 3
    assert update.protocol == lm.Protocol(**KNOWN)


def test_recording_leaves_the_training_as_it_is(tmp_path: Path) -> None:
    plain, watched = tiny(), tiny()
    step(plain)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with lm.record(watched, tmp_path / "u.safetensors", num_examples=3):
        step(watched)
    assert same_bits(dict(plain.state_dict()), dict(watched.state_dict()))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("inner", ["_module", "_orig_mod", "module"])
def test_a_wrapped_model_is_refused_before_it_is_trained(tmp_path: Path, inner: str) -> None:
    wrapped = nn.Module()
    wrapped.add_module(inner, tiny())
    recording = lm.record(wrapped, tmp_path / "u.safetensors", num_examples=3)
    with pytest.raises(LeakmeterError, match=rf"record model\.{inner}"), recording:
        pytest.fail("the training began")


def test_no_normalization_is_spelt_none(tmp_path: Path) -> None:
    path = tmp_path / "u.safetensors"
    with lm.record(tiny(), path, num_examples=3, input_shape=(1, 12, 12), normalize="none"):
        pass
    assert lm.Update.load(path).protocol.normalize == ((0.0,), (1.0,))
    unsaid = lm.record(tiny(), path, num_examples=3, normalize="none")
    with pytest.raises(LeakmeterError, match="give input_shape"), unsaid:
        pytest.fail("the training began")


def test_a_loop_that_fails_is_not_recorded(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        lm.record(tiny(), tmp_path / "u.safetensors", num_examples=3),
    ):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("trouble", ["disk", "folder", "diverged"])
def test_what_cannot_be_recorded_is_a_warning_and_training_goes_on(
    trouble: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    model, path = tiny(), tmp_path / "u.safetensors"
    if trouble == "disk":
        monkeypatch.setattr(lm.Update, "save", full)
    if trouble == "folder":
        (tmp_path / "file").touch()
        path = tmp_path / "file" / "u.safetensors"
    with lm.record(model, path, num_examples=3):
        if trouble == "diverged":
            with torch.no_grad():
                next(model.parameters()).fill_(torch.nan)
    (record,) = (entry for entry in caplog.records if entry.name == "leakmeter")
    assert record.levelno == logging.WARNING
    says = {"disk": "No space left", "folder": "File exists", "diverged": "NaN or Inf"}
    assert says[trouble] in record.getMessage()
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_examples": 0}, "num_examples is 0"),
        ({"num_examples": 3, "lr": -1}, "lr: "),
        ({"num_examples": 3, "normalize": "photo"}, "did you mean 'photos'"),
        ({"num_examples": 3, "normalise": "photos"}, "normalise: "),
    ],
    ids=str,
)
def test_mistakes_are_told_before_training(
    options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(LeakmeterError, match=says),
        lm.record(tiny(), tmp_path / "u.safetensors", **options),
    ):
        pytest.fail("trained")


def test_a_name_stands_for_the_normalization_of_a_data_set(tmp_path: Path) -> None:
    path = tmp_path / "u.safetensors"
    with lm.record(tiny(), path, num_examples=3, normalize="mnist"):
        pass
    assert lm.Update.load(path).protocol.normalize == lm.data.normalization("mnist")


def test_a_recorder_names_files_by_round_and_client(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, every=2, clients=["site-1"], per_round=1)
    for turn in (1, 2, 2, 4):
        for client in ("site-1", "site-2"):
            recorder.keep(turn, client, tiny_update)
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*"))
    assert found == [f"round-000{turn}/client-site-1.safetensors" for turn in (2, 4)]


def write(state: dict[str, Tensor], path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


@pytest.mark.parametrize("before", [".safetensors", ".pt", ".pth"])
@pytest.mark.parametrize("after", [".safetensors", ".pt"])
def test_an_update_from_two_files(before: str, after: str, tmp_path: Path) -> None:
    update = tiny_update()
    assert update.after is not None
    first = write(update.before, tmp_path / f"before{before}")
    second = write(update.after, tmp_path / f"after{after}")
    made = lm.update_from_files(first, second, num_examples=3, **KNOWN)
    assert made.tensors.keys() == update.tensors.keys()
    assert all(torch.equal(made.tensors[name], update.tensors[name]) for name in update.tensors)
    assert (made.num_examples, made.protocol) == (3, lm.Protocol(**KNOWN))


def test_a_state_dict_of_parameters_and_buffers_is_read(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    torch.save(OrderedDict(model.state_dict(keep_vars=True)), tmp_path / "a.pt")
    made = lm.update_from_files(tmp_path / "a.pt", tmp_path / "a.pt", num_examples=1)
    made.check(model)
    assert not any(tensor.requires_grad for tensor in made.tensors.values())


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("how", ["torch", "old torch", "pickle", "inside"])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_hostile_pickles_are_refused_and_do_nothing(how: str, suffix: str, tmp_path: Path) -> None:
    trap, path = tmp_path / "executed", tmp_path / f"bad{suffix}"
    if how == "pickle":
        path.write_bytes(pickle.dumps(Hostile(trap)))
    elif how == "inside":
        torch.save({"weight": torch.zeros(2), "more": Hostile(trap)}, path)
    else:
        torch.save(Hostile(trap), path, _use_new_zipfile_serialization=how == "torch")
    with pytest.raises(LeakmeterError, match=r"bad\.") as caught:
        lm.update_from_files(path, path, num_examples=1)
    assert "weights_only" not in str(caught.value)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"epoch": 3, "model": {"w": torch.zeros(2)}}, "no state dict"),
        ([torch.zeros(2)], "no state dict"),
        ({"w": torch.zeros(2).to_sparse()}, "no state dict"),
        ({"w": torch.zeros(2, device="meta")}, "no state dict"),
        ({}, "before has no tensors"),
    ],
    ids=str,
)
def test_files_that_hold_something_else(content: object, says: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "odd.pt")
    with pytest.raises(LeakmeterError, match=says):
        lm.update_from_files(tmp_path / "odd.pt", tmp_path / "odd.pt", num_examples=1)


def test_damaged_and_absent_files(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(tiny().state_dict(), buffer)
    path = tmp_path / "cut.pt"
    for length in (0, 10, 1000, len(buffer.getvalue()) - 1):
        path.write_bytes(buffer.getvalue()[:length])
        with pytest.raises(LeakmeterError, match="damaged"):
            lm.update_from_files(path, path, num_examples=1)
    with pytest.raises(LeakmeterError, match="cannot read"):
        lm.update_from_files(tmp_path / "none.pt", path, num_examples=1)
    with pytest.raises(LeakmeterError, match="cannot read"):
        lm.update_from_files(tmp_path, path, num_examples=1)
