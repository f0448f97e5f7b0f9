"""The honest side: clients that train on their own data, and a server that averages."""

from leakscope.federated.client import Client
from leakscope.federated.rounds import average, federate
from leakscope.federated.splits import by_writer, dirichlet, iid

__all__ = ["Client", "average", "by_writer", "dirichlet", "federate", "iid"]
