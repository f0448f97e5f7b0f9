"""All defences by the name that scenarios and the command line use."""

from __future__ import annotations

from leakmeter.federated.defences.aggregation import SecureAggregation
from leakmeter.federated.defences.augment import Augment
from leakmeter.federated.defences.base import Defence
from leakmeter.federated.defences.compress import Prune, Quantise, TopK
from leakmeter.federated.defences.dp import DPSGD
from leakmeter.federated.defences.dropout import GradientDropout
from leakmeter.federated.defences.noise import UpdateNoise
from leakmeter.federated.defences.parts import Freeze, LoRA, Withhold
from leakmeter.federated.defences.precode import Precode
from leakmeter.federated.defences.soteria import Soteria

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
