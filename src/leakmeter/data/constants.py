"""Per-channel means and standard deviations of the named sets, for images in [0, 1]."""

from __future__ import annotations

from leakmeter.errors import unknown
from leakmeter.update import Normalization

# The training split's own statistics, as commonly published. There are no published ones for
# FEMNIST and LFW: these were measured on 70 writers in LEAF's polarity (white paper) and on 400
# aligned color faces. `photos` and `faces` were measured on all of their images (a test checks
# them).
CONSTANTS: dict[str, Normalization] = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "femnist": ((0.9616,), (0.1643,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "lfw": ((0.5544, 0.4322, 0.3569), (0.2477, 0.2101, 0.2007)),
    "photos": ((0.4894, 0.3514, 0.3082), (0.2959, 0.2363, 0.2332)),
    "faces": ((0.3771,), (0.2728,)),
}


def normalization(name: str) -> Normalization:
    """(mean, std) per channel of a named set, for images in [0, 1]."""
    if name not in CONSTANTS:
        raise unknown("normalization", name, CONSTANTS)
    return CONSTANTS[name]
