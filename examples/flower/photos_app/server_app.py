"""What happens at the server. ``recorder`` is all that recording adds."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from leakmeter.integrations.flower import FlowerRecorder
from photos_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Average what clients send back, for some rounds."""
    torch.manual_seed(0)
    config = context.run_config
    recorder = FlowerRecorder(
        str(config["recorded"]),
        optimizer="sgd",
        normalize="photos",
        input_shape=(3, 32, 32),
        classes=8,
    )
    FedAvg(fraction_evaluate=0.0).start(
        grid=recorder.grid(grid),
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        train_config=ConfigRecord(
            {
                "lr": config["learning-rate"],
                "local-epochs": config["local-epochs"],
                "batch-size": config["batch-size"],
            }
        ),
    )
