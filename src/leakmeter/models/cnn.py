"""The two-convolution networks that DLFA, SME and NL-SME attack."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def cnn(
    widths: tuple[int, int], hidden: int, *, classes: int, channels: int, size: int
) -> nn.Sequential:
    """Two convolutions and two dense layers: [N, channels, size, size] -> [N, classes].

    SME (Zhu et al. 2023, section 5) takes both networks from DLFA (Dimitrov et al. 2022). The
    papers do not specify the padding; both public implementations use "same" padding, so 28x28
    reaches the dense layer as 7x7.
    """
    first, second = widths
    side = size // 2 // 2
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(channels, first, 3, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.AvgPool2d(2),
            conv2=nn.Conv2d(first, second, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.AvgPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(second * side * side, hidden),
            relu3=nn.ReLU(),
            fc2=nn.Linear(hidden, classes),
        )
    )
