"""What crossed the wire, and what the server knows about how it came to be.

An :class:`Update` is all an attack ever sees. On disk it is one safetensors file: tensors named
``before/NAME``, ``after/NAME`` or ``gradient/NAME`` and one JSON string in the header.
"""

from __future__ import annotations

import json
import math
import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)
from torch import Tensor, nn

from leakmeter.errors import LeakmeterError, validation_errors
from leakmeter.state import State, digest, named, read_safetensors, write_safetensors

Normalization = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel; the model sees ``(image - mean) / std``."""

FORMAT_VERSION = 1


class Protocol(BaseModel):
    """How the client trained, as far as the server knows. ``None`` means unknown.

    Attributes:
        epochs: passes over the local data, E.
        batch_size: examples in a local step, B; the last one of an epoch may be smaller.
        lr: learning rate of the client's optimizer, eta.
        optimizer: ``sgd``, ``adam`` or ``adamw`` of ``torch.optim``, with the settings below.
        loss: only ``cross_entropy`` so far, with ``reduction`` and ``label_smoothing``.
        normalize: (mean, std) of each channel that the client subtracts and divides by.
        batchnorm: whether batch norm uses its running statistics (``eval``) or those of the
            batch (``train``) while the client trains.
        input_shape: (channels, height, width) of one example.
        classes: number of outputs of the network.
        sparse: whether the client left entries out of its update; they are exactly zero there.
        bits: the number of bits to which :func:`rounded` rounded each tensor, or ``None``.
        distorted: names of tensors that the client falsified; attacks should ignore them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epochs: PositiveInt | None = None
    batch_size: PositiveInt | None = None
    lr: PositiveFloat | None = None
    optimizer: Literal["sgd", "adam", "adamw"] | None = None
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    loss: Literal["cross_entropy"] = "cross_entropy"
    reduction: Literal["mean", "sum"] = "mean"
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    normalize: Normalization | None = None
    batchnorm: Literal["eval", "train"] | None = None
    input_shape: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None
    classes: PositiveInt | None = None
    sparse: bool = False
    bits: PositiveInt | None = Field(default=None, le=16)
    distorted: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Protocol:
        if self.normalize is not None:
            mean, std = self.normalize
            if len(mean) != len(std) or min(std, default=0.0) <= 0:
                raise ValueError("normalize needs one mean and one positive std per channel")
            if self.input_shape is not None and len(mean) != self.input_shape[0]:
                raise ValueError(
                    f"normalize has {len(mean)} channels, input_shape {self.input_shape[0]}"
                )
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs momentum > 0")
        return self

    def need(self, *fields: str) -> KnownProtocol:
        """Return this protocol as one whose fields are all known.

        Raises:
            LeakmeterError: if any of ``fields`` is unknown; it names the first.
        """
        known = KnownProtocol(self)
        missing = [name for name in fields if getattr(self, name) is None]
        if missing:
            raise LeakmeterError("\n".join(map(_wanted, missing)))
        return known

    @property
    def words(self) -> str:
        """A short description of what is known."""
        facts = {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "lr": self.lr,
            "momentum": self.momentum or None,
        }
        told = [f"{name} {value:g}" for name, value in facts.items() if value is not None]
        return ", ".join([*([self.optimizer] if self.optimizer else []), *told]) or "unknown"

    def __repr__(self) -> str:
        """Show the fields that differ from their defaults."""
        told = [
            f"{name}={getattr(self, name)!r}"
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != field.default
        ]
        return f"Protocol({', '.join(told)})"

    def __str__(self) -> str:
        return repr(self)

    def steps(self, num_examples: int) -> int:
        """Return the number of local steps, ``T = E * ceil(N / B)``."""
        known = self.need("epochs", "batch_size")
        return known.epochs * math.ceil(num_examples / known.batch_size)


def _wanted(field: str) -> str:
    """How to tell an unknown field of the protocol."""
    option = "--" + field.replace("_", "-")
    return (
        f"protocol.{field} is unknown but needed: give {option} (for a recorded folder --known "
        f"{field}=...) on the command line, attack(..., {field}=...) or Protocol({field}=...) in "
        "Python"
    )


