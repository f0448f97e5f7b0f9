"""SAPAG (Wang et al. 2020): tables I, II and III."""

from __future__ import annotations

from typing import Literal

from leakmeter.bench.table import Recipe, Row, Table, Victim

_REFERENCE = "Wang et al.: SAPAG, A Self-Adaptive Privacy Attack From Gradients, 2020"

Init = Literal["uniform", "xavier-normal"]

_LBFGS = 500
_ADAMW = 20_000

# init, data, (PSNR, SSIM) of DLG and SAPAG
_TABLE_1: tuple[tuple[Init, str, tuple[float, float], tuple[float, float]], ...] = (
    ("uniform", "femnist-digits", (68.61, 1.00), (78.23, 1.00)),
    ("uniform", "cifar100", (43.91, 1.00), (55.91, 1.00)),
    ("uniform", "lfw", (43.76, 1.00), (56.74, 1.00)),
    ("xavier-normal", "femnist-digits", (-0.41, 3.20e-3), (45.60, 0.99)),
    ("xavier-normal", "cifar100", (3.75, 7.90e-2), (32.43, 0.98)),
    ("xavier-normal", "lfw", (-1.04, 7.55e-3), (30.72, 0.98)),
)

# init, data, (PSNR, SSIM) of DLG, Adam_DLG and SAPAG
_TABLE_2: tuple[
    tuple[Init, str, tuple[float, float], tuple[float, float], tuple[float, float]], ...
] = (
    ("uniform", "cifar100", (-27.08, 1.63e-3), (8.46, 0.72), (15.16, 0.86)),
    ("uniform", "lfw", (-25.41, 1.69e-3), (7.27, 0.67), (12.27, 0.83)),
    ("uniform", "imagenet", (-31.84, 7.86e-4), (7.49, 0.65), (14.48, 0.93)),
    ("xavier-normal", "cifar100", (-0.66, 1.22e-2), (9.37, 0.76), (19.02, 0.95)),
    ("xavier-normal", "lfw", (-1.13, 5.12e-3), (5.63, 0.64), (14.04, 0.87)),
    ("xavier-normal", "imagenet", (-36.60, 1.79e-4), (5.47, 0.56), (12.90, 0.89)),
)


def _rows(
    model: str,
    init: Init,
    data: str,
    recipes: dict[str, Recipe],
    printed: tuple[tuple[float, float], ...],
) -> list[Row]:
    # Plain images: the paper keeps its dummies in [0, 1], and so does DLG's public code.
    victim = Victim(
        data=data, model=model, examples=1, shares="gradient", init=init, normalize=False
    )
    return [
        Row(
            setting=f"{init} {data}",
            attack=attack,
            recipe=recipe,
            victim=victim,
            paper={"psnr": psnr, "ssim": ssim},
            labels_known=False,
            note="the paper's MNIST row" if data == "femnist-digits" else "",
        )
        for (attack, recipe), (psnr, ssim) in zip(recipes.items(), printed, strict=True)
    ]


def _table_1() -> tuple[Row, ...]:
    recipes = {
        "DLG": Recipe("dlg", _LBFGS, {"lr": 1.0, "restarts": 8}),
        "SAPAG": Recipe("sapag", _LBFGS, {"restarts": 8}),
    }
    rows: list[Row] = []
    for init, data, *printed in _TABLE_1:
        rows += _rows("lenet5-sapag", init, data, recipes, tuple(printed))
    return tuple(rows)


def _table_2() -> tuple[Row, ...]:
    recipes = {
        "DLG": Recipe("dlg", _LBFGS, {"lr": 1.0, "restarts": 1}),
        "Adam_DLG": Recipe("dlg_adam", _ADAMW, {"lr": 1e-3}),
        "SAPAG": Recipe("sapag_adamw", _ADAMW),
    }
    rows: list[Row] = []
    for init, data, *printed in _TABLE_2:
        rows += _rows("resnet18-sigmoid", init, data, recipes, tuple(printed))
    return tuple(rows)


def _table_3() -> tuple[Row, ...]:
    """Section VII. The shares are counted from the two printed sentences, ignoring word order."""
    return tuple(
        Row(
            setting="sentence",
            attack=attack,
            recipe=Recipe(recipe, _ADAMW, options),
            victim=None,
            paper={"words": (first / 13 + second / 15) / 2},
            labels_known=False,
            kind="text",
        )
        for attack, recipe, options, first, second in (
            ("DLG", "dlg_adam", {"lr": 0.1}, 4, 6),
            ("SAPAG", "sapag_adamw", {"lr": 0.1}, 11, 11),
        )
    )


_JOINT = (
    "Labels are optimized with the image. An iteration of L-BFGS is 20 evaluations; up to 8 "
    "starts, the best match is kept (the paper does not speak of restarts). "
)

TABLES = (
    Table(
        "sapag-1",
        "One gradient of one image, LeNet-5 with sigmoid",
        _REFERENCE,
        _table_1(),
        note=_JOINT + "MNIST is replaced by the digits of FEMNIST, and LFW is a sample of fewer "
        "people, 32x32.",
    ),
    Table(
        "sapag-2",
        "One gradient of one image, ResNet-18 with sigmoid",
        _REFERENCE,
        _table_2(),
        note=_JOINT + "The paper's network has stride 1 everywhere, which takes more than two "
        "seconds per iteration on a core; here its stages halve the image as usual. LFW is a "
        "sample of fewer people, 32x32.",
    ),
    Table(
        "sapag-3",
        "Sentences from the gradient of a transformer: share of words recovered",
        _REFERENCE,
        _table_3(),
        note="The paper prints two examples only; its shares are counted from those. Here: "
        "sentences of 15 words of SST-2, 500 words known, embeddings of width 100 in (-0.1, 0.1) "
        "(the paper: 5,000), lr 0.1 (the paper states none).",
    ),
)
