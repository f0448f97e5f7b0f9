"""A scenario file: what to simulate and how to attack it, validated before any work starts."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_type_hints

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from leakmeter import data, models
from leakmeter.attacks.attack import Attack
from leakmeter.attacks.compiling import Compiling
from leakmeter.attacks.papers import RECIPES
from leakmeter.data.constants import CONSTANTS
from leakmeter.errors import LeakmeterError, unknown, validation_errors
from leakmeter.federated.defenses import DEFENSES
from leakmeter.federated.defenses.base import Defense
from leakmeter.update import Normalization, Protocol

AUTO = "auto"
"""The value that stands for the data set's usual normalization."""

MOST_SETTINGS = 10_000
"""The most combinations of varied values in one scenario."""

MOST_NODES = 100_000
"""The most values in a scenario file; what an alias stands for counts each time."""

Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _model_name(name: str) -> str:
    if ":" not in name:
        models.describe(name)
    return name


def _source(spec: str) -> str:
    if Path(spec).is_dir() and spec not in data.names():
        raise ValueError(f"for a folder of images write folder:{spec}")
    data.describe(spec.partition(":")[0])
    return spec


def _normalization(value: Any) -> str | Normalization | None:
    if isinstance(value, str) and value != AUTO:
        data.normalization(value)
    if value is None or isinstance(value, str):
        return value
    try:
        return TypeAdapter(Normalization).validate_python(value)
    except ValidationError:
        raise ValueError("give a data set's name, [means, stds] per channel, or null") from None


OLD_NAMES = {
    "defences": "defenses",
    "grey": "gray",
    "quantise": "quantize",
    "switching": "relu_curvature",
}
"""Names of fields, options, defenses and values before version 0.2, which are still accepted."""


def _renamed(name: Any) -> Any:
    return OLD_NAMES.get(name, name) if isinstance(name, str) else name


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Named(_Part):
    """A part of which the name alone may be given."""

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {next(iter(cls.model_fields)): value} if isinstance(value, str) else value


class ModelPart(_Named):
    """The network: a built-in name or ``package.module:factory``, and the seed of its weights."""

    name: Annotated[str, AfterValidator(_model_name)] = "cnn-cifar"
    seed: Seed = 0


class DataPart(_Named):
    """The images: a data set's spec (see ``leakmeter list datasets``) and their side in pixels."""

    source: Annotated[str, AfterValidator(_source)] = "photos"
    size: PositiveInt | None = None


class TrainingPart(_Part):
    """How clients train locally; the fields of :class:`~leakmeter.update.Protocol`."""

    epochs: PositiveInt = 1
    batch_size: PositiveInt | None = None
    lr: PositiveFloat = 0.004
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0)
    batchnorm: Literal["eval", "train"] = "eval"
    normalize: Annotated[str | Normalization | None, PlainValidator(_normalization)] = AUTO

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse settings that a client would refuse, before any work starts."""
        fields = self.model_dump(include=TrainingPart.model_fields.keys() - {"normalize"})
        pair = None if isinstance(self.normalize, str) else self.normalize
        try:
            Protocol.model_validate(fields | {"normalize": pair})
        except ValidationError as error:
            raise ValueError(validation_errors(error, Protocol)[0]) from None
        return self


class ClientPart(TrainingPart):
    """The clients under attack.

    Attributes:
        count: how many clients there are, each with its own data.
        examples: how many images each has.
        pick: which images: the ``first`` ones in order, ``random`` ones, or those of one
            ``writer`` each.
        shares: what a client sends: ``weights`` after local training, or one ``gradient``.
    """

    count: PositiveInt = 1
    examples: PositiveInt = 8
    pick: Literal["first", "random", "writer"] = "random"
    shares: Literal["weights", "gradient"] = "weights"


class FederationPart(TrainingPart):
    """Rounds of federated averaging that come before the attack, on the other images.

    Attributes:
        rounds: how many rounds there are.
        clients: how many clients share the data; with ``split: writer`` there is one per writer.
        split: ``iid``, ``dirichlet`` (with ``concentration``) or ``writer``.
        participation: probability that a client takes part in a round.
    """

    rounds: PositiveInt
    clients: PositiveInt = 10
    split: Literal["iid", "dirichlet", "writer"] = "iid"
    concentration: PositiveFloat = 0.5
    participation: float = Field(default=1.0, gt=0, le=1)


def resolved_options(
    name: str, factory: Callable[..., object], given: dict[str, Any]
) -> dict[str, Any]:
    """Return all keyword arguments of ``factory``: the checked ``given`` ones and its defaults."""
    hints, options = get_type_hints(factory), {}
    if inspect.isclass(factory):
        hints = get_type_hints(factory.__init__)
    parameters = inspect.signature(factory).parameters
    given = {_renamed(option): _renamed(value) for option, value in given.items()}
    for option in given:
        if option not in parameters:
            raise unknown(f"option of {name}", option, parameters)
    for option, parameter in parameters.items():
        value = given.get(option, parameter.default)
        if value is parameter.empty:
            raise ValueError(f"options.{option}: {name} needs it")
        try:
            options[option] = TypeAdapter(hints[option]).validate_python(value)
        except ValidationError as error:
            reason = validation_errors(error, BaseModel)[0]
            raise ValueError(f"options.{option}: {reason}") from None
    factory(**options)
    return options


class AttackPart(_Named):
    """One attack: a recipe's name, its options, and what the attacker knows.

    Attributes:
        name: the name of the recipe (see ``leakmeter list attacks``).
        label: what the report calls it; the name by default.
        labels: ``recovered`` from the update, or ``known`` to the attacker (an assumption).
        aware: whether the attacker uses what it knows about how updates are encoded.
        options: keyword arguments of the recipe, such as ``iterations``.
    """

    name: str
    label: str = ""
    labels: Literal["recovered", "known"] = "recovered"
    aware: bool = True
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        """Check the options against the recipe's signature and fill in its defaults."""
        if self.name not in RECIPES:
            raise unknown("attack", self.name, RECIPES)
        options = resolved_options(self.name, RECIPES[self.name], self.options)
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "label", self.label or self.name)
        return self

    def build(self) -> Attack:
        """Build the recipe with these options."""
        return RECIPES[self.name](**self.options)


