"""All defenses by the name that scenarios and the command line use."""

from __future__ import annotations

from leakmeter.federated.defenses.aggregation import SecureAggregation
from leakmeter.federated.defenses.augment import Augment
from leakmeter.federated.defenses.base import Defense
from leakmeter.federated.defenses.compress import Prune, Quantize, TopK
from leakmeter.federated.defenses.dp import DPSGD
from leakmeter.federated.defenses.dropout import GradientDropout
from leakmeter.federated.defenses.noise import UpdateNoise
from leakmeter.federated.defenses.parts import Freeze, LoRA, Withhold
from leakmeter.federated.defenses.precode import Precode
from leakmeter.federated.defenses.soteria import Soteria

DEFENSES: dict[str, type[Defense]] = {
    "top_k": TopK,
    "prune": Prune,
    "quantize": Quantize,
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
