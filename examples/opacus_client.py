"""Do photographs survive in the update of a client that trains with Opacus?

    python examples/opacus_client.py [ITERATIONS]

The client is ordinary PyTorch code. A `with` around its training records what it would send, once
without and once with differential privacy, and both records are attacked the same way. Needs the
extra ``dp``: pip install --constraint constraints.txt '.[dp]'. Takes a minute.

Result: seven of eight photographs are recognized without privacy, none with it.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import leakmeter as lm

try:
    from opacus import PrivacyEngine
except ImportError:
    sys.exit("this example needs Opacus: pip install --constraint constraints.txt '.[dp]'")

EPOCHS, LR, DELTA = 5, 0.03, 1e-5
CLIP, NOISE = 3.0, 1.0


def network(classes: int) -> nn.Module:
    """The network that the server hands out; yours here."""
    return lm.models.build("cnn-femnist", classes=classes, channels=3, size=32)


def train(model: nn.Module, inputs: Tensor, labels: Tensor, *, private: bool) -> float:
    """The client's own training; returns the epsilon that Opacus promises."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=len(inputs))
    engine = None
    if private:
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=NOISE,
            max_grad_norm=CLIP,
        )
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return engine.get_epsilon(DELTA) if engine else float("inf")


def main(iterations: int = 100) -> None:
    """Record, attack and compare the client without and with privacy."""
    data = lm.data.load("photos", size=32)
    images, labels = data.images[:8], data.labels[:8]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in lm.data.normalization("photos"))
    inputs = (images - mean) / std
    for private in (False, True):
        torch.manual_seed(0)  # of Opacus' noise
        model = network(data.classes)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "update.safetensors")
            # Opacus wraps the model and trains the same weights: record the model itself.
            with lm.record(
                model,
                path,
                num_examples=len(images),
                epochs=EPOCHS,
                batch_size=len(images),
                lr=LR,
                optimizer="sgd",
                normalize="photos",
                input_shape=(3, 32, 32),
                classes=data.classes,
            ):
                epsilon = train(model, inputs, labels, private=private)
            update = lm.Update.load(path)
        # Opacus leaves its hooks on the client's model; the server has a model of its own.
        server = network(data.classes)
        found = lm.papers.sme(iterations).run(server, update, compiling="never")
        scores, _ = lm.measure.score(found, images, labels, data.images[8:], data.labels[8:])
        print(
            f"{'with Opacus' if private else 'without':12} epsilon {epsilon:5.1f}"
            f"  recognized {sum(scores.recognized)} of {len(images)}"
            f"  PSNR {sum(scores.psnr) / len(images):.1f} dB"
            f"  labels right {scores.label_accuracy:.0%}",
            flush=True,
        )


if __name__ == "__main__":
    # Opacus warns that its noise is reproducible, which is meant here: not so in production.
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", "Full backward hook")
    main(*map(int, sys.argv[1:]))
