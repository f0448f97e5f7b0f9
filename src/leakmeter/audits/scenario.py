"""A scenario file: what to simulate and how to attack it, validated before any work starts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import (
    Field,
    ValidationError,
    model_validator,
)

from leakmeter.attacks.compiling import Compiling
from leakmeter.audits.parts import (
    AUTO,
    MOST_NODES,
    MOST_SETTINGS,
    NONE,
    AttackPart,
    ClientPart,
    DataPart,
    FederationPart,
    ModelPart,
    Part,
    Protection,
    Seed,
    UtilityPart,
    renamed,
)
from leakmeter.data.constants import CONSTANTS
from leakmeter.errors import LeakmeterError, validation_errors


class Scenario(Part):
    """A complete, reproducible description of an audit.

    Attributes:
        name: title of the report.
        seed: decides which images the clients get, their order, and every attack's start.
        device: where to compute: ``cpu``, ``cuda``, ``mps``.
        compiling: whether to compile the steps of attacks: ``never``, ``always``, or ``auto`` when
            that is expected to save time. That depends on timing, so last bits may vary.
        model: the network that clients receive.
        data: the images they hold.
        client: the clients under attack.
        federation: training that comes before, or ``None`` for a fresh network.
        attacks: the attacks tried on every client.
        defenses: what clients do against them; each is tried by itself.
        vary: lists of values by the path of their field, such as ``client.epochs``; all
            combinations are tried.
        utility: training that measures the accuracy each defense leaves, or ``None``.
        lpips: path of AlexNet's weights for the LPIPS metric, or ``None`` to do without.
    """

    name: str = "audit"
    seed: Seed = 0
    device: str = "cpu"
    compiling: Compiling = "never"
    model: ModelPart = ModelPart()
    data: DataPart = DataPart()
    client: ClientPart = ClientPart()
    federation: FederationPart | None = None
    attacks: tuple[AttackPart, ...] = (AttackPart(name="auto"),)
    defenses: tuple[Protection, ...] = (Protection(label=NONE),)
    vary: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    utility: UtilityPart | None = None
    lpips: Path | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_old(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {renamed(field): content for field, content in value.items()}

    @model_validator(mode="after")
    def _resolve_normalization(self) -> Scenario:
        """Replace ``auto`` by the data set's name if it has constants, else by the identity."""
        if self.vary:  # it may be the data set that varies
            return self
        kind = self.data.source.partition(":")[0]
        usual = kind if kind in CONSTANTS else None
        for name in ("client", "federation"):
            part = getattr(self, name)
            if part is not None and part.normalize == AUTO:
                object.__setattr__(self, name, part.model_copy(update={"normalize": usual}))
        return self

    @model_validator(mode="after")
    def _distinct(self) -> Scenario:
        for kind in ("attacks", "defenses"):
            labels = [part.label for part in getattr(self, kind)]
            if not labels:
                raise ValueError(f"{kind} is empty: name at least one, or leave it out")
            for label in labels:
                if labels.count(label) > 1:
                    raise ValueError(f"{kind}: two are called {label!r}: give one another label")
        return self

    @model_validator(mode="after")
    def _variable(self) -> Scenario:
        """Every combination of varied values must be a scenario of its own."""
        for path, values in self.vary.items():
            if path.split(".")[0] not in ("model", "data", "client", "federation"):
                raise ValueError(f"vary.{path}: vary fields of model, data, client or federation")
            if not values:
                raise ValueError(f"vary.{path}: give a list of values")
            if len({repr(value) for value in values}) < len(values):
                raise ValueError(f"vary.{path}: a value is listed twice")
        if (count := math.prod(map(len, self.vary.values()))) > MOST_SETTINGS:
            raise ValueError(f"vary: {count} combinations are more than {MOST_SETTINGS}: split it")
        self.settings()
        return self

    def settings(self) -> list[tuple[str, Scenario]]:
        """Return every combination of the varied values: its name and its scenario."""
        if not self.vary:
            return [("", self)]
        plain = self.model_dump(mode="json", exclude={"vary"})
        found = []
        for values in itertools.product(*self.vary.values()):
            content = plain
            for path, value in zip(self.vary, values, strict=True):
                content = _with(content, path.split("."), value)
            words = [
                f"{path.split('.', 1)[-1]}={v}" for path, v in zip(self.vary, values, strict=True)
            ]
            try:
                found.append((", ".join(words), Scenario.model_validate(content)))
            except ValidationError as error:
                raise ValueError(f"vary: {validation_errors(error, Scenario)[0]}") from None
        return found

    @classmethod
    def load(cls, path: str | Path) -> Scenario:
        """Read a YAML file; every mistake in it is reported at once, each with its path."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            _check_size(yaml.compose(text, yaml.SafeLoader))
            content = yaml.safe_load(text)
        except OSError as error:
            raise LeakmeterError(f"cannot read {path}: {error.strerror}") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise LeakmeterError(f"{path} is not YAML: {reason}") from None
        if not isinstance(content, dict):
            raise LeakmeterError(f"{path} must hold fields such as model:, data:, attacks:")
        return cls.of(content, f"{path}: ")

    @classmethod
    def of(cls, content: Mapping[str, Any], where: str = "") -> Scenario:
        """Check what a file says, or a dictionary like it."""
        try:
            return cls.model_validate(dict(content))
        except ValidationError as error:
            found = validation_errors(error, cls)
            raise LeakmeterError("\n".join(f"{where}{line}" for line in found)) from None

    def dump(self) -> str:
        """Return the scenario as YAML with every default filled in."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def _check_size(root: yaml.Node | None) -> None:
    """Refuse a file whose aliases expand too far, or that contains itself."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node | None) -> int:
        if node is None or not isinstance(node.value, list):
            return 1
        if id(node) not in sizes:
            sizes[id(node)] = MOST_NODES  # until it is known: what contains itself never is
            parts = [part for pair in node.value for part in (pair if _is_pair(pair) else (pair,))]
            sizes[id(node)] = 1 + sum(map(size, parts))
        return sizes[id(node)]

    if size(root) > MOST_NODES:
        raise ValueError(f"it holds more than {MOST_NODES} values")


def _is_pair(part: yaml.Node | tuple[yaml.Node, yaml.Node]) -> bool:
    return isinstance(part, tuple)


def _with(content: Any, path: list[str], value: Any) -> Any:
    """Return ``content`` with another value at ``path``."""
    if not path:
        return value
    inner = content if isinstance(content, dict) else {}
    return {**inner, path[0]: _with(inner.get(path[0]), path[1:], value)}
