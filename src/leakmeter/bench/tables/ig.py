"""Inverting Gradients (Geiping et al., NeurIPS 2020): tables 1, 2 and 3."""

from __future__ import annotations

from leakmeter.bench.table import Pretraining, Recipe, Row, Table, Victim

_REFERENCE = "Geiping et al.: Inverting Gradients, NeurIPS 2020"
_STEPS = 4_800

# network, trained, restarts of L-BFGS, PSNR with L-BFGS, TV of the proposed attack, its PSNR
_TABLE_1 = (
    ("lenet-zhu", False, 16, 46.25, 1e-2, 18.00),
    ("lenet-zhu", True, 16, 13.24, 1e-3, 18.08),
    ("resnet20-4", False, 8, 10.29, 0.0, 19.83),
    ("resnet20-4", True, 8, 6.90, 1e-2, 13.95),
)

# E, n, B, TV (table 5), PSNR
_TABLE_2 = (
    (1, 4, 2, 1e-6, 16.92),
    (1, 8, 2, 1e-6, 14.66),
    (1, 8, 8, 1e-4, 16.49),
    (5, 1, 1, 1e-4, 25.05),
    (5, 8, 8, 1e-4, 16.58),
)

# attack, recipe, PSNR
_TABLE_3 = (
    ("full", Recipe("ig", _STEPS, {"lr": 0.1, "tv": 1e-2}), 20.12),
    ("L2 loss", Recipe("ig_l2", _STEPS, {"lr": 0.1, "tv": 1e-2}), 15.13),
    ("no TV", Recipe("ig", _STEPS, {"lr": 0.1, "tv": 0.0}), 19.96),
    ("L-BFGS", Recipe("ig_lbfgs", 300), 5.13),
)


def _trained(epochs: int, lr: float) -> Pretraining:
    """Plain training: one client, one round per epoch, batch norm with batch statistics."""
    return Pretraining(
        rounds=epochs,
        split="one",
        shared=True,
        settings={"batch_size": 50, "lr": lr, "momentum": 0.9, "batchnorm": "train"},
    )


# Only a few epochs: on one core, the residual networks take a minute or two for each.
_TRAINING = {
    "lenet-zhu": _trained(20, 0.01),
    "resnet20-4": _trained(6, 0.05),
    "resnet18-small": _trained(6, 0.05),
}


def _one_image(model: str, trained: bool) -> Victim:
    return Victim(
        data="cifar10",
        model=model,
        examples=1,
        shares="gradient",
        trained=_TRAINING[model] if trained else None,
    )


def _table_1() -> tuple[Row, ...]:
    return tuple(
        Row(
            setting=f"{model} {'trained' if trained else 'untrained'}",
            attack=attack,
            recipe=recipe,
            victim=_one_image(model, trained),
            paper={"psnr": psnr},
        )
        for model, trained, restarts, lbfgs, tv, proposed in _TABLE_1
        for attack, recipe, psnr in (
            ("L2 L-BFGS", Recipe("dlg", 300, {"lr": 1.0, "restarts": restarts}), lbfgs),
            ("IG", Recipe("ig", _STEPS, {"lr": 0.1, "tv": tv}), proposed),
        )
    )


def _table_2() -> tuple[Row, ...]:
    return tuple(
        Row(
            setting=f"E={epochs} N={examples} B={batch_size}",
            attack="IG simulation",
            recipe=Recipe("ig_fedavg", _STEPS, {"lr": 1.0, "tv": tv}),
            victim=Victim(
                data="cifar10",
                model="convnet",
                examples=examples,
                epochs=epochs,
                batch_size=batch_size,
                lr=1e-4,
                pick="distinct",
            ),
            paper={"psnr": psnr},
        )
        for epochs, examples, batch_size, tv, psnr in _TABLE_2
    )


def _table_3() -> tuple[Row, ...]:
    return tuple(
        Row(
            setting="resnet18 trained",
            attack=attack,
            recipe=recipe,
            victim=_one_image("resnet18-small", trained=True),
            paper={"psnr": psnr},
        )
        for attack, recipe, psnr in _TABLE_3
    )


_FEW_IMAGES = (
    "Trained networks saw the images of the data file that no repeat attacks, for a few epochs "
    "(20 for LeNet, 6 for ResNets); the paper's saw 50,000 images until they had converged. "
)

TABLES = (
    Table(
        "ig-1",
        "One gradient of one CIFAR-10 image, labels known",
        _REFERENCE,
        _table_1(),
        note=_FEW_IMAGES + "For L-BFGS the paper states lr 1e-4; DLG's own 1 is used.",
    ),
    Table(
        "ig-2",
        "Federated averaging by simulation, untrained ConvNet, CIFAR-10, labels known",
        _REFERENCE,
        _table_2(),
        note="All labels of a client differ (the paper: those of a batch).",
    ),
    Table(
        "ig-3",
        "What the parts of the attack contribute, trained ResNet-18, CIFAR-10, labels known",
        _REFERENCE,
        _table_3(),
        note=_FEW_IMAGES,
    ),
)
