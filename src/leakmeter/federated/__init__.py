"""The honest side: clients that train on their own data, and a server that averages."""

from leakmeter.federated.client import Client
from leakmeter.federated.defenses import DEFENSES
from leakmeter.federated.rounds import federate
from leakmeter.federated.server import aggregate, average, sent_bytes
from leakmeter.federated.splits import by_writer, dirichlet, iid

__all__ = [
    "DEFENSES",
    "Client",
    "aggregate",
    "average",
    "by_writer",
    "dirichlet",
    "federate",
    "iid",
    "sent_bytes",
]
