"""The attacker's side: reconstructs a client's examples from its update, without ground truth.

A matched attack is made of the parts below; ``leakmeter.papers`` has the named choices.
"""

from leakmeter.attacks.adam import Adam, LookAhead
from leakmeter.attacks.attack import Attack, RunOptions
from leakmeter.attacks.distance import (
    AbsoluteCosine,
    Cosine,
    Distance,
    Euclidean,
    GaussianKernel,
    Partial,
)
from leakmeter.attacks.labels import Automatic, Joint, Known, Labels, Single
from leakmeter.attacks.lbfgs import LBFGS
from leakmeter.attacks.matched import Emphasis, MatchedAttack, Repeat
from leakmeter.attacks.prior import (
    Box,
    EpochOrder,
    Prior,
    SoftBox,
    SquaredVariation,
    TotalVariation,
)
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.attacks.retrace import Retrace
from leakmeter.attacks.schedule import (
    CosineDecay,
    ExponentialDecay,
    LinearDecay,
    Plateau,
    StepDecay,
)
from leakmeter.attacks.simulation import Simulation
from leakmeter.attacks.solver import Moment, Phase, Solver, Variable
from leakmeter.attacks.trajectory import Bezier, Line, Start, Trajectory, both_ends
from leakmeter.state import State

__all__ = [
    "LBFGS",
    "AbsoluteCosine",
    "Adam",
    "Attack",
    "Automatic",
    "Bezier",
    "Box",
    "Cosine",
    "CosineDecay",
    "Distance",
    "Emphasis",
    "EpochOrder",
    "Euclidean",
    "ExponentialDecay",
    "GaussianKernel",
    "Joint",
    "Known",
    "Labels",
    "Line",
    "LinearDecay",
    "LookAhead",
    "MatchedAttack",
    "Moment",
    "Partial",
    "Phase",
    "Plateau",
    "Prior",
    "Problem",
    "Reconstruction",
    "Repeat",
    "Retrace",
    "RunOptions",
    "Simulation",
    "Single",
    "SoftBox",
    "Solver",
    "SquaredVariation",
    "Start",
    "State",
    "StepDecay",
    "TotalVariation",
    "Trajectory",
    "Variable",
    "both_ends",
]
