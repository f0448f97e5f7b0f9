"""What a defence costs: the accuracy that is left, the bytes that are sent, what is proven."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from leakscope.audit.evidence import Configuration, Utility
from leakscope.audit.scenario import Protection, UtilityPart
from leakscope.audit.stage import Stage, training
from leakscope.data import Dataset
from leakscope.errors import LeakscopeError
from leakscope.federated import Client, federate
from leakscope.federated.local import normalized

Follow = Callable[[int, int], None]
"""Called with (done, total) rounds of training."""


def configuration(
    stage: Stage,
    setting: str,
    protection: Protection,
    client: Client,
    bytes_sent: int,
    utility: Utility | None,
) -> Configuration:
    """What distinguishes one row of an audit.

    Args:
        stage: the setting.
        setting: what its varied values are called.
        protection: what its clients do against leakage.
        client: one of them.
        bytes_sent: by it.
        utility: what can be learned from such clients, if that was measured.
    """
    defences = client.defences
    rounds = 1 if utility is None else utility.rounds
    proven = [each.guarantee(client.protocol, len(client.images), rounds) for each in defences]
    names = [part.name for part in protection.parts]
    aware = any(attack.aware for attack in stage.scenario.attacks)
    return Configuration(
        setting=setting,
        defence=protection.label,
        parts=tuple(names),
        known=tuple(defence.known for defence in defences),
        adaptive=tuple(each.adaptive for each in defences if each.adaptive and aware),
        ignored=tuple(
            name
            for name, each in zip(names, defences, strict=True)
            if not (each.adaptive and aware)
        ),
        bytes_sent=bytes_sent,
        guarantee=next((each for each in proven if each is not None), None),
        rounds=rounds,
        utility=utility,
    )


def measured_utility(
    stage: Stage, protection: Protection, part: UtilityPart, follow: Follow | None = None
) -> Utility:
    """Accuracy of a network trained by clients of this configuration, on images none of them had.

    It starts afresh, even where the attacked clients join later: by then the network has seen all
    images.
    """
    # Adding up updates in secret changes nothing about their sum.
    defences = tuple(each for each in protection.build() if each.clients == 1)
    pool, scenario = stage.pool, stage.scenario
    began, accuracies = time.perf_counter(), []
    for repeat in range(part.seeds):
        seed = scenario.seed + repeat

        def on_round(done: int, total: int, repeat: int = repeat) -> None:
            if follow is not None:
                follow(repeat * total + done, part.seeds * total)

        test, clients = _shared_out(pool, part, scenario.client.examples, seed)
        model = federate(
            stage.fresh_network,
            [(each.images, each.labels) for each in clients],
            rounds=part.rounds,
            seed=seed,
            on_round=on_round,
            defences=defences,
            **training(scenario.client),
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
    """Refuse a training that could not be done, before any work starts."""
    if stage.scenario.client.shares == "gradient":
        raise LeakscopeError(
            "utility: clients that share one gradient are not trained here: take utility out, or "
            "let client.shares be weights"
        )
    _shared_out(stage.pool, part, stage.scenario.client.examples, stage.scenario.seed)


def _shared_out(
    pool: Dataset, part: UtilityPart, examples: int, seed: int
) -> tuple[Dataset, list[Dataset]]:
    """A test set, and what each client has."""
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))
    kept = max(1, round(part.test * len(pool)))
    shares = [share for share in order[kept:].split(examples) if len(share) == examples]
    if not shares:
        raise LeakscopeError(
            f"utility: {len(pool) - kept} images are left for training, but a client has "
            f"{examples}: lower utility.test or client.examples"
        )
    return pool.select(order[:kept]), [pool.select(each) for each in shares[: part.clients]]


def _accuracy(model: nn.Module, test: Dataset, stage: Stage) -> float:
    """Share of the test images that the network names rightly."""
    client = Client(model, test.images, test.labels, **training(stage.scenario.client))
    model.eval()
    with torch.no_grad():
        answers = [
            model(normalized(images, client.protocol)).argmax(1)
            for images in client.images.split(256)
        ]
    return (torch.cat(answers) == client.labels).double().mean().item()
