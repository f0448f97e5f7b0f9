"""Flower clients, and a grid that runs them in this process, one after the other."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import (
    ArrayRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from torch import nn
from torch.nn.functional import cross_entropy

from victims import examples, tiny


def network() -> nn.Module:
    """With batch norm: its counter is an integer, and the mean of counters is none."""
    return nn.Sequential(nn.BatchNorm2d(1), tiny())


def train(message: Message, context: Context) -> Message:
    """Two steps on noise of this client's own."""
    torch.set_num_threads(1)
    net = network()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    place = int(context.node_config["partition-id"])
    images, labels = examples(3 + place)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        cross_entropy(net(images), labels).backward()
        optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": len(images)}),
        }
    )
    return Message(content, reply_to=message)


class LoopGrid(Grid):
    """Nodes 100, 101, ... that answer at once, in the order in which they are asked."""

    def __init__(self, app: ClientApp, nodes: int = 3) -> None:
        self.app = app
        self.nodes = {100 + place: place for place in range(nodes)}
        self.answers: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(self, *args: Any, **options: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Like Flower's own, goes over ``messages`` twice and gives them their ids."""
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
        for message in messages:
            self.answers[message.metadata.message_id] = self._answer(message)
        return [message.metadata.message_id for message in messages]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(1, node, {"partition-id": self.nodes[node]}, RecordDict(), {})
        try:
            # As over a wire: the client gets a copy, and may do with it what it likes.
            return self.app(copy.deepcopy(message), context)
        except Exception as problem:
            return Message(Error(0, str(problem)), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.answers.pop(name) for name in message_ids if name in self.answers]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))
