"""The honest side: clients that train on their own data, and a server that averages."""

from leakscope.federated.aggregation import aggregate
from leakscope.federated.client import Client
from leakscope.federated.compress import sent_bytes
from leakscope.federated.defences import DEFENCES
from leakscope.federated.rounds import average, federate
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
