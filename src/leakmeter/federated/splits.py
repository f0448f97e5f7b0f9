"""Who holds which examples. Every split is a list of index tensors, one per client."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from leakmeter.errors import LeakmeterError


def iid(count: int, clients: int, *, seed: int = 0) -> list[Tensor]:
    """``count`` examples dealt at random into ``clients`` parts of (almost) equal size."""
    if not 1 <= clients <= count:
        raise LeakmeterError(f"clients is {clients}: use 1 to {count}, the number of examples")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return list(order.tensor_split(clients))


def dirichlet(
    labels: Tensor, clients: int, *, concentration: float = 0.5, seed: int = 0
) -> list[Tensor]:
    """Split each class by proportions from a Dirichlet distribution (Hsu et al. 2019).

    Args:
        labels: [N] integers.
        clients: how many parts; those that would get nothing take one example of the largest.
        concentration: small means few classes per client, large approaches :func:`iid`.
        seed: of the draw.
    """
    if not 1 <= clients <= len(labels):
        raise LeakmeterError(
            f"clients is {clients}: use 1 to {len(labels)}, the number of examples"
        )
    if concentration <= 0:
        raise LeakmeterError(f"concentration is {concentration}: use a number above 0")
    rng = np.random.default_rng(seed)
    parts: list[list[int]] = [[] for _ in range(clients)]
    for label in labels.unique().tolist():
        members = rng.permutation((labels == label).nonzero().flatten().numpy())
        shares = rng.dirichlet([concentration] * clients).cumsum()[:-1]
        cuts = (shares * len(members)).astype(int)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.extend(piece.tolist())
    for part in parts:
        if not part:
            part.append(max(parts, key=len).pop())
    return [torch.tensor(part) for part in parts]


def by_writer(writer: Tensor) -> list[Tensor]:
    """One part per value of ``writer`` [N], as FEMNIST is federated."""
    return [(writer == who).nonzero().flatten() for who in writer.unique()]
