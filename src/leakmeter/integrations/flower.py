"""Records what clients of a Flower run send back: at the grid, at a strategy, or in a client.

    recorder = FlowerRecorder("recorded", input_shape=(3, 32, 32), classes=10)
    strategy.start(grid=recorder.grid(grid), ...)

Replies must hold the new weights, as in Flower's own examples, not a difference.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from leakmeter.errors import LeakmeterError
from leakmeter.recording import Recorder, same_precision, told
from leakmeter.state import State
from leakmeter.update import Protocol, Update

try:
    from flwr.app import (
        Array,
        ArrayRecord,
        ConfigRecord,
        Context,
        Message,
        MessageType,
        Metadata,
        MetricRecord,
        RecordDict,
    )
    from flwr.clientapp.typing import ClientAppCallable
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
except ImportError as error:
    raise LeakmeterError(
        f"leakmeter.integrations.flower needs Flower 1.41 or newer ({error}): "
        "pip install 'flwr[simulation]>=1.41'"
    ) from None

FIELDS = {
    "epochs": ("epochs", "local-epochs", "num-epochs"),
    "batch_size": ("batch-size", "local-batch-size"),
    "lr": ("lr", "learning-rate"),
    "optimizer": ("optimizer",),
    "momentum": ("momentum",),
    "weight_decay": ("weight-decay",),
}
"""Fields of the protocol, and their usual names in configurations sent to clients."""

ROUND = "server-round"
"""The key under which Flower's strategies store the round number."""


@dataclass(frozen=True)
class _Request:
    """A message to a client, copied as sent, because strategies reuse its parts."""

    turn: int
    client: int
    metadata: Metadata
    before: dict[str, Array]
    config: dict[str, Any]


