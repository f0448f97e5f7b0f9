from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

import leakmeter as lm

SHARED = Path(__file__).parents[2] / "shared" / "data"

# Two test processes on two cores: one thread each is faster than four that compete.
torch.set_num_threads(1)

# A shell starts what runs in the background with Ctrl-C switched off, for all its children, too.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKMETER_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def cifar100() -> lm.data.Dataset:
    path = SHARED / "cifar100.npz"
    if not path.exists():
        pytest.skip(f"no real samples at {os.path.relpath(path)}")
    return lm.data.load(f"npz:{path}")


@pytest.fixture(scope="session")
def photos() -> lm.data.Dataset:
    return lm.data.load("photos", size=32)
