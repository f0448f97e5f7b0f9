"""The named recipes. Each is a paper's choice of parts and numbers, nothing more."""

from __future__ import annotations

from collections.abc import Callable

from leakscope.attack.attack import Attack
from leakscope.attack.distance import Cosine
from leakscope.attack.prior import Box, TotalVariation
from leakscope.attack.solver import Adam
from leakscope.attack.trajectory import Line, Start


def ig(iterations: int = 4800, *, lr: float = 0.1, tv: float = 1e-2, sign: bool = True) -> Attack:
    """Inverting Gradients (Geiping et al. 2020), section 4 and appendix C.

    Made for one gradient. On weights after many local steps it is the baseline that SME is
    compared with, which uses ``lr=1, tv=0.005, sign=False`` (SME, appendix D).
    """
    return Attack(
        trajectory=Start(),
        distance=Cosine(),
        priors=(TotalVariation(tv), Box()),
        solver=Adam(lr=lr, iterations=iterations, sign=sign),
    )


def sme(iterations: int = 1000, *, lr: float = 1.0, tv: float = 0.01, alpha: float = 0.5) -> Attack:
    """Surrogate Model Extension (Zhu et al. 2023), algorithm 1 and appendix D."""
    return Attack(
        trajectory=Line(alpha=alpha, lr=1e-3),
        distance=Cosine(),
        priors=(TotalVariation(tv / 2), Box()),  # SME takes the mean over both directions
        solver=Adam(lr=lr, iterations=iterations),
    )


RECIPES: dict[str, Callable[..., Attack]] = {"ig": ig, "sme": sme}
"""Every recipe by its name on the command line and in scenarios."""
