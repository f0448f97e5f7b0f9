"""Computes how much privacy noise buys: epsilon of repeated Gaussian mechanisms."""

from __future__ import annotations

import logging
import math
import warnings
from types import ModuleType

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from leakmeter.errors import LeakmeterError

ORDERS = [
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 64),
    *(128, 256, 512, 1024),
]
"""Renyi orders, of which the best one counts, as in dp-accounting."""

MEANINGLESS = 100.0
"""From this epsilon on, nothing is promised, and the tighter accountant is not run."""


def opacus() -> ModuleType:
    """The package, imported when first needed."""
    handlers = logging.root.handlers[:]
    try:
        import opacus
        import opacus.accountants
        import opacus.validators
    except ImportError:
        raise LeakmeterError("dp_sgd needs Opacus: pip install opacus dp-accounting") from None
    logging.root.handlers[:] = handlers  # importing it reroutes every program's log
    package: ModuleType = opacus
    return package


def sampled_gaussian(noise: float, rate: float, steps: int, delta: float) -> tuple[float, float]:
    """Epsilon of noisy sums over Poisson samples, by Opacus' RDP and PRV accountants.

    Args:
        noise: standard deviation, in units of the most that one example can add.
        rate: probability that an example is in a sample.
        steps: samples drawn.
        delta: probability that epsilon does not hold.
    """
    if noise == 0:
        return math.inf, math.inf
    accountants = opacus().accountants
    history = [(noise, rate, steps)]
    rdp, prv = accountants.RDPAccountant(), accountants.PRVAccountant()
    rdp.history, prv.history = history, history
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # Any order gives a valid bound, even the first or the last.
        warnings.filterwarnings("ignore", "Optimal order")
        loose = float(rdp.get_epsilon(delta, alphas=ORDERS))
        if loose > MEANINGLESS:
            return loose, loose
        try:
            # It adds its own error to what it reports: keep that to a small share.
            tight = float(prv.get_epsilon(delta, eps_error=min(0.01, loose / 200)))
        except (ArithmeticError, RuntimeError, ValueError):  # too fine for floating point
            tight = loose
    return loose, min(loose, tight)


def gaussian(noise: float, releases: int, delta: float) -> tuple[float, float]:
    """Epsilon of vectors released with Gaussian noise, by Renyi moments and exactly.

    ``releases`` of them are as one with ``noise / sqrt(releases)``, whose exact epsilon solves
    equation 6 of Balle and Wang 2018.

    Args:
        noise: standard deviation, in units of the most that the vector can change.
        releases: how many.
        delta: probability that epsilon does not hold.
    """
    if noise == 0:
        return math.inf, math.inf
    shift = math.sqrt(releases) / noise
    orders = np.array(ORDERS)
    # Theorem 21 of Balle et al. 2020, as in the accountants.
    moments = orders * shift**2 / 2
    bounds = moments + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)

    def excess(epsilon: float) -> float:
        first = log_ndtr(shift / 2 - epsilon / shift)
        second = epsilon + log_ndtr(-shift / 2 - epsilon / shift)
        return float(first + np.log1p(-np.exp(min(second - first, -1e-300)))) - math.log(delta)

    loose = max(0.0, float(bounds.min()))
    if excess(0.0) <= 0:
        return loose, 0.0
    return loose, float(brentq(excess, 0.0, loose * 1.01, xtol=1e-12, rtol=1e-10))