class KnownProtocol:
    """A protocol whose fields are never ``None``; reading an unknown one raises an error."""

    epochs: int
    batch_size: int
    lr: float
    optimizer: Literal["sgd", "adam", "adamw"]
    normalize: Normalization
    batchnorm: Literal["eval", "train"]
    input_shape: tuple[int, int, int]
    classes: int

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._protocol, name)
        if value is None:
            raise LeakmeterError(_wanted(name))
        return value


@dataclass(frozen=True, eq=False)
class Update:
    """One client's contribution, validated when it is made.

    Attributes:
        before: the whole state (parameters and buffers) that the client received; numpy arrays are
            taken as well as tensors.
        after: the whole state it sent back, or ``None`` if it sent a gradient.
        gradient: gradient of the mean loss at ``before``, by parameter name, or ``None``.
        num_examples: how many examples the client trained on, N.
        protocol: what the server knows about the training.

    Example:
        >>> import torch
        >>> before = {"fc.weight": torch.zeros(2, 3)}
        >>> after = {"fc.weight": torch.ones(2, 3)}
        >>> Update(before, after, num_examples=8, protocol=Protocol(epochs=1, lr=0.1))
        Update(weights of 8 examples, 6 numbers, epochs 1, lr 0.1)
    """

    before: State
    after: State | None = None
    gradient: State | None = None
    num_examples: int = 1
    protocol: Protocol = field(default_factory=Protocol)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_examples", operator.index(self.num_examples))
        if isinstance(self.protocol, dict):
            object.__setattr__(self, "protocol", Protocol(**self.protocol))
        if self.num_examples < 1:
            raise LeakmeterError(
                f"num_examples is {self.num_examples}: an update needs at least one example"
            )
        for part, state in self._parts().items():
            if isinstance(state, dict) and any(isinstance(v, np.ndarray) for v in state.values()):
                object.__setattr__(self, part, {n: torch.as_tensor(v) for n, v in state.items()})
        for part, state in self._parts().items():
            if not isinstance(state, dict) or not all(
                isinstance(tensor, Tensor) for tensor in state.values()
            ):
                raise LeakmeterError(f"{part} must be a state dict: tensors by name")
        if not self.before:
            raise LeakmeterError("before has no tensors: give the state the client received")
        if (self.after is None) == (self.gradient is None):
            raise LeakmeterError("give either after (the weights sent back) or gradient, not both")
        if self.after is not None:
            _same_names("after", self.after, "before", self.before)
        for part, state in self._parts().items():
            for name, tensor in state.items():
                if name not in self.before:
                    raise LeakmeterError(f"{part}/{name} has no counterpart in before")
                if tensor.shape != self.before[name].shape:
                    raise LeakmeterError(
                        f"{part}/{name} has shape {tuple(tensor.shape)}, "
                        f"before/{name} has {tuple(self.before[name].shape)}"
                    )
                if part == "after" and tensor.dtype != self.before[name].dtype:
                    raise LeakmeterError(
                        f"after/{name} is {tensor.dtype}, before is {self.before[name].dtype}: "
                        "send both in the same precision"
                    )
                if tensor.is_floating_point() and not tensor.double().isfinite().all():
                    raise LeakmeterError(
                        f"{part}/{name} contains NaN or Inf: did the client's training diverge?"
                    )

    def __repr__(self) -> str:
        count, numbers = self.num_examples, sum(tensor.numel() for tensor in self.before.values())
        sent = "weights" if self.gradient is None else "gradient"
        return (
            f"Update({sent} of {count} example{'s' if count > 1 else ''}, {numbers:,} numbers, "
            f"{self.protocol.words})"
        )

    def _parts(self) -> dict[str, State]:
        parts = {"before": self.before, "after": self.after, "gradient": self.gradient}
        return {part: state for part, state in parts.items() if state is not None}

    @property
    def tensors(self) -> State:
        """Return all tensors by their names in the file."""
        return {
            f"{part}/{name}": tensor
            for part, state in self._parts().items()
            for name, tensor in state.items()
        }

    def observed(self, names: list[str]) -> State:
        """Return the direction that the attack must explain: ``u = w0 - wT``, or the gradient.

        It has the sign of a gradient in both cases.
        """
        if self.gradient is not None:
            missing = [name for name in names if name not in self.gradient]
            if missing:
                raise LeakmeterError(
                    f"gradient/{missing[0]} is missing: "
                    "the model trains it; freeze it (requires_grad_(False)) or send its gradient"
                )
            return {name: self.gradient[name] for name in names}
        returned = self.returned
        return {name: self.before[name] - returned[name] for name in names}

    @property
    def returned(self) -> State:
        """The weights that the client sent back; an error if it sent a gradient."""
        if self.after is None:
            raise LeakmeterError(
                "the update has a gradient, but weights before and after are needed"
            )
        return self.after

    def check(self, model: nn.Module) -> None:
        """Raise a :class:`LeakmeterError` unless the tensors fit ``model.state_dict()``."""
        expected = model.state_dict()
        _same_names("before", self.before, "the model", expected)
        for name, tensor in expected.items():
            if self.before[name].shape != tensor.shape:
                raise LeakmeterError(
                    f"before/{name} has shape {tuple(self.before[name].shape)}, "
                    f"the model's has {tuple(tensor.shape)}: "
                    "is it the same architecture, number of classes and input size?"
                )

    def fingerprint(self) -> str:
        """SHA-256 over every tensor and the protocol."""
        return digest(self.tensors, self._header())

    def _header(self) -> str:
        header = {
            "version": FORMAT_VERSION,
            "num_examples": self.num_examples,
            "protocol": self.protocol.model_dump(mode="json", exclude_unset=True),
        }
        return json.dumps(header, sort_keys=True)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all."""
        write_safetensors(self.tensors, {"leakmeter.update": self._header()}, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Update:
        """Read and validate a file written by :meth:`save`."""
        tensors, metadata = read_safetensors(Path(path))
        header = _parse_header(named(metadata, "update"), path)
        states: dict[str, State] = {"before": {}, "after": {}, "gradient": {}}
        for key, tensor in tensors.items():
            part, _, name = key.partition("/")
            if part not in states or not name:
                raise LeakmeterError(
                    f"{path}: unexpected tensor {key!r}: "
                    "names start with before/, after/ or gradient/"
                )
            states[part][name] = tensor
        try:
            return cls(
                before=states["before"],
                after=states["after"] or None,
                gradient=states["gradient"] or None,
                num_examples=header["num_examples"],
                protocol=Protocol.model_validate(header["protocol"]),
            )
        except ValidationError as error:
            found = validation_errors(error, Protocol)[0]
            raise LeakmeterError(f"{path}: protocol.{found}") from None
        except LeakmeterError as error:
            raise LeakmeterError(f"{path}: {error}") from None


def rounded(tensor: Tensor, bits: int) -> Tensor:
    """Round ``tensor`` to ``2^bits - 1`` even levels up to its largest magnitude, including zero.

    With one bit, only the sign remains, at the mean magnitude (Bernstein et al. 2018).
    """
    if bits == 1:
        return tensor.sign() * tensor.abs().mean()
    step: Tensor = tensor.abs().max().clamp_min(1e-30) / (2 ** (bits - 1) - 1)
    return (tensor / step).round() * step


def _parse_header(text: str | None, path: str | Path) -> dict[str, Any]:
    if text is None:
        raise LeakmeterError(
            f"{path} has no leakmeter.update header: "
            "make one with Update(before=..., after=..., num_examples=...).save(path)"
        )
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise LeakmeterError(f"{path}: the leakmeter.update header is not JSON") from None
    if not isinstance(header, dict) or header.get("version") != FORMAT_VERSION:
        version = header.get("version") if isinstance(header, dict) else header
        raise LeakmeterError(
            f"{path}: version {version!r} is not {FORMAT_VERSION}: use a matching leakmeter"
        )
    count = header.get("num_examples")
    if not isinstance(count, int) or isinstance(count, bool):
        raise LeakmeterError(f"{path}: num_examples is {count!r}, not a whole number")
    if not isinstance(header.get("protocol"), dict):
        raise LeakmeterError(f"{path}: protocol is missing from the header")
    return header


def _same_names(part: str, names: State, other: str, expected: State) -> None:
    missing = [name for name in expected if name not in names]
    extra = [name for name in names if name not in expected]
    if missing or extra:
        found = [f"{len(missing)} missing ({', '.join(missing[:3])})"] if missing else []
        found += [f"{len(extra)} unexpected ({', '.join(extra[:3])})"] if extra else []
        raise LeakmeterError(f"{part} does not match {other}: {'; '.join(found)}")