class DefensePart(_Part):
    """One defense: its name (see ``leakmeter list defenses``) and its options."""

    name: str
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        """Check the options against the defense's fields and fill in its defaults."""
        object.__setattr__(self, "name", _renamed(self.name))
        if self.name not in DEFENSES:
            raise unknown("defense", self.name, DEFENSES)
        options = resolved_options(self.name, DEFENSES[self.name], self.options)
        object.__setattr__(self, "options", options)
        return self

    def build(self) -> Defense:
        """Build the defense with these options."""
        return DEFENSES[self.name](**self.options)


class Protection(_Part):
    """What clients do against leakage: some defenses in order, or nothing.

    In a scenario it is ``none``, a defense's name, ``{name: ..., options: ...}``, or several as
    ``{label: ..., parts: [...]}``.

    Attributes:
        label: what the report calls it; by default the names and the given options.
        parts: the defenses.
    """

    label: str
    parts: tuple[DefensePart, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _spelt_out(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"parts": [] if value == NONE else [{"name": value}]}
        if not isinstance(value, dict):
            return value
        if "name" in value:
            inner = {key: value[key] for key in ("name", "options") if key in value}
            others = {key: value[key] for key in value if key not in inner}
            value = {**others, "parts": [inner]}
        return {"label": _described(value.get("parts")), **value}

    @model_validator(mode="after")
    def _called_rightly(self) -> Self:
        if self.parts and self.label == NONE:
            raise ValueError("label: none is what the absence of defenses is called")
        return self

    def build(self) -> tuple[Defense, ...]:
        """Build the defenses, in order."""
        return tuple(part.build() for part in self.parts)


NONE = "none"
"""The name for the absence of defenses."""


def _described(parts: Any) -> str:
    """Describe the defenses by name, each with the options given to it."""
    words = []
    for part in parts if isinstance(parts, list | tuple) else ():
        if isinstance(part, dict):
            options = part.get("options")
            given = options.items() if isinstance(options, dict) else ()
            words.append(" ".join([str(part.get("name")), *(f"{k}={v}" for k, v in given)]))
    return " + ".join(words) or NONE


class UtilityPart(_Part):
    """Federated training that shows what a defense costs, with the clients' own settings.

    The images that no attacked client has are split into a test set and clients of
    ``client.examples`` images each.

    Attributes:
        rounds: rounds of federated averaging.
        clients: how many clients take part, at most as many as there are images for.
        test: share of the images kept for the test.
        seeds: how often the training is repeated, each time with another split.
    """

    rounds: PositiveInt = 10
    clients: PositiveInt = 10
    test: float = Field(default=0.3, gt=0, lt=1)
    seeds: PositiveInt = 1


class Scenario(_Part):
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
    vary: dict[str, tuple[Any, ...]] = {}
    utility: UtilityPart | None = None
    lpips: Path | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_old(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {_renamed(field): content for field, content in value.items()}

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
