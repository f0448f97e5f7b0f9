"""The ConvNet of IG."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

_WIDTH = 64  # D in figure 8
_MULTIPLIERS = (1, 2, 2, 4, 4, 4, 4, 4)
_POOLED = (6, 8)  # max pooling follows these convolutions


def convnet(*, classes: int, channels: int, size: int) -> nn.Sequential:
    """Eight 3x3 convolutions with batch norm and ReLU: [N, channels, size, size] -> [N, classes].

    From IG (Geiping et al. 2020, figure 8 and appendix B.2) with D = 64: two 3x3 max-pooling layers
    reduce 32x32 to 10x10 and then 3x3 before the single dense layer.
    """
    layers = OrderedDict[str, nn.Module]()
    width, side = channels, size
    for number, multiplier in enumerate(_MULTIPLIERS, start=1):
        layers[f"conv{number}"] = nn.Conv2d(width, multiplier * _WIDTH, 3, padding=1)
        layers[f"bn{number}"] = nn.BatchNorm2d(multiplier * _WIDTH)
        layers[f"relu{number}"] = nn.ReLU()
        width = multiplier * _WIDTH
        if number in _POOLED:
            layers[f"pool{number}"] = nn.MaxPool2d(3)
            side //= 3
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(width * side * side, classes)
    return nn.Sequential(layers)