class FlowerRecorder(Recorder):
    """Records the updates of a Flower run, in one of three places.

    :meth:`grid` is the simplest and works with every strategy. :meth:`strategy` and :meth:`mod` can
    be placed before or after other wrappers and mods, which determines what they see. Training
    settings are picked up from the configuration sent to clients if they have one of the usual
    names (``FIELDS``); the arguments given here take precedence.

    Args:
        folder: where to write the records. Give every run its own folder.
        names: names of the arrays in order, ``list(model.state_dict())``, if clients and server
            exchange lists without names.
        examples_key: the key for the number of examples in replies; ``-`` and ``_`` are equivalent.
        every: record only every so many rounds; 5 means rounds 5, 10, 15, and so on.
        clients: node ids of the clients to record; all by default.
        per_round: maximum number of clients to record per round; all by default. As a mod, the
            recorder runs in many processes, each with its own count.
        protocol: fields of :class:`~leakmeter.update.Protocol`. Anything specified neither here
            nor in the configuration stays unknown to the attacker. ``normalize`` may be the name
            of a data set, or ``none``.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        names: Sequence[str] | None = None,
        examples_key: str = "num-examples",
        every: int = 1,
        clients: Collection[int] | None = None,
        per_round: int | None = None,
        **protocol: Any,
    ) -> None:
        super().__init__(folder, every=every, clients=clients, per_round=per_round, **protocol)
        self.names = None if names is None else list(names)
        self.examples_key = examples_key
        self._seen: Counter[int] = Counter()

    def grid(self, grid: Grid) -> Grid:
        """Wrap ``grid`` to record what arrives at the server, before the strategy sees it."""
        return _RecordedGrid(grid, self)

    def strategy(self, strategy: Strategy) -> Strategy:
        """Wrap ``strategy`` to record what it receives from any strategies wrapped around it."""
        if type(strategy).start is not Strategy.start:
            raise LeakmeterError(
                f"{type(strategy).__name__} has a start of its own, which a wrapper would bypass: "
                "record the grid instead"
            )
        return _RecordedStrategy(strategy, self)

    def mod(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """A mod for ``ClientApp(mods=[...])`` that sees what mods after it in the list return."""
        request = self._sent(message)
        reply = call_next(message, context)
        if request is not None:
            self._received(request, reply)
        return reply

    def _sent(self, message: Message) -> _Request | None:
        """What to keep of ``message`` until its reply arrives, if the reply is to be recorded."""
        try:
            if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
                return None
            client = message.metadata.dst_node_id
            self._seen[client] += 1
            config = _joined(message.content.config_records)
            turn = _round(config, message.metadata, self._seen[client])
            if not self.wants(turn, client):
                return None
            before = dict(_arrays(message.content))
            return _Request(turn, client, message.metadata, before, config)
        except Exception as problem:
            self.complain(f"a message to a client cannot be recorded: {problem}")
            return None

    def _received(self, request: _Request, reply: Message) -> None:
        if not reply.has_error():
            self.keep(request.turn, request.client, lambda: self._update(request, reply))

    def _update(self, request: _Request, reply: Message) -> Update:
        before, after = self._state(request.before), self._state(_arrays(reply.content))
        before, after = same_precision(before, after)
        return Update(
            before=before,
            after=after,
            num_examples=_count(reply.content, self.examples_key),
            protocol=told(_known(request.config) | self.protocol),
        )

    def _state(self, arrays: Mapping[str, Array]) -> State:
        names = list(arrays)
        if names == [str(place) for place in range(len(names))]:
            if self.names is None or len(self.names) != len(names):
                raise LeakmeterError(
                    f"{len(names)} arrays came without names: "
                    "give names=list(model.state_dict()), as many and in the same order"
                )
            names = self.names
        tensors = [torch.from_numpy(array.numpy()) for array in arrays.values()]
        return dict(zip(names, tensors, strict=True))


class _Pairs:
    """Requests waiting for their replies, in the order they were sent."""

    def __init__(self, recorder: FlowerRecorder) -> None:
        self._recorder = recorder
        self._open: list[_Request] = []

    def sent(self, messages: Iterable[Message]) -> None:
        """Remember ``messages``; they have no ids yet, since sending sets those."""
        now = time.time()
        self._open = [
            request
            for request in self._open
            if now < request.metadata.created_at + request.metadata.ttl
        ]
        self._open += filter(None, map(self._recorder._sent, messages))

    def received(self, replies: Iterable[Message]) -> None:
        """Record those ``replies`` that answer a remembered message."""
        waiting = {request.metadata.message_id: request for request in self._open}
        for reply in replies:
            request = waiting.pop(reply.metadata.reply_to_message_id, None)
            if request is not None:
                self._recorder._received(request, reply)
        self._open = list(waiting.values())


class _RecordedGrid(Grid):
    def __init__(self, grid: Grid, recorder: FlowerRecorder) -> None:
        self._grid = grid
        self._recorder = recorder
        self._pairs = _Pairs(recorder)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # a copy asks for these before it has anything to ask
            raise AttributeError(name)
        return getattr(self._grid, name)

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *args: Any, **options: Any) -> Message:
        return self._grid.create_message(*args, **options)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self._pairs.sent(messages)
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(self._grid.pull_messages(message_ids))
        self._pairs.received(replies)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        pairs = _Pairs(self._recorder)  # messages not answered in time never get an answer
        pairs.sent(messages)
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        pairs.received(replies)
        return replies


class _RecordedStrategy(Strategy):
    def __init__(self, strategy: Strategy, recorder: FlowerRecorder) -> None:
        self._strategy = strategy
        self._recorder = recorder
        self._pairs = _Pairs(recorder)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # a copy asks for these before it has anything to ask
            raise AttributeError(name)
        return getattr(self._strategy, name)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(self._strategy.configure_train(server_round, arrays, config, grid))
        self._pairs = _Pairs(self._recorder)
        self._pairs.sent(messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        self._pairs.received(replies)
        return self._strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self._strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self._strategy.summary()


def _joined(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Entries of all ``records``, with ``-`` in place of ``_`` in their names."""
    return {
        key.replace("_", "-"): value for record in records.values() for key, value in record.items()
    }


def _round(config: Mapping[str, Any], metadata: Metadata, seen: int) -> int:
    """The round number, or if it is not given, the count of requests to this client."""
    if isinstance(config.get(ROUND), int):
        return int(config[ROUND])
    return int(metadata.group_id) if metadata.group_id.isdecimal() else seen


def _arrays(content: RecordDict) -> ArrayRecord:
    """The weights: the only array record, or the one with the usual name."""
    records = content.array_records
    if len(records) != 1 and "arrays" not in records:
        raise LeakmeterError(
            f"{len(records)} records of arrays and none is called 'arrays': which are the weights?"
        )
    return records["arrays"] if "arrays" in records else next(iter(records.values()))


def _count(content: RecordDict, key: str) -> int:
    value = _joined(content.metric_records).get(key.replace("_", "-"))
    if not isinstance(value, int | float) or value != int(value):
        raise LeakmeterError(
            f"the reply's metrics say {key} = {value}: send the number of examples, "
            "or say by examples_key= what it is called"
        )
    return int(value)


def _known(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the protocol that a configuration specifies and leakmeter understands."""
    known = {}
    for field, keys in FIELDS.items():
        for key in keys:
            if key in config and _valid(field, config[key]):
                known[field] = config[key]
    return known


def _valid(field: str, value: object) -> bool:
    try:
        Protocol.model_validate({field: value})
    except ValidationError:
        return False
    return True
