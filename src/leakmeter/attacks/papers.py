"""The named recipes. Each is a paper's choice of parts and numbers, nothing more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from leakmeter.attacks.adam import Adam, LookAhead
from leakmeter.attacks.attack import Attack
from leakmeter.attacks.auto import (
    Auto,
    Candidate,
    computable,
    deep_gradient,
    many_steps,
    not_replayable,
    one_gradient,
    replayable,
    smooth_gradient,
)
from leakmeter.attacks.closed_form import ClosedForm
from leakmeter.attacks.distance import AbsoluteCosine, Cosine, Euclidean, GaussianKernel, Partial
from leakmeter.attacks.labels import Joint, Single
from leakmeter.attacks.layers import Exponential, Falling, ReluLinear
from leakmeter.attacks.lbfgs import LBFGS
from leakmeter.attacks.matched import Beginning, Emphasis, MatchedAttack, Repeat
from leakmeter.attacks.prior import Box, EpochOrder, SoftBox, SquaredVariation, TotalVariation
from leakmeter.attacks.retrace import Retrace
from leakmeter.attacks.schedule import (
    CosineDecay,
    ExponentialDecay,
    LinearDecay,
    Plateau,
    StepDecay,
)
from leakmeter.attacks.simulation import Simulation
from leakmeter.attacks.trajectory import Bezier, Line, Start


def dlg(iterations: int = 300, *, lr: float = 1.0, restarts: int = 8) -> Repeat:
    """Deep Leakage from Gradients (Zhu et al. 2019), algorithm 1; restarts as in IG, appendix C.

    For one gradient of a smooth, shallow network; fails on ReLU and depth.
    """
    attack = MatchedAttack(
        trajectory=Start(),
        distance=Euclidean(),
        priors=(),
        labels=Joint(),
        solver=LBFGS(lr=lr, iterations=iterations),
    )
    return Repeat(attack, restarts)


def dlg_adam(iterations: int = 4800, *, lr: float = 0.1) -> MatchedAttack:
    """DLG with Adam in place of L-BFGS, the baseline of AGIC (Xu et al. 2022, section V)."""
    return MatchedAttack(
        trajectory=Start(),
        distance=Euclidean(),
        priors=(Box(),),
        labels=Joint(lr=lr),
        solver=Adam(lr=lr, iterations=iterations),
    )


def idlg(iterations: int = 300, *, lr: float = 1.0, restarts: int = 8) -> Repeat:
    """Improved DLG (Zhao et al. 2020): DLG with the one label read off the last layer."""
    attack = MatchedAttack(
        trajectory=Start(),
        distance=Euclidean(),
        priors=(),
        labels=Single(),
        solver=LBFGS(lr=lr, iterations=iterations),
    )
    return Repeat(attack, restarts)


def ig(
    iterations: int = 4800,
    *,
    lr: float = 0.1,
    tv: float = 1e-2,
    sign: bool = True,
    decay: bool = True,
) -> MatchedAttack:
    """Inverting Gradients (Geiping et al. 2020), section 4 and appendix C.

    Made for one gradient. On weights after many local steps it is the baseline that SME is
    compared with, which uses ``lr=1, tv=0.005, sign=False`` (SME, appendix D).
    """
    return MatchedAttack(
        trajectory=Start(),
        distance=Cosine(),
        priors=(TotalVariation(tv), Box()),
        solver=Adam(lr=lr, iterations=iterations, decay=StepDecay() if decay else None, sign=sign),
    )


def ig_l2(iterations: int = 4800, *, lr: float = 0.1, tv: float = 1e-2) -> MatchedAttack:
    """Inverting Gradients with the Euclidean distance: a line of its ablation (table 3)."""
    return replace(ig(iterations, lr=lr, tv=tv), distance=Euclidean())


def ig_lbfgs(iterations: int = 300, *, lr: float = 1.0, tv: float = 1e-2) -> MatchedAttack:
    """Inverting Gradients with L-BFGS in place of Adam: a line of its ablation (table 3)."""
    return replace(ig(tv=tv), solver=LBFGS(lr=lr, iterations=iterations))


def ig_fedavg(
    iterations: int = 4800, *, lr: float = 1.0, tv: float = 1e-4, sign: bool = True
) -> MatchedAttack:
    """Inverting Gradients through the unrolled local steps (Geiping et al. 2020), appendix B.1."""
    return MatchedAttack(
        trajectory=Simulation(),
        distance=Cosine(),
        priors=(TotalVariation(tv), Box()),
        solver=Adam(lr=lr, iterations=iterations, sign=sign),
    )


def sapag(iterations: int = 500, *, start: Beginning = "noise", restarts: int = 8) -> Repeat:
    """SAPAG (Wang et al. 2020), section VI, with L-BFGS as on LeNet-5: for smooth, shallow nets.

    Like DLG's, its runs may end far from a solution: the best of several is kept. The paper
    normalizes images to [0, 1] after every step; here they are clipped, which leaves images that
    are in range unchanged.
    """
    attack = MatchedAttack(
        trajectory=Start(),
        distance=GaussianKernel(layers=Falling()),
        priors=(Box(),),
        labels=Joint(),
        solver=LBFGS(lr=1.0, iterations=iterations),
        start=start,
    )
    return Repeat(attack, restarts)


def sapag_adamw(
    iterations: int = 20_000, *, lr: float = 1e-3, start: Beginning = "noise"
) -> MatchedAttack:
    """SAPAG (Wang et al. 2020), sections VI and VII, with AdamW as on ResNet-18 and on text."""
    return MatchedAttack(
        trajectory=Start(),
        distance=GaussianKernel(layers=Falling()),
        priors=(Box(),),
        labels=Joint(lr=lr),
        solver=Adam(lr=lr, iterations=iterations, decay=None, weight_decay=1e-2),
        start=start,
    )


def agic(
    iterations: int = 10_000, *, beta: float = 50.0, tv: float = 1e-4, lr: float = 0.1
) -> MatchedAttack:
    """AGIC (Xu et al. 2022), sections IV and V: layer weights and the one-batch approximation.

    For trained networks the paper takes ``beta=2, tv=1e-2``. Several updates of one client are
    reconstructed together by :mod:`leakmeter.attacks.joint`.
    """
    return MatchedAttack(
        trajectory=Start(),
        distance=Cosine(layers=ReluLinear(beta)),
        priors=(TotalVariation(tv), Box()),
        solver=Adam(lr=lr, iterations=iterations),
    )


def dlfa(iterations: int = 400, *, data: Literal["femnist", "cifar"] = "cifar") -> MatchedAttack:
    """Data Leakage in Federated Averaging (Dimitrov et al. 2022), section 5.

    ``data`` chooses between the published settings for FEMNIST and for CIFAR-100.
    """
    femnist = data == "femnist"
    order = EpochOrder(1000.0) if femnist else EpochOrder(6.075, filters=96)
    return MatchedAttack(
        trajectory=Simulation(per_epoch=True),
        distance=Euclidean(layers=Exponential(), summed=True),
        priors=(
            SquaredVariation(1e-3 if femnist else 2e-4),
            SoftBox(2.0 if femnist else 10.0),
            order,
        ),
        emphasis=Emphasis(1.0, 2.0) if femnist else Emphasis(4.0, 2.0),
        solver=Adam(
            lr=0.4 if femnist else 0.1,
            iterations=iterations,
            decay=ExponentialDecay(0.995, 10) if femnist else ExponentialDecay(0.997, 20),
        ),
    )


def sme(
    iterations: int = 1000,
    *,
    lr: float = 1.0,
    tv: float = 0.01,
    alpha: float = 0.5,
    decay: bool = True,
) -> MatchedAttack:
    """Surrogate Model Extension (Zhu et al. 2023), algorithm 1 and appendix D.

    A vision transformer is attacked with ``lr=0.1, decay=False`` (SME's public code). A stage of
    the schedule ends early when the match stops falling, which saves about a third of the paper's
    iterations.
    """
    return MatchedAttack(
        trajectory=Line(alpha=alpha, lr=1e-3),
        distance=Cosine(),
        priors=(TotalVariation(tv / 2), Box()),  # SME takes the mean over both directions
        solver=Adam(
            lr=lr,
            iterations=iterations,
            decay=StepDecay() if decay else None,
            plateau=Plateau(),
        ),
    )


def nl_sme(
    iterations: int = 1000,
    *,
    tv: float = 0.01,
    path: bool = True,
    scaling: bool = True,
    penalty: float = 0.0,
    classification: float = 0.0,
) -> MatchedAttack:
    """Non-linear SME (2025), algorithm 1: a Bezier path and scaled gradients.

    Its rates and penalties are not published; these are the best of benchmarks/nl_sme_search.py.
    The rates are so low that a ``penalty`` on deviating does not help; with higher rates it does.
    """
    return MatchedAttack(
        trajectory=Bezier(
            path=path,
            scaling=scaling,
            lr_t=1e-2,
            lr_path=1e-5,
            lr_scaling=3e-3,
            keep_path=penalty,
            keep_scaling=penalty,
            classification=classification,
        ),
        distance=Cosine(),
        priors=(TotalVariation(tv / 2), Box()),
        solver=Adam(lr=1.0, iterations=iterations, plateau=Plateau()),
    )


def nl_sme_path(iterations: int = 1000, *, tv: float = 0.01) -> MatchedAttack:
    """NL-SME with the Bezier path only: variant A of its ablation (table VI)."""
    return nl_sme(iterations, tv=tv, scaling=False)


def nl_sme_scaling(iterations: int = 1000, *, tv: float = 0.01) -> MatchedAttack:
    """NL-SME with the scaled gradients only: variant B of its ablation (table VI)."""
    return nl_sme(iterations, tv=tv, path=False)


def retrace(
    iterations: int = 300,
    *,
    lr: float = 0.4,
    tv: float = 0.01,
    nodes: int = 3,
    every: int = 25,
    damping: float = 0.1,
    relu_curvature: float = 0.05,
) -> MatchedAttack:
    """Retrace, leakmeter's own: follow the path that a replay of the client takes.

    Beyond 150 iterations, a sixth of them is spent on the end, where the path is differentiated
    through: as many rounds as fit, each of which begins with a replay.
    """
    round_ = max(1, every // 3)
    return MatchedAttack(
        trajectory=Retrace(
            nodes=nodes,
            every=every,
            grow=iterations * 3 // 4,
            unroll=iterations - max(0, iterations - 150) // (6 * round_) * round_,
            damping=damping,
        ),
        distance=Cosine(),
        priors=(TotalVariation(tv / 2), Box()),
        solver=Adam(
            lr=lr,
            relative=True,
            iterations=iterations,
            decay=LinearDecay(),
            # A third of the iterations that 0.9, 0.999 need (docs/retrace_settings.md).
            betas=(0.7, 0.99),
        ),
        relu_curvature=relu_curvature,
    )


def fedleak(
    iterations: int = 1000, *, keep: float = 0.3, share: float = 0.6, radius: float = 0.1
) -> MatchedAttack:
    """FedLeak (Fan et al. 2025): part of the gradient, flat minima.

    Its numbers are taken from ranges that third parties report; they are not verified.
    """
    return MatchedAttack(
        trajectory=Start(),
        distance=Partial(AbsoluteCosine(), keep),
        priors=(TotalVariation(1e-3), Box()),
        solver=Adam(
            lr=0.1,
            iterations=iterations,
            decay=CosineDecay(),
            look_ahead=LookAhead(share, radius),
        ),
    )


def auto(iterations: int = 300, *, seconds: float = 600.0) -> Auto:
    """Whatever fits the update, strongest first; the best by replay score is kept.

    ``iterations`` are Retrace's; the other attacks' are proportional to them. IG and SME use
    Retrace's step sizes here, not those of their papers, and IG uses its relu_curvature. One
    gradient is matched exactly in the end, so IG need not smooth much unless many images share it.
    """
    some = max(1, iterations // 2)
    sharp = retrace(max(1, iterations * 3 // 4), tv=0.004)
    line = replace(sme(some), solver=retrace(some).solver)
    point = replace(
        retrace(4 * iterations),
        trajectory=Start(),
        priors=(TotalVariation(1e-4, summed=True), Box()),
    )
    return Auto(
        seconds=seconds,
        rough=(
            Candidate("sme", line, many_steps, "needs no settings of the client"),
            Candidate("retrace", retrace(some), many_steps, "replays what was inferred first"),
        ),
        candidates=(
            Candidate("closed_form", closed_form(), computable, "exact for one example"),
            Candidate("retrace", retrace(iterations), replayable, "replays the client's path"),
            Candidate("retrace_sharp", sharp, replayable, "replays it, smooths less", least=150),
            Candidate("sme", line, not_replayable, "needs no replay"),
            Candidate("sapag", sapag(iterations), smooth_gradient, "for smooth networks"),
            Candidate("ig", point, one_gradient, "for one gradient"),
            Candidate("ig_signed", ig(24 * iterations), deep_gradient, "for deep networks"),
        ),
    )


def closed_form() -> ClosedForm:
    """Closed form (Geiping et al. 2020, proposition 3.1): exact, no search, one example."""
    return ClosedForm()


RECIPES: dict[str, Callable[..., Attack]] = {
    recipe.__name__: recipe
    for recipe in (
        auto,
        closed_form,
        dlg,
        dlg_adam,
        idlg,
        ig,
        ig_fedavg,
        sapag,
        sapag_adamw,
        agic,
        dlfa,
        sme,
        nl_sme,
        fedleak,
        retrace,
        # Ablations of the papers: not to attack with, but to see what each part is good for.
        ig_l2,
        ig_lbfgs,
        nl_sme_path,
        nl_sme_scaling,
    )
}
"""Every recipe by its name on the command line and in scenarios; ablations come last."""

ABLATIONS = ("ig_l2", "ig_lbfgs", "nl_sme_path", "nl_sme_scaling")
"""The recipes that only show what a part of another one is good for."""

__all__ = ["ABLATIONS", "RECIPES", *RECIPES]


def __dir__() -> list[str]:
    return __all__
