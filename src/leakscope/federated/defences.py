"""All defences by the name that scenarios and the command line use."""

from __future__ import annotations

from leakscope.federated.aggregation import SecureAggregation
from leakscope.federated.augment import Augment
from leakscope.federated.compress import Prune, Quantise, TopK
from leakscope.federated.defence import Defence
from leakscope.federated.dp import DPSGD
from leakscope.federated.dropout import GradientDropout
from leakscope.federated.noise import UpdateNoise
from leakscope.federated.parts import Freeze, LoRA, Withhold
from leakscope.federated.precode import Precode
from leakscope.federated.soteria import Soteria

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
