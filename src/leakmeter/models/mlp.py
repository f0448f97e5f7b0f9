"""The fully connected network of SME."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def mlp(*, classes: int, channels: int, size: int) -> nn.Sequential:
    """Two hidden layers of 1000 with ReLU: [N, channels, size, size] -> [N, classes].

    From SME (Zhu et al. 2023, appendix G). Its public code also puts a ReLU on the output, which
    is omitted here: the paper does not mention it, and it zeroes gradients that label recovery
    needs.
    """
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            flatten=nn.Flatten(),
            fc1=nn.Linear(channels * size * size, 1000),
            relu1=nn.ReLU(),
            fc2=nn.Linear(1000, 1000),
            relu2=nn.ReLU(),
            fc3=nn.Linear(1000, classes),
        )
    )
