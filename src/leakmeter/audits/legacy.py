"""Reads folders of version 0.1.0, which did not describe themselves, under their old names."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from leakmeter.audits.parts import NONE, Protection
from leakmeter.audits.plan import Plan, PlannedAttack, PlannedConfiguration, described
from leakmeter.audits.scenario import Scenario
from leakmeter.errors import LeakmeterError
from leakmeter.execution.store import Store
from leakmeter.federated.defenses.base import Guarantee
from leakmeter.judge import Configuration

RUN, LINES = "run.json", "plan.jsonl"
"""The request, and the file with one line for each attack on a client."""


def plan(store: Store) -> Plan:
    """Restore as much of the plan as the folder tells; the network and data are not available."""
    try:
        asked = json.loads(store.text(RUN))
        lines = [json.loads(line) for line in store.text(LINES).splitlines()]
        known = _results(store)
        if "recorded" in asked:
            return _recorded(asked, lines, known)
        return _simulated(asked, lines, known)
    except LeakmeterError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        raise LeakmeterError(
            f"{store.name} has no plan.json: give the folder of an audit"
        ) from None


def result(content: dict[str, Any]) -> dict[str, Any]:
    """Convert the numbers of a trial, which had one form for all kinds of trials."""
    for kind in ("utility", "path"):
        if content.get(kind) is not None:
            return {"kind": kind, kind: content[kind]}
    names = ("scores", "chance", "protocol", "bytes_sent", "replay")
    return {"kind": "attack", **{name: content.get(name) for name in names}}


def _results(store: Store) -> dict[str, Any]:
    """Read the folder's ``results.json``, if it has one."""
    with suppress(OSError, ValueError):
        content: dict[str, Any] = json.loads(store.text("results.json"))
        return content
    return {}


def _simulated(asked: dict[str, Any], lines: Sequence[dict[str, Any]], known: Any) -> Plan:
    scenario = Scenario.model_validate(asked["scenario"])
    settings = [(told, Scenario.model_validate(each)) for told, each in asked["settings"]]
    recipes = {part.label: part.name for _, each in settings for part in each.attacks}
    utilities = [each["trial"] for each in lines if each["trial"].startswith("utility-")]
    paths = {
        int(each["trial"].split("-")[1]): each["trial"]
        for each in lines
        if each["trial"].startswith("path-")
    }
    shares = {told: each.client.shares for told, each in settings}
    configurations = []
    for told, each in settings:
        aware = any(part.aware for part in each.attacks)
        rounds = 1 if each.utility is None else each.utility.rounds
        for protection in each.defenses:
            found = described(told, protection, aware=aware, client=None, rounds=rounds)
            found = replace(found, guarantee=_guarantee(known, found.label))
            utility = None if each.utility is None else utilities.pop(0)
            configurations.append(PlannedConfiguration(configuration=found, utility=utility))
    return Plan(
        title=scenario.name,
        command=asked["command"],
        model=scenario.model.name,
        parameters=known.get("parameters", 0),
        data=scenario.data.source,
        scenario=scenario.dump(),
        configurations=tuple(configurations),
        attacks=tuple(
            PlannedAttack(
                configuration=Configuration(each["setting"], each["defence"]).label,
                attack=each["attack"],
                recipe=recipes[each["attack"]],
                client=each["client"],
                shares=shares[each["setting"]],
                trial=each["trial"],
                baseline=each["baseline"],
                path=paths.get(each["client"]),
            )
            for each in lines
            if "baseline" in each
        ),
    )


def _guarantee(known: dict[str, Any], label: str) -> Guarantee | None:
    """Return what was proven about a configuration, according to the results."""
    for each in known.get("configurations", []):
        if each["label"] == label and each["guarantee"] is not None:
            rdp, prv = (
                math.inf if each["guarantee"][name] is None else each["guarantee"][name]
                for name in ("rdp", "prv")
            )
            return Guarantee(rdp, prv, each["guarantee"]["delta"], each["guarantee"]["protects"])
    return None


def _recorded(asked: dict[str, Any], lines: Sequence[dict[str, Any]], known: Any) -> Plan:
    request = asked["recorded"]
    attacks: list[PlannedAttack] = []
    for each in lines:
        if "baseline" in each:
            attacks.append(
                PlannedAttack(
                    configuration=each["setting"] or NONE,
                    attack=each["attack"],
                    recipe=request["attack"]["name"],
                    client=each["client"],
                    shares="weights",
                    trial=each["trial"],
                    baseline=each["baseline"],
                )
            )
        else:  # a second attempt on the previous record
            again = (*attacks[-1].again, each["trial"])
            attacks[-1] = attacks[-1].model_copy(update={"again": again})
    rows = dict.fromkeys(each["setting"] for each in lines if "baseline" in each)
    nothing = Protection(label=NONE)
    return Plan(
        title=f"Updates recorded in {request['folder'].rstrip('/').rsplit('/', 1)[-1]}",
        command=asked["command"],
        model=request["model"],
        parameters=known.get("parameters", 0),
        data=f"{len(attacks)} recorded updates",
        configurations=tuple(
            PlannedConfiguration(
                configuration=described(row, nothing, aware=True, client=None, rounds=1)
            )
            for row in rows
        ),
        attacks=tuple(attacks),
    )
