"""The standard sets, from tiny files in their real formats: idx, CIFAR pickles, LEAF json."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from leakmeter import data
from leakmeter.errors import LeakmeterError

RNG = np.random.default_rng(0)


def pixels(*shape: int) -> NDArray[np.uint8]:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def as_bytes(images: torch.Tensor) -> NDArray[np.uint8]:
    assert images.dtype == torch.float32
    values: NDArray[np.uint8] = (images * 255).round().byte().numpy()
    return values


# idx


def idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, images: NDArray[np.uint8], labels: list[int]) -> None:
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(np.array(labels, np.uint8)))


@pytest.mark.parametrize(
    ("kind", "names"), [("mnist", ("0", "9")), ("fashion-mnist", ("T-shirt/top", "Ankle boot"))]
)
@pytest.mark.parametrize("zipped", [False, True])
def test_idx_round_trip(tmp_path: Path, kind: str, names: tuple[str, str], zipped: bool) -> None:
    images = pixels(3, 28, 28)
    write_idx(tmp_path, images, [9, 0, 4])
    if zipped:
        for file in list(tmp_path.iterdir()):
            file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
    loaded = data.load(f"{kind}:{tmp_path}")
    assert np.array_equal(as_bytes(loaded.images), images[:, None])
    assert loaded.labels.tolist() == [9, 0, 4]
    assert (loaded.name, loaded.classes, loaded.shape) == (kind, 10, (1, 28, 28))
    assert (loaded.class_names[0], loaded.class_names[-1]) == names
    assert loaded.normalization == data.normalization(kind)
    assert data.load(f"{kind}:{tmp_path}", size=16).shape == (1, 16, 16)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("images-idx3", idx(pixels(3)), "magic number is 0x00000801, not 0x00000803"),
        ("labels-idx1", idx(pixels(2, 2, 2)), "magic number is 0x00000803, not 0x00000801"),
        ("images-idx3", idx(pixels(2, 4, 4))[:-1], "holds 31 values, .* announces 32"),
        ("images-idx3", idx(pixels(2, 4, 4)) + b"x", "holds more values, .* announces 32"),
        ("images-idx3", struct.pack(">4I", 0x803, *[2**32 - 1] * 3), "holds 0 values"),
        ("images-idx3", idx(pixels(0, 4, 4)), "is empty"),
        ("images-idx3", b"\x00\x00", "not a readable idx file"),
        ("labels-idx1", idx(np.array([1], np.uint8)), "'labels' has 1 entries for 2 images"),
        (
            "labels-idx1",
            idx(np.array([1, 10], np.uint8)),
            "'labels' must be in 0 .. 9, not 1 .. 10",
        ),
    ],
)
def test_idx_errors(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    write_idx(tmp_path, pixels(2, 4, 4), [0, 1])
    (tmp_path / f"train-{file}-ubyte").write_bytes(content)
    with pytest.raises(LeakmeterError, match=f"train-{file}-ubyte: {message}"):
        data.load(f"mnist:{tmp_path}")


def test_idx_truncated_gzip(tmp_path: Path) -> None:
    write_idx(tmp_path, pixels(2, 4, 4), [0, 1])
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.with_name(labels.name + ".gz").write_bytes(gzip.compress(labels.read_bytes())[:-5])
    labels.unlink()
    with pytest.raises(LeakmeterError, match=r"ubyte.gz: not a readable idx file"):
        data.load(f"mnist:{tmp_path}")


# CIFAR


class Python2Pickler(pickle._Pickler):
    """Writes strings and bytes as Python 2's `str`, like the program that made CIFAR's files."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def save_string(self, value: str | bytes) -> None:
        raw = value.encode() if isinstance(value, str) else value
        short = len(raw) < 256
        head = b"U" + bytes([len(raw)]) if short else b"T" + struct.pack("<i", len(raw))
        self.write(head + raw)  # type: ignore[attr-defined]
        self.memoize(value)  # type: ignore[attr-defined]

    dispatch[str] = dispatch[bytes] = save_string


