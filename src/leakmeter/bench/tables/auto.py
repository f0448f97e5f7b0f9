"""auto compared with single recipes, both those it chooses from and others."""

from __future__ import annotations

from leakmeter.bench.table import Recipe, Row, Table, Victim
from leakmeter.bench.tables.sme import federation

_STEPS = 150
"""Iterations of auto; attacks that take small steps get more, by the same factor as in auto."""

_MANY = 24 * _STEPS

_AUTO = Recipe("auto", _STEPS, {"seconds": 3600.0})
"""Has more time than it needs, so that the result does not depend on the machine's load."""

_LOCAL = {
    "Retrace": Recipe("retrace", _STEPS),
    "SME": Recipe("sme", _STEPS),
    "NL-SME": Recipe("nl_sme", _STEPS),
    "IG": Recipe("ig", _STEPS, {"lr": 1.0, "tv": 0.005, "sign": False}),
}
_GRADIENT = {
    "IG": _LOCAL["IG"],
    "IG signed": Recipe("ig", _MANY),
    "AGIC": Recipe("agic", _MANY),
    "FedLeak": Recipe("fedleak", _STEPS),
}
_SMOOTH = {
    "SAPAG": Recipe("sapag", _STEPS),
    "DLG": Recipe("dlg", _STEPS),
    "IG": _LOCAL["IG"],
}

_VICTIMS = {
    "fresh CNN, weights": (
        Victim(data="cifar100", model="cnn-cifar", examples=10, epochs=20, batch_size=10),
        _LOCAL,
    ),
    "trained CNN, weights": (
        Victim(
            data="femnist",
            model="cnn-femnist",
            examples=10,
            epochs=10,
            batch_size=10,
            trained=federation(5),
        ),
        _LOCAL,
    ),
    "Adam, weights": (
        Victim(
            data="femnist",
            model="cnn-femnist",
            examples=10,
            epochs=20,
            batch_size=10,
            settings={"optimizer": "adam", "lr": 3e-5},
        ),
        _LOCAL,
    ),
    "ResNet8, weights": (
        Victim(data="femnist", model="resnet8", examples=4, epochs=5, batch_size=4),
        _LOCAL,
    ),
    "fresh CNN, gradient": (
        Victim(data="cifar100", model="cnn-cifar", examples=4, shares="gradient"),
        _GRADIENT,
    ),
    "trained CNN, gradient": (
        Victim(
            data="femnist",
            model="cnn-femnist",
            examples=4,
            shares="gradient",
            trained=federation(5),
        ),
        _GRADIENT,
    ),
    "ResNet8, gradient": (
        Victim(data="femnist", model="resnet8", examples=2, shares="gradient"),
        _GRADIENT,
    ),
    "LeNet, gradient": (
        Victim(data="cifar10", model="lenet-zhu", examples=1, shares="gradient"),
        _SMOOTH,
    ),
}


def _rows() -> tuple[Row, ...]:
    return tuple(
        Row(setting=setting, attack=attack, recipe=recipe, victim=victim, paper={})
        for setting, (victim, attacks) in _VICTIMS.items()
        for attack, recipe in ({"auto": _AUTO} | attacks).items()
    )


TABLES = (
    Table(
        "auto-1",
        "auto beside every recipe that fits, on fresh, trained and deep networks",
        "leakmeter: auto, docs/auto.md",
        _rows(),
        note="Labels known. Small steps (IG signed, AGIC) get 24 times the iterations.",
    ),
)
