"""AGIC (Xu et al. 2022): tables II, IV, V and VI."""

from __future__ import annotations

from leakmeter.bench.table import Recipe, Row, Table, Victim

_REFERENCE = "Xu et al.: AGIC, Approximate Gradient Inversion Attack on Federated Learning, 2022"
_STEPS = 10_000
_LR = 1e-4  # of the client's SGD, section V-A

_SETS = {
    # network, total variation; section V-A, both untrained
    "cifar10": ("resnet20-4", 1e-4),
    "cifar100": ("resnet20-4", 1e-4),
    "imagenet": ("resnet50", 1e-3),
}

# data, then (PSNR, SSIM) of InvG by simulation, AGIC one-batch, and with layers
_TABLE_2 = (
    ("cifar10", (14.108, 0.414), (14.250, 0.414), (16.182, 0.529)),
    ("cifar100", (15.465, 0.480), (15.437, 0.475), (19.133, 0.672)),
)

# data, batch size, then (PSNR, SSIM) of DLG-Adam, InvG, AGIC
_TABLE_4 = (
    ("cifar10", 1, (19.908, 0.727), (20.671, 0.753), (31.341, 0.963)),
    ("cifar10", 4, (14.034, 0.412), (14.421, 0.433), (17.183, 0.586)),
    ("imagenet", 1, (11.311, 0.094), (12.832, 0.214), (15.573, 0.366)),
    ("imagenet", 4, (9.879, 0.070), (11.640, 0.216), (12.836, 0.302)),
)

# labels, pooling, rate for batch size 1, rate for batch size 4
_TABLE_5 = (
    (False, False, 0.819, 0.509),
    (False, True, 0.873, 0.547),
    (True, False, 0.988, 0.672),
    (True, True, 0.981, 0.705),
)

# epochs whose gradients are used, (PSNR, SSIM)
_TABLE_6 = (((1,), (20.379, 0.665)), ((2,), (19.085, 0.626)), ((1, 2), (21.464, 0.697)))


def _paper(printed: tuple[float, float]) -> dict[str, float]:
    return {"psnr": printed[0], "ssim": printed[1]}


def _table_2() -> tuple[Row, ...]:
    rows = []
    for data, *printed in _TABLE_2:
        model, tv = _SETS[data]
        victim = Victim(data=data, model=model, examples=4, batch_size=1, lr=_LR, pick="distinct")
        attacks = {
            "InvG simulation": Recipe("ig_fedavg", _STEPS, {"lr": 0.1, "tv": tv}),
            "AGIC one-batch": Recipe("ig", _STEPS, {"lr": 0.1, "tv": tv}),
            "AGIC": Recipe("agic", _STEPS, {"beta": 50.0, "lr": 0.1, "tv": tv}),
        }
        rows += [
            Row(
                setting=data,
                attack=attack,
                recipe=recipe,
                victim=victim,
                paper=_paper(numbers),
                labels_known=False,
            )
            for (attack, recipe), numbers in zip(attacks.items(), printed, strict=True)
        ]
    return tuple(rows)


def _table_4() -> tuple[Row, ...]:
    rows = []
    for data, batch, *printed in _TABLE_4:
        model, tv = _SETS[data]
        victim = Victim(data=data, model=model, examples=batch, shares="gradient", pick="distinct")
        attacks = {
            "DLG-Adam": Recipe("dlg_adam", _STEPS, {"lr": 0.1}),
            "InvG": Recipe("ig", _STEPS, {"lr": 0.1, "tv": tv}),
            "AGIC": Recipe("agic", _STEPS, {"beta": 50.0, "lr": 0.1, "tv": tv}),
        }
        rows += [
            Row(
                setting=f"{data} N={batch}",
                attack=attack,
                recipe=recipe,
                victim=victim,
                paper=_paper(numbers),
            )
            for (attack, recipe), numbers in zip(attacks.items(), printed, strict=True)
        ]
    return tuple(rows)


def _two_epochs(batch: int) -> Victim:
    model, _ = _SETS["cifar100"]
    return Victim(
        data="cifar100",
        model=model,
        examples=batch,
        lr=_LR,
        shares="gradient",
        pick="distinct",
    )


_EQUAL_WEIGHTS = {"lr": 0.1, "tv": 1e-4}
_BEFORE_MATCHING = 2_000  # iterations, section V-D


def _table_5() -> tuple[Row, ...]:
    return tuple(
        Row(
            setting=f"N={batch} labels={_yes(labels)} pooling={_yes(pooling)}",
            attack="AGIC matching",
            recipe=Recipe("ig", _BEFORE_MATCHING, _EQUAL_WEIGHTS),
            victim=_two_epochs(batch),
            paper={"matching_rate": rate},
            labels_known=False,
            kind="matching",
            settings={"labels": labels, "pooling": pooling},
        )
        for labels, pooling, one, four in _TABLE_5
        for batch, rate in ((1, one), (4, four))
    )


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _table_6() -> tuple[Row, ...]:
    return tuple(
        Row(
            setting=f"epochs={','.join(map(str, epochs))}",
            attack="AGIC joint",
            recipe=Recipe("ig", _STEPS, _EQUAL_WEIGHTS),
            victim=_two_epochs(1),
            paper=_paper(printed),
            labels_known=False,
            kind="joint",
            settings={"epochs": epochs},
        )
        for epochs, printed in _TABLE_6
    )


_LABELS = "Labels are recovered from the update. "
_FEW = (
    "Four updates an epoch (the paper matches 1,000 images in table V and uses 200 in table VI): "
    "matching is far easier here, and where labels differ they alone decide it. In between, the "
    "network learns the other images of the data file for an epoch, in batches of 50, with a step "
    "size that moves it as much as 1,000 single images and lr 1e-4 would. "
)

TABLES = (
    Table(
        "agic-2",
        "Four local steps of one image each, untrained ResNet20-4",
        _REFERENCE,
        _table_2(),
        note=_LABELS + "Left out: DLG-Adam by simulation, the ImageNet rows, which need a trained "
        "ResNet-50, and LPIPS.",
    ),
    Table(
        "agic-4",
        "One gradient, untrained ResNet20-4 and ResNet-50, labels known",
        _REFERENCE,
        _table_4(),
        note="Left out: LPIPS.",
    ),
    Table(
        "agic-5",
        "Matching images across two epochs, CIFAR-100",
        _REFERENCE,
        _table_5(),
        note=_LABELS + _FEW,
    ),
    Table(
        "agic-6",
        "One image from the gradients of two epochs, CIFAR-100",
        _REFERENCE,
        _table_6(),
        note=_LABELS + _FEW + "Left out: LPIPS.",
    ),
)