def python2_pickle(value: object) -> bytes:
    buffer = BytesIO()
    Python2Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue().replace(b"cnumpy._core.", b"cnumpy.core.")


def python3_pickle(value: object) -> bytes:
    return pickle.dumps(value, protocol=4)


def batch(images: NDArray[np.uint8], **labels: list[int]) -> dict[bytes, object]:
    return {
        b"batch_label": b"training batch 1 of 5",
        b"data": images,
        b"filenames": [b"a.png"] * len(images),
        **{key.encode(): values for key, values in labels.items()},
    }


def write_cifar10(folder: Path, dump: Callable[[object], bytes]) -> NDArray[np.uint8]:
    rows = pixels(10, 3072)
    for i in range(5):
        content = batch(rows[2 * i : 2 * i + 2], labels=[i, 9 - i])
        (folder / f"data_batch_{i + 1}").write_bytes(dump(content))
    names = [f"class {i}".encode() for i in range(10)]
    meta = {b"num_cases_per_batch": 2, b"label_names": names, b"num_vis": 3072}
    (folder / "batches.meta").write_bytes(dump(meta))
    return rows


@pytest.mark.parametrize("dump", [python2_pickle, python3_pickle])
def test_cifar10_round_trip(tmp_path: Path, dump: Callable[[object], bytes]) -> None:
    rows = write_cifar10(tmp_path, dump)
    loaded = data.load(f"cifar10:{tmp_path}")
    assert np.array_equal(as_bytes(loaded.images), rows.reshape(10, 3, 32, 32))
    assert loaded.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert (loaded.name, loaded.classes, loaded.class_names[3]) == ("cifar10", 10, "class 3")
    assert loaded.normalization == data.normalization("cifar10")


@pytest.mark.parametrize("order", ["C", "F"])
def test_cifar100_round_trip(tmp_path: Path, order: Any) -> None:
    rows = np.asarray(pixels(4, 3072), order=order)
    content = batch(rows, fine_labels=[99, 0, 5, 7], coarse_labels=[1, 2, 3, 4])
    (tmp_path / "train").write_bytes(python2_pickle(content))
    fine, coarse = (
        [f"{kind}{i}".encode() for i in range(n)] for kind, n in (("f", 100), ("c", 20))
    )
    meta = {b"fine_label_names": fine, b"coarse_label_names": coarse}
    (tmp_path / "meta").write_bytes(python2_pickle(meta))
    loaded = data.load(f"cifar100:{tmp_path}")
    assert np.array_equal(as_bytes(loaded.images), rows.reshape(4, 3, 32, 32))
    assert loaded.labels.tolist() == [99, 0, 5, 7]
    assert (loaded.classes, loaded.class_names[99]) == (100, "f99")


ROWS = pixels(2, 3072)
RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (batch(ROWS), "field 'labels' is missing"),
        ({b"labels": [0, 1]}, "field 'data' is missing"),
        (batch(ROWS, labels=[0]), "'labels' has 1 entries for 2 images"),
        (batch(ROWS, labels=[0, 10]), "'labels' must be in 0 .. 9, not 0 .. 10"),
        (batch(ROWS, labels=RECURSIVE), "'labels' must be a list of integers"),
        (batch(ROWS, labels=[0, 10**30]), "'labels' must be"),
        (batch(ROWS[:, 1:], labels=[0, 1]), "'data' must be an array of bytes with 3072 columns"),
        (batch(ROWS.astype(np.int8), labels=[0, 1]), "'data' must be an array of bytes"),
        (batch(ROWS[:0], labels=[]), r"'data' announces shape \(0, 3072\)"),
        ({b"data": [1, 2], b"labels": [0, 1]}, "'data' must be an array"),
        ([1, 2], "not a CIFAR file"),
        ({b"data": np.array}, "refused: it asks for numpy.*array"),
    ],
)
def test_cifar_errors(tmp_path: Path, content: object, message: str) -> None:
    write_cifar10(tmp_path, python2_pickle)
    (tmp_path / "data_batch_3").write_bytes(python2_pickle(content))
    with pytest.raises(LeakmeterError, match=f"data_batch_3: {message}"):
        data.load(f"cifar10:{tmp_path}")


