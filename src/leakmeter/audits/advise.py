"""Finds which cheap change stops the leak by varying one setting at a time."""

from __future__ import annotations

import math
from typing import Any

from leakmeter.audits.parts import NONE, Protection, UtilityPart
from leakmeter.audits.run import train
from leakmeter.audits.scenario import Scenario
from leakmeter.audits.setting import Setting, Stage, sent, stage
from leakmeter.audits.utility import check_utility
from leakmeter.errors import LeakmeterError
from leakmeter.execution.executors import Cache
from leakmeter.state import norm
from leakmeter.update import Update

NOISE = (0.3, 1.0, 3.0, 10.0)
"""Norm of the noise, in units of the norm of the update."""

KEPT = (0.1, 0.01, 0.001)
"""Shares of the update's entries that are sent."""

FACTORS = (0.25, 4.0)
"""Factors for local epochs and batch size; the local data only grows."""


def knobs(scenario: Scenario) -> list[tuple[str, Scenario]]:
    """Return the scenario as it is and with one change at a time, each with its description.

    The changes cover local epochs, batch size and local data size, clipping with noise, and sparse
    updates. Each comes with the accuracy that remains.

    Args:
        scenario: a single client setting; it must neither vary anything nor name defenses.
    """
    if scenario.vary or scenario.defenses != (Protection(label=NONE),):
        raise LeakmeterError("advise turns the knobs itself: take vary and defenses out")
    base = scenario.model_copy(update={"utility": scenario.utility or UtilityPart()})
    cache, setting, utility = Cache(), Setting.of(base), base.utility or UtilityPart()
    on = cache.get(stage, setting)
    on.check(())
    check_utility(on, utility)
    train([("", base)], cache)
    update = cache.get(sent, setting, (), 0, False).update
    return [("", base), *_settings(base, on, utility), *_defended(base, update)]


def _settings(base: Scenario, on: Stage, utility: UtilityPart) -> list[tuple[str, Scenario]]:
    """Return variants that train differently."""
    client = base.client
    batch = min(client.batch_size or client.examples, client.examples)
    changes: list[tuple[str, int, int]] = []
    for factor in FACTORS:
        changes.append(("epochs", max(1, round(factor * client.epochs)), client.epochs))
        size = min(max(1, round(factor * batch)), client.examples)
        changes.append(("batch_size", size, batch))
    more = round(FACTORS[-1] * client.examples)
    if more * client.count < len(on.dataset) * (1 - utility.test) / 2:
        changes.append(("examples", more, client.examples))
    return [
        (f"{field}={value}", _changed(base, {"client": {field: value}}))
        for field, value, today in dict.fromkeys(changes)
        if value != today
    ]


def _defended(base: Scenario, update: Update) -> list[tuple[str, Scenario]]:
    """Return variants that send differently."""
    names = [name for name, tensor in update.before.items() if tensor.is_floating_point()]
    moved = update.observed(names)
    total, size = norm(moved).item(), sum(tensor.numel() for tensor in moved.values())
    clip = float(f"{total:.2g}")
    multipliers = [float(f"{ratio / math.sqrt(size):.2g}") for ratio in NOISE]
    parts: list[dict[str, Any]] = [
        {
            "label": f"noise {ratio:g} x the update (clip={clip:g}, multiplier={multiplier:g})",
            "name": "noise",
            "options": {"clip": clip, "multiplier": multiplier},
        }
        for ratio, multiplier in zip(NOISE, multipliers, strict=True)
    ]
    parts += [{"name": "top_k", "options": {"keep": keep}} for keep in KEPT]
    return [("", _changed(base, {"defenses": [part]})) for part in parts]


def _changed(base: Scenario, change: dict[str, Any]) -> Scenario:
    """Return ``base`` with some fields changed."""
    content = base.model_dump(mode="json")
    for field, value in change.items():
        content[field] = {**content[field], **value} if isinstance(value, dict) else value
    return Scenario.model_validate(content)
