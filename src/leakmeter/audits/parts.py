"""The parts of a scenario, each checked by itself before any work starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_type_hints

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
from leakmeter.attacks.papers import RECIPES
from leakmeter.errors import unknown, validation_errors
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


def renamed(name: Any) -> Any:
    """Return the present name of a field, an option, a defense or a value."""
    return OLD_NAMES.get(name, name) if isinstance(name, str) else name


class Part(BaseModel):
    """Base of a scenario and its parts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Named(Part):
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


class TrainingPart(Part):
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
    given = {renamed(option): renamed(value) for option, value in given.items()}
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


class DefensePart(Part):
    """One defense: its name (see ``leakmeter list defenses``) and its options."""

    name: str
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        """Check the options against the defense's fields and fill in its defaults."""
        object.__setattr__(self, "name", renamed(self.name))
        if self.name not in DEFENSES:
            raise unknown("defense", self.name, DEFENSES)
        options = resolved_options(self.name, DEFENSES[self.name], self.options)
        object.__setattr__(self, "options", options)
        return self

    def build(self) -> Defense:
        """Build the defense with these options."""
        return DEFENSES[self.name](**self.options)


class Protection(Part):
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


class UtilityPart(Part):
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
