"""Measures what a defense costs: the accuracy that remains."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from leakmeter.audits.parts import UtilityPart
from leakmeter.audits.setting import Defenses, Stage, training
from leakmeter.data import Dataset
from leakmeter.errors import LeakmeterError
from leakmeter.federated import Client, federate
from leakmeter.federated.local import answer, normalized
from leakmeter.judge import Utility

Follow = Callable[[int, int], None]
"""Called with (done, total) rounds of training."""


def measured_utility(
    stage: Stage, defenses: Defenses, part: UtilityPart, follow: Follow | None = None
) -> Utility:
    """Measure the accuracy of a network trained by such clients, on images none of them had.

    The network starts afresh, even if the attacked clients join later: by then it would have seen
    all images.
    """
    # Secure aggregation does not change the sum of the updates.
    defenses = tuple(each for each in defenses if each.clients == 1)
    pool, setting = stage.pool, stage.setting
    began, accuracies = time.perf_counter(), []
    for repeat in range(part.seeds):
        seed = setting.seed + repeat

        def on_round(done: int, total: int, repeat: int = repeat) -> None:
            if follow is not None:
                follow(repeat * total + done, part.seeds * total)

        test, clients = _shared_out(pool, part, setting.client.examples, seed)
        model = federate(
            stage.fresh_network,
            [(each.images, each.labels) for each in clients],
            rounds=part.rounds,
            seed=seed,
            on_round=on_round,
            defenses=defenses,
            **training(setting.client),
        )
        accuracies.append(_accuracy(model, test, stage))
    counts = torch.bincount(pool.labels)
    return Utility(
        accuracy=accuracies,
        chance=(counts.max() / counts.sum()).item(),
        test_images=len(test),
        rounds=part.rounds,
        clients=len(clients),
        seconds=time.perf_counter() - began,
    )


def check_utility(stage: Stage, part: UtilityPart) -> None:
    """Refuse training that cannot be done, before any work starts."""
    if stage.setting.client.shares == "gradient":
        raise LeakmeterError(
            "utility: clients that share one gradient are not trained here: take utility out, or "
            "let client.shares be weights"
        )
    _shared_out(stage.pool, part, stage.setting.client.examples, stage.setting.seed)


def _shared_out(
    pool: Dataset, part: UtilityPart, examples: int, seed: int
) -> tuple[Dataset, list[Dataset]]:
    """Split into a test set and what each client has."""
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))
    kept = max(1, round(part.test * len(pool)))
    shares = [share for share in order[kept:].split(examples) if len(share) == examples]
    if not shares:
        raise LeakmeterError(
            f"utility: {len(pool) - kept} images are left for training, but a client has "
            f"{examples}: lower utility.test or client.examples"
        )
    return pool.select(order[:kept]), [pool.select(each) for each in shares[: part.clients]]


def _accuracy(model: nn.Module, test: Dataset, stage: Stage) -> float:
    """Return the share of the test images that the network classifies correctly."""
    client = Client(model, test.images, test.labels, **training(stage.setting.client))
    model.eval()
    with torch.no_grad():
        answers = [
            answer(model, normalized(images, client.protocol)).argmax(1)
            for images in client.images.split(256)
        ]
    return (torch.cat(answers) == client.labels).double().mean().item()
