"""The network, the data, and local training."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import leakmeter as lm

EXAMPLES = 4
"""Photographs that each client has."""


class Net(nn.Module):
    """Three convolutions and a dense layer, for color images 32 pixels wide."""

    def __init__(self, classes: int = 8) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 5, padding=2, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 5, padding=2, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 5, padding=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Linear(64 * 8 * 8, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of ``images`` [N, 3, 32, 32]."""
        logits: Tensor = self.head(self.features(images))
        return logits


def load(partition: int) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and labels of one client."""
    photos = lm.data.load("photos", size=32)
    mine = slice(EXAMPLES * partition, EXAMPLES * (partition + 1))
    return photos.images[mine], photos.labels[mine]


def train(
    net: nn.Module, images: Tensor, labels: Tensor, *, epochs: int, batch_size: int, lr: float
) -> float:
    """Train ``net`` in place and return the last loss."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in lm.data.normalization("photos"))
    images = (images - mean) / std
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(batch_size):
            optimizer.zero_grad()
            loss = cross_entropy(net(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
    return loss.item()
