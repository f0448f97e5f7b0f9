"""A Flower run under the simulation engine, three times: as it is, and recorded in two ways.

    python tests/flower_simulation.py FOLDER

The client's own recorder is a mod that is always there. Writes ``models.safetensors``, the three
global models, and the folders ``grid``, ``strategy`` and ``mod``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.simulation import run_simulation
from safetensors.torch import save_file

from flower_clients import network, train
from leakmeter.integrations.flower import FlowerRecorder

CLIENTS = 2
"""More would be averaged in the order of their replies, which rounds differently every time."""


def serve(grid: Grid, folder: Path) -> None:
    """Train three times from the same start."""

    def model(strategy: Strategy, grid: Grid) -> ArrayRecord:
        start = ArrayRecord(network().state_dict())
        config = ConfigRecord({"local-epochs": 2, "lr": 0.05})
        return strategy.start(grid, start, num_rounds=2, train_config=config).arrays

    plain = FedAvg(fraction_evaluate=0.0)
    found = {
        "plain": model(plain, grid),
        "grid": model(plain, FlowerRecorder(folder / "grid").grid(grid)),
        "strategy": model(FlowerRecorder(folder / "strategy").strategy(plain), grid),
    }
    save_file(
        {
            f"{kind}/{name}": tensor
            for kind, arrays in found.items()
            for name, tensor in arrays.to_torch_state_dict().items()
        },
        folder / "models.safetensors",
    )


def main(folder: Path) -> None:
    """Run it all on one core for each client."""
    client = ClientApp(mods=[FlowerRecorder(folder / "mod").mod])
    client.train()(train)
    server = ServerApp()
    server.main()(lambda grid, context: serve(grid, folder))
    run_simulation(
        server,
        client,
        CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "include_dashboard": False},
        },
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
