"""Hostile files: only our own error escapes, and memory stays bounded whatever sizes they claim."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pickle
import re
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import leakmeter as lm
from faults.sweeps import SCENARIO
from leakmeter import data
from leakmeter.audits import Scenario
from leakmeter.errors import LeakmeterError
from leakmeter.execution.memory import at_most, peak_memory
from victims import tiny_update

ROOM = 2**30
"""Bytes that reading a small hostile file may take at the most."""

SECONDS = 3
"""That each kind of file is fuzzed for."""

anything: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([2**62, -1, 1e308, "auto", "../..", "folder:/", "npz:x", "a.py:b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def only_ours(read: Callable[[], object], figures: Counter[str]) -> None:
    """Whatever happens, it is a LeakmeterError and needs no memory to speak of."""
    figures["bad inputs"] += 1
    try:
        with at_most(peak_memory() + ROOM), contextlib.suppress(LeakmeterError):
            read()
    except BaseException:
        figures["crashes"] += 1
        raise


thorough = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def safetensors(header: Any, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@thorough
@given(
    name=st.sampled_from(["before/w", "after/w", "gradient/w", "w", "before/", "/", ""]),
    dtype=st.sampled_from(["F32", "F64", "BF16", "I64", "BOOL", "F8_E4M3", "F4", "X"]),
    shape=st.lists(st.sampled_from([0, 1, 2, 2**20, 2**40, 2**63, -1]), max_size=4),
    ends=st.tuples(st.sampled_from([0, 4, 8, 2**45, -4]), st.sampled_from([0, 4, 8, 2**45])),
    update=anything,
    body=st.binary(max_size=16),
)
def test_headers_of_updates(
    name: str,
    dtype: str,
    shape: list[int],
    ends: tuple[int, int],
    update: Any,
    body: bytes,
    tmp_path: Path,
    figures: Counter[str],
) -> None:
    header = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": list(ends)},
        "__metadata__": {"leakmeter.update": json.dumps(update)},
    }
    path = tmp_path / "u.safetensors"
    path.write_bytes(safetensors(header, body))
    only_ours(lambda: lm.Update.load(path), figures)


@pytest.mark.parametrize("length", [0, 1, 2**20, 2**40, 2**63, 2**64 - 1])
def test_updates_that_claim_terabytes(length: int, tmp_path: Path, figures: Counter[str]) -> None:
    path = tmp_path / "u.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b'{"before/w":')
    with pytest.raises(LeakmeterError):
        lm.Update.load(path)
    only_ours(lambda: lm.Update.load(path), figures)


@thorough
@given(source=st.data())
def test_scenarios_with_a_value_replaced(
    source: st.DataObject, tmp_path: Path, figures: Counter[str]
) -> None:
    content = json.loads(json.dumps(SCENARIO))
    where: Any = content
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        key = source.draw(st.sampled_from(keys))
        inner = where[key]
        if not isinstance(inner, dict | list) or not inner or source.draw(st.booleans()):
            break
        where = inner
    where[key] = source.draw(anything)
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    only_ours(lambda: Scenario.load(path), figures)


def laughs(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        inside = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{inside}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        laughs(9),
        laughs(9) + "\nvary: {client.epochs: *a8}",
        "attacks: &a [*a]",
        "name: " + "[" * 100_000,
        "vary: {" + ", ".join(f"client.x{i}: [1, 2, 3, 4]" for i in range(40)) + "}",
        "client: {epochs: " + "9" * 5000 + "}",
        "\x00",
        "name: !!python/object/apply:os.system [true]",
    ],
)
def test_scenarios_that_blow_up(text: str, tmp_path: Path, figures: Counter[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LeakmeterError):
        Scenario.load(path)
    only_ours(lambda: Scenario.load(path), figures)


def test_pictures_that_claim_to_be_huge(tmp_path: Path, figures: Counter[str]) -> None:
    (tmp_path / "a").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "a" / "good.png")
    content = bytearray((tmp_path / "a" / "good.png").read_bytes())
    content[16:24] = struct.pack(">II", 2**31 - 1, 2**31 - 1)
    (tmp_path / "a" / "bad.png").write_bytes(content)
    with pytest.raises(LeakmeterError, match=r"bad\.png"):
        data.load(f"folder:{tmp_path}")
    only_ours(lambda: data.load(f"folder:{tmp_path}"), figures)


def zipped_zeros(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "train-images-idx3-ubyte.gz", "wb", compresslevel=1) as file:
        file.write(struct.pack(">IIII", 0x803, 2**31, 2**15, 2**15))
        for _ in range(64):
            file.write(bytes(2**20))


def test_zipped_digits_that_claim_terabytes(tmp_path: Path, figures: Counter[str]) -> None:
    zipped_zeros(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 1) + b"\x00")
    with pytest.raises(LeakmeterError, match="announces"):
        data.load(f"mnist:{tmp_path}")
    only_ours(lambda: data.load(f"mnist:{tmp_path}"), figures)


def seeds(target: str, folder: Path) -> None:
    """A valid file of each kind, and what must lie beside it."""
    folder.mkdir()
    near = folder.parent / f"{folder.name}-neighbors"
    near.mkdir()
    seed = folder / "seed"
    if target == "update":
        tiny_update().save(seed)
    elif target == "scenario":
        seed.write_text(yaml.safe_dump(SCENARIO))
    elif target == "results":
        seed.write_text('{"version": 1, "title": "t", "configurations": []}')
    elif target == "npz":
        with seed.open("wb") as file:
            np.savez(file, images=np.zeros((2, 8, 8), np.uint8), labels=np.array([0, 1]))
    elif target == "cifar100":
        content = {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0, 1]}
        seed.write_bytes(pickle.dumps(content, protocol=2))
        (near / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"a", b"b"]}, protocol=2))
    elif target == "femnist":
        user = {"x": [[0.5] * 784], "y": [3]}
        seed.write_text(json.dumps({"users": ["u"], "user_data": {"u": user}}))
    elif target == "mnist":
        seed.write_bytes(struct.pack(">IIII", 0x803, 1, 28, 28) + bytes(784))
        (near / "train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 1) + b"\x00")
    elif target == "folder":
        (near / "a").mkdir()
        Image.new("RGB", (8, 8)).save(near / "a" / "good.png")
        Image.new("L", (8, 8)).save(seed, format="PNG")
    else:
        torch.save({"w": torch.zeros(2)}, seed)


@pytest.mark.parametrize(
    "target",
    ["update", "scenario", "results", "npz", "cifar100", "femnist", "mnist", "folder", "torch"],
)
def test_coverage_guided_fuzzing(target: str, tmp_path: Path, figures: Counter[str]) -> None:
    pytest.importorskip("atheris")
    corpus = tmp_path / "corpus"
    seeds(target, corpus)
    command = [
        sys.executable,
        str(Path(__file__).with_name("fuzz.py")),
        target,
        str(corpus),
        f"-max_total_time={SECONDS}",
        "-rss_limit_mb=3000",
        "-malloc_limit_mb=1000",
        "-timeout=20",
        "-max_len=20000",
        f"-artifact_prefix={tmp_path}/",
    ]
    place = os.environ | {"TMPDIR": str(tmp_path)}  # the fuzzer leaves without tidying up
    end = subprocess.run(command, env=place, capture_output=True, text=True, timeout=300)
    figures["crashes"] += end.returncode != 0
    assert end.returncode == 0, end.stderr[-3000:]
    runs = re.search(r"Done (\d+) runs", end.stderr)
    assert runs is not None, end.stderr[-3000:]
    assert int(runs[1]) > 50
    figures["bad inputs"] += int(runs[1])
