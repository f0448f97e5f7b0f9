"""What happens at a client: nothing here knows that updates are recorded."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from photos_app.task import Net, load, train

app = ClientApp()


@app.train()
def local_training(message: Message, context: Context) -> Message:
    """Train the received network on this client's photographs and send it back."""
    torch.set_num_threads(1)
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = load(int(context.node_config["partition-id"]))
    config = message.content["config"]
    loss = train(
        net,
        images,
        labels,
        epochs=int(config["local-epochs"]),
        batch_size=int(config["batch-size"]),
        lr=float(config["lr"]),
    )
    metrics = MetricRecord({"num-examples": len(images), "loss": loss})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
