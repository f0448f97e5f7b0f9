"""All of the papers' ResNets: one stem, stages of residual blocks, and one head.

Parameter names match torchvision's, so its published weights load into ``resnet18`` through
``resnet152``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

Layers = OrderedDict[str, nn.Module]
Stem = Callable[[int, int], Layers]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut around them (He et al. 2016, figure 5 left).

    [N, width_in, H, W] -> [N, width, H / stride, W / stride].
    """

    expansion = 1
    activation: ClassVar[Callable[..., Tensor]] = staticmethod(functional.relu)

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(width_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add the block's change to its shortcut."""
        out = self.activation(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.activation(out + self.downsample(x))


class SigmoidBlock(BasicBlock):
    """A basic block with sigmoid, whose second derivative is nonzero (SAPAG, section VI-A)."""

    activation = staticmethod(torch.sigmoid)


class Bottleneck(nn.Module):
    """1x1, 3x3, and 1x1 convolutions with a shortcut around them (He et al. 2016, figure 5 right).

    [N, width_in, H, W] -> [N, 4 width, H / stride, W / stride]. The stride is on the 3x3, as in
    torchvision, whose networks IG uses.
    """

    expansion = 4

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = _shortcut(width_in, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add the block's change to its shortcut."""
        out = functional.relu(self.bn1(self.conv1(x)))
        out = functional.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return functional.relu(out + self.downsample(x))


def imagenet_stem(channels: int, width: int) -> Layers:
    """7x7 stride 2 and max pooling: [N, channels, H, W] -> [N, width, H / 4, W / 4]."""
    return Layers(
        conv1=nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
        bn1=nn.BatchNorm2d(width),
        relu=nn.ReLU(),
        maxpool=nn.MaxPool2d(3, stride=2, padding=1),
    )


def small_stem(channels: int, width: int, activation: Callable[[], nn.Module] = nn.ReLU) -> Layers:
    """3x3 stride 1, for small images: [N, channels, H, W] -> [N, width, H, W]."""
    return Layers(
        conv1=nn.Conv2d(channels, width, 3, padding=1, bias=False),
        bn1=nn.BatchNorm2d(width),
        activation=activation(),
    )


def resnet(
    block: type[BasicBlock] | type[Bottleneck],
    depths: tuple[int, ...],
    width: int,
    stem: Stem,
    *,
    classes: int,
    channels: int,
) -> nn.Sequential:
    """A ResNet with global average pooling: [N, channels, size, size] -> [N, classes].

    IG (Geiping et al. 2020, section 5) and AGIC (section V) attack these networks. Their untrained
    ones have torchvision's initialization (convolutions He-normal over the outputs), so it is used
    here. In ResNet20-4 and ResNet32-10, the last number multiplies the CIFAR networks' width of 16.

    Args:
        block: the residual block.
        depths: blocks per stage; each stage after the first halves the side and doubles the width.
        width: channels of the first stage.
        stem: what comes before the first stage.
        classes: number of outputs.
        channels: channels of the images.
    """
    features = width * 2 ** (len(depths) - 1) * block.expansion
    network = nn.Sequential(
        Layers(
            **stem(channels, width),
            **_stages(block, depths, width),
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(features, classes),
        )
    )
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def resnet8(*, classes: int, channels: int, size: int) -> nn.Sequential:
    """SME's ResNet8, one basic block per stage: [N, channels, size, size] -> [N, classes].

    SME (Zhu et al. 2023, appendix G) states "three building blocks". The rest is from its public
    code: widths 32, 64, and 128, 2x2 average pooling padded by one instead of global pooling, two
    dense layers without an activation between them, and torch's default initialization.
    """
    side = ((size + 1) // 2 + 1) // 2 // 2 + 1
    return nn.Sequential(
        Layers(
            **small_stem(channels, 32),
            **_stages(BasicBlock, (1, 1, 1), 32),
            avgpool=nn.AvgPool2d(2, padding=1),
            flatten=nn.Flatten(),
            fc1=nn.Linear(128 * side * side, 1000),
            fc2=nn.Linear(1000, classes),
        )
    )


def _stages(
    block: type[BasicBlock] | type[Bottleneck], depths: tuple[int, ...], width: int
) -> Layers:
    """The stages layer1, layer2, ... that follow a stem of ``width`` channels."""
    stages = Layers()
    width_in = width
    for stage, depth in enumerate(depths):
        blocks = []
        for position in range(depth):
            stride = 2 if stage > 0 and position == 0 else 1
            blocks.append(block(width_in, width * 2**stage, stride))
            width_in = width * 2**stage * block.expansion
        stages[f"layer{stage + 1}"] = nn.Sequential(*blocks)
    return stages


def _shortcut(width_in: int, width_out: int, stride: int) -> nn.Module:
    """The identity, or a 1x1 projection where the shape changes (He et al. 2016, option B)."""
    if stride == 1 and width_in == width_out:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(width_in, width_out, 1, stride=stride, bias=False),
        nn.BatchNorm2d(width_out),
    )
