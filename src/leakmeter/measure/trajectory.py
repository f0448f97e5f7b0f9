"""Measures how straight a client's path was: the reason one gradient can stand for many steps.

It reproduces figures 3 and 4 and table 1 of Zhu et al. 2023 (SME). All of it needs the client's own
path and data, so it describes a simulated client; an attacker can compute none of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from leakmeter.federated.client import Client
from leakmeter.federated.local import snapshot
from leakmeter.state import State, cosine
from leakmeter.update import Update

MOST_STEPS = 128
"""The most steps measured; on a longer path they are evenly spread."""

MOST_NUMBERS = 2**28
"""The most numbers in gradients kept at once (1 GiB): large networks get fewer steps."""

FEWEST_STEPS = 8
"""The fewest steps measured: two gradients always lie in a plane."""

PLACES = 21
"""Places on the line from w0 to wT, both ends included."""

_COLUMNS = 2**16


class Straightness(BaseModel):
    """How a client's weights traveled from w0 (received) to wT (sent back).

    A gradient here is that of the loss over all of the client's examples, whatever batch, momentum
    or optimizer moved the weights: the paper's ``∇w``. A mini-batch's own gradient leaves the
    plane far more.

    Attributes:
        total_steps: local steps the client made, T.
        steps: those measured, from 0; not all of them if the path is long or the network large.
        plane_shares: ``|P2 g_t| / |g_t|`` at the weights before each measured step: how much of
            the gradient lies in the plane that holds most of all of them (their two largest
            singular values, not centered).
        alphas: places on the line, ``w(alpha) = (1 - alpha) w0 + alpha wT``.
        cosines: of ``w0 - wT`` with the gradient at each of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    total_steps: int
    steps: list[int] = Field(min_length=1)
    plane_shares: list[float] = Field(min_length=1)
    alphas: list[float] = Field(min_length=1)
    cosines: list[float] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> Straightness:
        if len(self.steps) != len(self.plane_shares) or len(self.alphas) != len(self.cosines):
            raise ValueError("each step needs one share, and each alpha one cosine")
        return self

    @property
    def thinned(self) -> bool:
        """Whether some steps were left out."""
        return len(self.steps) < self.total_steps

    @property
    def least_plane_share(self) -> float:
        """The plane share at the step that leaves the plane most."""
        return min(self.plane_shares)

    @property
    def best_alpha(self) -> float:
        """The alpha where the gradient agrees best with the whole update."""
        return self.alphas[self.cosines.index(self.best_cosine)]

    @property
    def best_cosine(self) -> float:
        """The cosine of the gradient with the update at that alpha."""
        return max(self.cosines)

    @property
    def start_cosine(self) -> float:
        """The cosine of the update with the gradient at the received weights."""
        return self.cosines[0]


def straightness(
    client: Client, on_progress: Callable[[int, int], None] | None = None
) -> Straightness:
    """Measure how straight the path of ``client`` is; see :func:`walk`."""
    return walk(client, on_progress)[1]


def walk(
    client: Client, on_progress: Callable[[int, int], None] | None = None
) -> tuple[Update, Straightness]:
    """Let ``client`` train, measure the path its weights take, and also return what it sends.

    Costs the training, and one gradient over all examples at each measured step and each place on
    the line.

    Args:
        client: not changed.
        on_progress: called with (done, total) as the work goes on.
    """
    total = client.protocol.steps(len(client.images))
    size = sum(p.numel() for p in client.model.parameters() if p.requires_grad)
    rows = {step: row for row, step in enumerate(measured_steps(total, size))}
    gradients = torch.empty((len(rows), size))
    probe = _Probe(client)
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(done, total + 1 + PLACES)

    def visit(state: State) -> None:
        if done in rows:
            gradients[rows[done]] = torch.cat(
                [tensor.flatten() for tensor in probe.gradient(state).values()]
            )
        advance()

    visit(snapshot(client.model))
    update = client.train(on_step=visit)
    alphas = [place / (PLACES - 1) for place in range(PLACES)]
    cosines = []
    for alpha in alphas:
        gradient = probe.gradient(_between(update, alpha))
        moved = update.observed(list(gradient))
        cosines.append(cosine(_double(moved), _double(gradient)).item())
        advance()
    path = Straightness(
        total_steps=total,
        steps=list(rows),
        plane_shares=plane_shares(gradients),
        alphas=alphas,
        cosines=cosines,
    )
    return update, path


def measured_steps(total: int, size: int) -> list[int]:
    """Choose the steps to measure, evenly spread, for a network with ``size`` numbers."""
    affordable = max(FEWEST_STEPS, MOST_NUMBERS // max(size, 1))
    count = min(total, MOST_STEPS, affordable)
    spread = torch.linspace(0, total - 1, count, dtype=torch.float64)
    return [round(step) for step in spread.tolist()]


def plane_shares(gradients: Tensor) -> list[float]:
    """Share of each row's norm in the plane of the two largest singular values of all rows.

    Works on the [T, T] inner products, so it needs no second copy of ``gradients``.

    Args:
        gradients: [T, |w|]; a row of zeros counts as lying in the plane.
    """
    gram = torch.zeros((len(gradients),) * 2, dtype=torch.float64)
    for columns in gradients.split(_COLUMNS, dim=1):
        exact = columns.double()
        gram += exact @ exact.T
    # gradients = V S U', so row t has the coordinates V[t, i] s_i along the component i.
    values, vectors = torch.linalg.eigh(gram)
    inside = (vectors[:, -2:].square() * values[-2:].clamp_min(0)).sum(1)
    whole = gram.diagonal()
    shares = torch.where(whole > 0, inside / whole, 1.0).clamp(0, 1).sqrt()
    return [float(share) for share in shares]


class _Probe:
    """The gradient over all of a client's examples, at any weights."""

    def __init__(self, client: Client) -> None:
        self._client = client.without_defenses()
        self._client.model = self._model = copy.deepcopy(client.model)

    def gradient(self, state: State) -> State:
        """Return the gradient of what the client minimizes: its loss, and coupled weight decay."""
        self._model.load_state_dict(state)
        found = self._client.gradient().gradient or {}
        protocol = self._client.protocol
        decay = 0.0 if protocol.optimizer == "adamw" else protocol.weight_decay
        return {name: tensor + decay * state[name] for name, tensor in found.items()}


def _between(update: Update, alpha: float) -> State:
    """The state at ``alpha`` on the line; counters stay as they were received."""
    return {
        name: start.lerp(update.returned[name], alpha) if start.is_floating_point() else start
        for name, start in update.before.items()
    }


def _double(state: State) -> State:
    return {name: tensor.double() for name, tensor in state.items()}
