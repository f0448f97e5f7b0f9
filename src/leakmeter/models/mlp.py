"""The fully connected network of SME."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def mlp(*, classes: int, channels: int, size: int) -> nn.Sequential:
    """Hidden layers of 1000 and 1000 with ReLU: [N, channels, size, size] -> [N, classes].

    SME (Zhu et al. 2023, appendix G). Its public code also puts a ReLU on the output, which the
    paper does not mention and which zeroes gradients that label recovery reads; here there is
    none.
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
