"""All defences by the name that scenarios and the command line use."""

from __future__ import annotations

from leakscope.federated.defences.aggregation import SecureAggregation
from leakscope.federated.defences.augment import Augment
from leakscope.federated.defences.base import Defence
from leakscope.federated.defences.compress import Prune, Quantise, TopK
from leakscope.federated.defences.dp import DPSGD
from leakscope.federated.defences.dropout import GradientDropout
from leakscope.federated.defences.noise import UpdateNoise
from leakscope.federated.defences.parts import Freeze, LoRA, Withhold
from leakscope.federated.defences.precode import Precode
from leakscope.federated.defences.soteria import Soteria

DEFENCES: dict[str, type[Defence]] = {
    "top_k": TopK,
    "prune": Prune,
    "quantise": Quantise,
    "noise": UpdateNoise,
    "dp_sgd": DPSGD,
    "soteria": Soteria,
    "precode": Precode,
    "dropout": GradientDropout,
    "augment": Augment,
    "secure_aggregation": SecureAggregation,
    "freeze": Freeze,
    "withhold": Withhold,
    "lora": LoRA,
}
"""The first line of each docstring says what it is and where it comes from."""