@pytest.mark.parametrize("names", [b"text", [1, 2], [b"\xff"], RECURSIVE])
def test_cifar_class_names_are_checked(tmp_path: Path, names: object) -> None:
    write_cifar10(tmp_path, python2_pickle)
    (tmp_path / "batches.meta").write_bytes(python2_pickle({b"label_names": names}))
    with pytest.raises(LeakmeterError, match=r"batches.meta: .*list of names"):
        data.load(f"cifar10:{tmp_path}")


class Malicious:
    """Unpickling it with the standard library runs a shell command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("dump", [python2_pickle, python3_pickle])
def test_malicious_pickle_is_refused_and_not_run(
    tmp_path: Path, dump: Callable[[object], bytes]
) -> None:
    write_cifar10(tmp_path, python2_pickle)
    trace = tmp_path / "was-here"
    (tmp_path / "data_batch_1").write_bytes(dump({b"data": Malicious(f"touch {trace}")}))
    with pytest.raises(LeakmeterError, match=r"data_batch_1: refused: it asks for \w+.system"):
        data.load(f"cifar10:{tmp_path}")
    assert not trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # a memo of 2^31 entries
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b".",  # a terabyte of bytes
        b"cnumpy\nndarray\n(K\x01\x81.",  # calls __new__ of what must be inert
        b"cbuiltins\neval\n(V1\ntR.",
        b"(V1\ni__builtin__\neval\n.",
        b"\x80\x02\x82\x01.",  # the extension registry
    ],
)
def test_pickles_that_attack_the_reader(tmp_path: Path, content: bytes) -> None:
    write_cifar10(tmp_path, python2_pickle)
    (tmp_path / "data_batch_1").write_bytes(content)
    with pytest.raises(LeakmeterError, match="data_batch_1: "):
        data.load(f"cifar10:{tmp_path}")


# LEAF


def user(images: NDArray[np.uint8], labels: list[int]) -> dict[str, Any]:
    return {"x": (images.reshape(len(images), -1) / 255).tolist(), "y": labels}


def leaf(**users: dict[str, Any]) -> dict[str, Any]:
    counts = [len(entry["y"]) for entry in users.values()]
    return {"users": list(users), "num_samples": counts, "user_data": users}


def write_leaf(folder: Path, content: object, number: int = 0) -> None:
    (folder / f"all_data_{number}.json").write_text(json.dumps(content))


def test_femnist_round_trip(tmp_path: Path) -> None:
    images = pixels(5, 28, 28)
    write_leaf(tmp_path, leaf(f10=user(images[3:4], [10]), f00=user(images[4:], [0])), 10)
    write_leaf(tmp_path, leaf(f01=user(images[:1], [61]), f00=user(images[1:3], [36, 9])), 2)
    loaded = data.load(f"femnist:{tmp_path}")
    assert np.array_equal(as_bytes(loaded.images), images[:, None])
    assert loaded.labels.tolist() == [61, 36, 9, 10, 0]
    assert loaded.writer is not None
    assert loaded.writer.tolist() == [0, 1, 1, 2, 1]
    assert "".join(loaded.class_names[i] for i in (0, 9, 10, 35, 36, 61)) == "09AZaz"
    assert loaded.normalization == data.normalization("femnist")


X = [[0.5] * 784]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "needs 'users' .* and 'user_data'"),
        ({"users": ["a"]}, "needs 'users' .* and 'user_data'"),
        ({"users": [], "user_data": {}}, "needs 'users'"),
        ({"users": ["a"], "user_data": {"b": {}}}, "'users' names 'a', who is not in"),
        ({"users": [["a"]], "user_data": {}}, "'users' names"),
        (leaf(a={"x": [], "y": []}), "'user_data.a' needs lists 'x' and 'y', not empty"),
        (leaf(a={"x": X, "y": [1, 2]}), "'user_data.a.y' has 2 entries for 1 images"),
        (leaf(a={"x": X, "y": [62]}), "'user_data.a.y' must be in 0 .. 61"),
        (leaf(a={"x": X, "y": [0.5]}), "'user_data.a.y' must be a vector of integers"),
        (leaf(a={"x": [X[0][:-1]], "y": [0]}), "'user_data.a.x' must be rows of 784"),
        (leaf(a={"x": [[0.1], [0.1, 0.2]], "y": [0, 1]}), "not a readable list .*user_data.a.x"),
        (leaf(a={"x": [[2.0] * 784], "y": [0]}), "'user_data.a.x' must be .* numbers in 0 .. 1"),
        (leaf(a={"x": [[float("nan")] * 784], "y": [0]}), "'user_data.a.x' must be"),
        (leaf(a={"x": [["?"] * 784], "y": [0]}), "not a readable list of numbers"),
    ],
)
def test_femnist_errors(tmp_path: Path, content: object, message: str) -> None:
    write_leaf(tmp_path, content)
    with pytest.raises(LeakmeterError, match=f"all_data_0.json: {message}"):
        data.load(f"femnist:{tmp_path}")


def test_femnist_nested_beyond_measure(tmp_path: Path) -> None:
    (tmp_path / "all_data_0.json").write_text("[" * 100_000)
    with pytest.raises(LeakmeterError, match=r"all_data_0.json: not a readable LEAF json"):
        data.load(f"femnist:{tmp_path}")


# All of them


@pytest.mark.parametrize(
    ("kind", "file", "source"),
    [
        ("mnist", "train-images-idx3-ubyte.gz", "https://yann.lecun.com"),
        ("fashion-mnist", "train-images-idx3-ubyte.gz", "https://github.com/zalandoresearch"),
        ("cifar10", "batches.meta", "https://www.cs.toronto.edu"),
        ("cifar100", "meta", "https://www.cs.toronto.edu"),
        ("femnist", r"all_data_\*.json", "https://github.com/TalwalkarLab/leaf"),
    ],
)
def test_missing_files_say_where_to_get_them(
    tmp_path: Path, kind: str, file: str, source: str
) -> None:
    message = f"^{tmp_path}/{file}: file not found: download it from {source}.* in {tmp_path}$"
    with pytest.raises(LeakmeterError, match=message):
        data.load(f"{kind}:{tmp_path}")


FILES = {
    "mnist": "train-images-idx3-ubyte",
    "cifar10": "data_batch_1",
    "femnist": "all_data_0.json",
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("valid")
    write_idx(folder, pixels(2, 4, 4), [0, 1])
    write_cifar10(folder, python2_pickle)
    write_leaf(folder, leaf(a=user(pixels(1, 28, 28), [3])))
    return folder


@pytest.mark.parametrize("kind", FILES)
@settings(max_examples=60, deadline=None)
@given(source=st.data())
def test_damaged_files_give_only_our_error(valid: Path, kind: str, source: st.DataObject) -> None:
    path = valid / FILES[kind]
    original = path.read_bytes()
    # Half of the places in the first bytes, where the structure is.
    place = source.draw(st.integers(0, len(original) - 1) | st.integers(0, 40))
    changed = bytearray(original)
    changed[place] = source.draw(st.integers(0, 255))
    try:
        for bad in (original[:place], source.draw(st.binary(max_size=80))):
            path.write_bytes(bad)
            with pytest.raises(LeakmeterError):
                data.load(f"{kind}:{valid}")
        path.write_bytes(changed)
        with suppress(LeakmeterError):  # a lucky change may still be valid
            data.load(f"{kind}:{valid}")
    finally:
        path.write_bytes(original)
