"""The honest side: clients that train on their own data, and a server that averages."""

from leakscope.federated.client import Client
from leakscope.federated.defences import DEFENCES
from leakscope.federated.rounds import federate
from leakscope.federated.server import aggregate, average, sent_bytes
from leakscope.federated.splits import by_writer, dirichlet, iid

__all__ = [
    "DEFENCES",
    "Client",
    "aggregate",
    "average",
    "by_writer",
    "dirichlet",
    "federate",
    "iid",
    "sent_bytes",
]
