"""Non-Linear Surrogate Model Extension (2025): tables II and VI."""

from __future__ import annotations

from leakmeter.bench.table import Recipe, Row, Table, Victim
from leakmeter.bench.tables.sme import CNN, IG, SME

_REFERENCE = "Non-Linear Surrogate Model Extension (NL-SME), 2025"

FEDLEAK = Recipe("fedleak", 1000)
NL_SME = Recipe("nl_sme", 1000)

_METRICS = ("l_sim", "psnr", "ssim")
_ATTACKS = {"FedLeak": FEDLEAK, "IG": IG, "SME": SME, "NL-SME": NL_SME}

Printed = tuple[float, float, float]
"""(L_sim, PSNR, SSIM)."""

_TABLE_2: tuple[tuple[str, int, int, Printed, Printed, Printed, Printed], ...] = (
    # data, E, B, FedLeak, IG, SME, NL-SME
    (
        *("femnist", 20, 10),
        *((0.2414, 15.60, 0.673), (0.1791, 16.36, 0.459)),
        *((0.0380, 21.42, 0.711), (0.0009, 22.61, 0.788)),
    ),
    (
        *("femnist", 50, 10),
        *((0.3130, 13.95, 0.604), (0.3159, 13.61, 0.367)),
        *((0.0441, 20.25, 0.701), (0.0020, 20.83, 0.741)),
    ),
    (
        *("femnist", 20, 20),
        *((0.1919, 16.52, 0.713), (0.1225, 17.71, 0.523)),
        *((0.0387, 21.49, 0.718), (0.0010, 22.73, 0.809)),
    ),
    (
        *("femnist", 50, 20),
        *((0.2762, 14.66, 0.629), (0.2449, 14.48, 0.369)),
        *((0.0383, 20.63, 0.697), (0.0009, 21.59, 0.755)),
    ),
    (
        *("cifar100", 20, 10),
        *((0.1409, 14.27, 0.474), (0.1432, 14.82, 0.509)),
        *((0.0544, 21.29, 0.783), (0.0029, 26.42, 0.878)),
    ),
    (
        *("cifar100", 50, 10),
        *((0.2641, 11.99, 0.348), (0.2713, 12.21, 0.342)),
        *((0.0633, 18.75, 0.712), (0.0075, 21.09, 0.802)),
    ),
    (
        *("cifar100", 20, 20),
        *((0.0951, 16.42, 0.581), (0.1022, 17.05, 0.639)),
        *((0.0470, 22.34, 0.797), (0.0035, 25.79, 0.920)),
    ),
    (
        *("cifar100", 50, 20),
        *((0.1863, 12.88, 0.395), (0.1940, 13.14, 0.396)),
        *((0.0476, 20.72, 0.798), (0.0030, 24.94, 0.908)),
    ),
)

_TABLE_6: dict[str, dict[str, Printed]] = {
    "cifar100": {
        "SME": (0.056, 21.36, 0.815),
        "scaling only": (0.026, 22.53, 0.811),
        "path only": (0.104, 19.08, 0.712),
        "NL-SME": (0.003, 26.24, 0.880),
    },
    "femnist": {
        "SME": (0.112, 20.65, 0.741),
        "scaling only": (0.008, 24.56, 0.901),
        "path only": (0.038, 24.94, 0.908),
        "NL-SME": (0.002, 28.78, 0.961),
    },
}
_VARIANTS = {
    "SME": SME,
    "scaling only": Recipe("nl_sme_scaling", 1000),
    "path only": Recipe("nl_sme_path", 1000),
    "NL-SME": NL_SME,
}


def _row(setting: str, victim: Victim, attack: str, recipe: Recipe, printed: Printed) -> Row:
    paper = dict(zip(_METRICS, printed, strict=True))
    return Row(setting=setting, attack=attack, recipe=recipe, victim=victim, paper=paper)


def _table_2() -> tuple[Row, ...]:
    rows = []
    for data, epochs, batch_size, *printed in _TABLE_2:
        victim = Victim(
            data=data, model=CNN[data], examples=50, epochs=epochs, batch_size=batch_size
        )
        rows += [
            _row(f"{data} E={epochs} B={batch_size}", victim, attack, recipe, numbers)
            for (attack, recipe), numbers in zip(_ATTACKS.items(), printed, strict=True)
        ]
    return tuple(rows)


def _table_6() -> tuple[Row, ...]:
    victims = {
        "cifar100": Victim(
            data="cifar100", model=CNN["cifar100"], examples=50, epochs=20, batch_size=10
        ),
        "femnist": Victim(
            data="femnist",
            model=CNN["femnist"],
            examples=50,
            epochs=50,
            batch_size=10,
            pick="varied",
        ),
    }
    return tuple(
        _row(data, victims[data], attack, _VARIANTS[attack], printed)
        for data, variants in _TABLE_6.items()
        for attack, printed in variants.items()
    )


TABLES = (
    Table(
        "nlsme-2",
        "Weights after many local steps, N=50, CNN, labels known",
        _REFERENCE,
        _table_2(),
        note="The paper states neither the client's step size (SME's 0.004 is used) nor its "
        "penalties and learning rates.",
    ),
    Table(
        "nlsme-6",
        "What the path and the scaling of NL-SME contribute",
        _REFERENCE,
        _table_6(),
        note="The paper does not state E, N and B of its CIFAR-100 rows: its numbers are near "
        "those of E=20, N=50, B=10. For FEMNIST it takes varied images of five clients by rules "
        "it does not give: here, of five writers, the ten each with the most variance and edges.",
    ),
)
