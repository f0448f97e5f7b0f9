"""Retrace, leakmeter's own attack: how close it comes to an attack on a single step's gradient."""

from __future__ import annotations

from typing import Any

from leakmeter.bench.table import Pick, Recipe, Row, Table, Victim
from leakmeter.bench.tables.sme import CNN

REFERENCE = "leakmeter: Retrace, docs/retrace.md"
_STEPS = 300

# N, E, B, then SME's printed PSNR for CIFAR-100 and FEMNIST, if any
_SETTINGS = (
    (10, 5, 10, None, None),
    (10, 10, 10, 28.5, 30.3),
    (10, 20, 10, 26.9, 28.6),
    (10, 50, 10, 24.2, 25.7),
    (50, 5, 10, None, None),
    (50, 10, 10, 23.5, 22.2),
    (50, 20, 10, 21.7, 21.5),
    (50, 50, 10, 18.3, 20.1),
    (50, 20, 20, 22.34, 21.49),
    (50, 20, 50, None, None),
)

# Clients whose images are not random: as in SME's public code, or all from different classes
_PICKED: tuple[tuple[str, str, Pick, int], ...] = (
    ("one writer", "femnist", "writer", 10),
    ("one writer", "femnist", "writer", 20),
    ("one writer", "femnist", "writer", 50),
    ("distinct classes", "cifar100", "distinct", 20),
)

# Step sizes that give the same drop in loss as SGD, averaged over five clients (0.24); the last
# one goes far beyond that (3 on the first client).
_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.004},
    "momentum": {"lr": 0.00075, "momentum": 0.9},
    "nesterov": {"lr": 0.00068, "momentum": 0.9, "nesterov": True},
    "adam": {"lr": 0.000012, "optimizer": "adam"},
    "adamw": {"lr": 0.000012, "optimizer": "adamw", "weight_decay": 0.01},
    "adam long": {"lr": 0.0001, "optimizer": "adam"},
}

_IG = {"lr": 1.0, "tv": 0.005, "sign": False}
_ATTACKS = {
    "IG": Recipe("ig", _STEPS, _IG),
    "SME": Recipe("sme", _STEPS),
    "simulation": Recipe("ig_fedavg", _STEPS, _IG),
    "Retrace": Recipe("retrace", _STEPS),
    "auto": Recipe("auto", _STEPS, {"seconds": 3600.0}),
}


def _rows(
    setting: str, victim: Victim, attacks: tuple[str, ...], sme: float | None = None
) -> list[Row]:
    return [
        Row(
            setting=setting,
            attack=attack,
            recipe=_ATTACKS[attack],
            victim=victim,
            paper={"psnr": sme} if sme is not None and attack == "SME" else {},
        )
        for attack in attacks
    ]


def _single_step(data: str, examples: int, pick: Pick = "random") -> list[Row]:
    """How much a single gradient of the same images gives away."""
    victim = Victim(data=data, model=CNN[data], examples=examples, shares="gradient", pick=pick)
    whose = "one writer" if pick == "writer" else data
    return _rows(f"{whose} N={examples} single step", victim, ("IG", "auto"))


def _table_1() -> tuple[Row, ...]:
    rows: list[Row] = []
    for position, data in enumerate(("cifar100", "femnist")):
        rows += [*_single_step(data, 10), *_single_step(data, 50)]
        for examples, epochs, batch, *printed in _SETTINGS:
            victim = Victim(
                data=data, model=CNN[data], examples=examples, epochs=epochs, batch_size=batch
            )
            setting = f"{data} N={examples} E={epochs} B={batch}"
            rows += _rows(setting, victim, ("SME", "Retrace"), printed[position])
    for whose, data, pick, epochs in _PICKED:
        victim = Victim(
            data=data, model=CNN[data], examples=50, epochs=epochs, batch_size=10, pick=pick
        )
        rows += _rows(f"{whose} N=50 E={epochs} B=10", victim, ("SME", "Retrace"))
    return (*rows, *_single_step("femnist", 50, pick="writer"))


def _table_2() -> tuple[Row, ...]:
    rows = _single_step("cifar100", 10)
    for name, settings in _OPTIMIZERS.items():
        victim = Victim(
            data="cifar100",
            model=CNN["cifar100"],
            examples=10,
            epochs=20,
            batch_size=10,
            settings=settings,
        )
        rows += _rows(name, victim, ("IG", "SME", "simulation", "Retrace"))
    return tuple(rows)


_NOTE = (
    "Labels known. Single step: one gradient of the same images, which many local steps are "
    "thought to hide; IG with SME's step sizes, auto with Retrace's. "
)

TABLES = (
    Table(
        "retrace-1",
        "Retrace between SME and the gradient of a single step",
        REFERENCE,
        _table_1(),
        note=_NOTE + "The paper's numbers are SME's with 1,000 iterations (NL-SME's table for "
        "B=20). NL-SME prints 26.42 for cifar100 N=50 E=20 B=10 and 25.79 for B=20. Distinct "
        "classes: CIFAR-100 clients no two of whose images are of one class.",
    ),
    Table(
        "retrace-2",
        "Clients with other optimizers, CIFAR-100, N=10, E=20",
        REFERENCE,
        _table_2(),
        note=_NOTE,
    ),
)
