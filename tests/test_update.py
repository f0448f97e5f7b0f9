from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import leakmeter as lm
from leakmeter import LeakmeterError, Protocol, Update
from victims import same_bits, tiny, tiny_update

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]


@st.composite
def updates(draw: st.DrawFn) -> Update:
    names = draw(st.lists(st.text("abc.é/ ", min_size=1), min_size=1, max_size=4, unique=True))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)

    def tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return (torch.randn(shape, generator=generator) * 3).to(dtype)

    kinds = {
        name: (
            tuple(draw(st.lists(st.integers(0, 3), max_size=3))),
            draw(st.sampled_from(DTYPES)),
        )
        for name in names
    }
    before = {name: tensor(*kind) for name, kind in kinds.items()}
    sent = {name: tensor(*kind) for name, kind in kinds.items()}
    known: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "epochs": st.integers(1, 100),
                "lr": st.floats(1e-9, 10),
                "optimizer": st.sampled_from(["sgd", "adam", "adamw"]),
                "betas": st.tuples(st.floats(0, 0.99), st.floats(0, 0.999)),
                "batchnorm": st.sampled_from(["eval", "train"]),
                "normalize": st.just(((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))),
                "input_shape": st.just((3, 7, 9)),
            },
        )
    )
    kind = draw(st.sampled_from(["after", "gradient"]))
    return Update(
        before=before,
        num_examples=draw(st.integers(1, 10**9)),
        protocol=Protocol(**known),
        **{kind: sent},
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(update=updates())
def test_round_trip_keeps_every_bit(update: Update, tmp_path: Path) -> None:
    path = tmp_path / "u.safetensors"
    update.save(path)
    loaded = Update.load(path)
    assert same_bits(dict(sorted(update.tensors.items())), dict(sorted(loaded.tensors.items())))
    assert (update.num_examples, update.protocol) == (loaded.num_examples, loaded.protocol)
    assert update.fingerprint() == loaded.fingerprint()
    assert [p.name for p in tmp_path.glob("*u.safetensors*")] == ["u.safetensors"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damaged_files_give_only_our_error(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "u.safetensors"
    tiny_update().save(path)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 5))):
            content[data.draw(st.integers(0, 2000))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with contextlib.suppress(LeakmeterError):
        Update.load(path)


def write_raw(path: Path, tensors: dict[str, Tensor], header: object) -> Path:
    text = header if isinstance(header, str) else json.dumps(header)
    save_file(tensors, path, metadata={"leakmeter.update": text})
    return path


GOOD = {"version": 1, "num_examples": 2, "protocol": {}}
PAIR = {"before/w": torch.zeros(2), "after/w": torch.ones(2)}


@pytest.mark.parametrize(
    ("tensors", "header", "says"),
    [
        (PAIR, GOOD | {"num_examples": 0}, "num_examples is 0"),
        (PAIR, GOOD | {"num_examples": "2"}, "num_examples"),
        (PAIR, GOOD | {"num_examples": True}, "num_examples"),
        (PAIR, GOOD | {"version": 99}, "version 99"),
        (PAIR, "[]", "version"),
        (PAIR, "{", "not JSON"),
        (PAIR, {"version": 1, "num_examples": 2}, "protocol is missing"),
        (PAIR, GOOD | {"protocol": {"lr": -1}}, "protocol.lr"),
        (PAIR, GOOD | {"protocol": {"speed": 1}}, "protocol.speed"),
        (PAIR, GOOD | {"protocol": {"normalize": [[0.5], [0.0]]}}, "positive std"),
        ({"before/w": torch.zeros(2)}, GOOD, "either after"),
        (PAIR | {"gradient/w": torch.ones(2)}, GOOD, "not both"),
        ({"after/w": torch.ones(2)}, GOOD, "before has no tensors"),
        (PAIR | {"before/b": torch.zeros(1)}, GOOD, "1 missing (b)"),
        (PAIR | {"after/b": torch.zeros(1)}, GOOD, "1 unexpected (b)"),
        (PAIR | {"other": torch.zeros(1)}, GOOD, "unexpected tensor 'other'"),
        ({"before/w": torch.zeros(2), "after/w": torch.ones(3)}, GOOD, "after/w has shape (3,)"),
        (PAIR | {"after/w": torch.tensor([1.0, torch.nan])}, GOOD, "after/w contains NaN"),
        (PAIR | {"before/w": torch.tensor([torch.inf, 0])}, GOOD, "before/w contains NaN or Inf"),
        ({"before/w": torch.zeros(2), "gradient/v": torch.ones(2)}, GOOD, "gradient/v"),
    ],
)
def test_bad_content_is_named(
    tensors: dict[str, Tensor], header: object, says: str, tmp_path: Path
) -> None:
    path = write_raw(tmp_path / "u.safetensors", tensors, header)
    with pytest.raises(LeakmeterError) as error:
        Update.load(path)
    assert says in str(error.value)
    assert str(path) in str(error.value)


def test_pickles_are_refused_unopened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    for legacy in (False, True):
        path = tmp_path / f"{legacy}.pt"
        torch.save({"w": Trap()}, path, _use_new_zipfile_serialization=not legacy)
        with pytest.raises(LeakmeterError, match="pickle"):
            Update.load(path)
    assert not (tmp_path / "sprung").exists()


def test_file_problems_are_named(tmp_path: Path) -> None:
    with pytest.raises(LeakmeterError, match=r"no\.safetensors: No such file"):
        Update.load(tmp_path / "no.safetensors")
    with pytest.raises(LeakmeterError, match="cannot write"):
        tiny_update().save(tmp_path / "nowhere" / "u.safetensors")
    save_file({"w": torch.zeros(1)}, tmp_path / "plain.safetensors")
    with pytest.raises(LeakmeterError, match=r"no leakmeter\.update header"):
        Update.load(tmp_path / "plain.safetensors")
    huge = (10**15).to_bytes(8, "little") + b"{}"
    (tmp_path / "huge.safetensors").write_bytes(huge)
    with pytest.raises(LeakmeterError, match="not a whole safetensors file"):
        Update.load(tmp_path / "huge.safetensors")


@pytest.mark.parametrize("size", [2**63, 2**64 - 1])
def test_empty_tensors_that_claim_to_be_endless_are_refused(size: int, tmp_path: Path) -> None:
    header = {"before/w": {"dtype": "F32", "shape": [0, size], "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    path = tmp_path / "endless.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(LeakmeterError, match="not a whole safetensors file"):
        Update.load(path)


def test_update_is_checked_against_the_model() -> None:
    update = tiny_update()
    update.check(tiny())
    with pytest.raises(LeakmeterError, match=r"before/3.weight has shape \(5, 576\)"):
        update.check(tiny(classes=7))
    with pytest.raises(LeakmeterError, match=r"does not match the model: .*missing"):
        update.check(lm.models.build("mlp", classes=5))


def test_unknown_protocol_fields_are_asked_for_by_name() -> None:
    with pytest.raises(LeakmeterError, match=r"protocol.batch_size .*--batch-size"):
        Protocol(epochs=3).steps(10)
    assert Protocol(epochs=3, batch_size=4).steps(10) == 9


def test_observed_has_the_sign_of_a_gradient() -> None:
    model, images = tiny(), torch.rand(4, 1, 12, 12)
    client = lm.Client(model, images, torch.tensor([0, 1, 2, 3]), epochs=1, lr=0.5)
    gradient, trained = client.gradient(), client.train()
    names = [name for name, _ in model.named_parameters()]
    for name in names:
        expected = 0.5 * gradient.observed(names)[name]
        torch.testing.assert_close(trained.observed(names)[name], expected, rtol=1e-3, atol=1e-6)


def test_files_with_the_old_name_are_read(tmp_path: Path) -> None:
    update = tiny_update()
    update.save(tmp_path / "new.safetensors")
    with safe_open(tmp_path / "new.safetensors", framework="pt") as file:
        header = file.metadata()["leakmeter.update"]
    save_file(update.tensors, tmp_path / "old.safetensors", {"leakscope.update": header})
    assert Update.load(tmp_path / "old.safetensors").fingerprint() == update.fingerprint()
