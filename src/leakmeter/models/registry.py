"""The built-in models as a table: name, builder, default input, origin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from leakmeter.models.cnn import cnn
from leakmeter.models.convnet import convnet
from leakmeter.models.lenet import lenet_sigmoid, lenet_tanh
from leakmeter.models.mlp import mlp
from leakmeter.models.resnet import (
    BasicBlock,
    Bottleneck,
    SigmoidBlock,
    imagenet_stem,
    resnet,
    resnet8,
    small_stem,
)
from leakmeter.models.vit import VitA


@dataclass(frozen=True)
class Entry:
    """One built-in model.

    Attributes:
        builder: takes whichever of ``classes``, ``channels``, and ``size`` it names.
        channels: channels of the images its paper uses.
        size: side of the images its paper uses, in pixels.
        about: one line on what it is and which paper uses it.
        smallest: the smallest side it accepts.
        multiple_of: a number the side must be divisible by.
    """

    builder: Callable[..., nn.Module]
    channels: int
    size: int
    about: str
    smallest: int = 1
    multiple_of: int = 1


_PATCH = 4

_RESNETS = {
    "resnet18": partial(resnet, BasicBlock, (2, 2, 2, 2), 64),
    "resnet34": partial(resnet, BasicBlock, (3, 4, 6, 3), 64),
    "resnet50": partial(resnet, Bottleneck, (3, 4, 6, 3), 64),
    "resnet152": partial(resnet, Bottleneck, (3, 8, 36, 3), 64),
}

REGISTRY: dict[str, Entry] = {
    "cnn-femnist": Entry(
        partial(cnn, (32, 64), 100),
        1,
        28,
        "2 convolutions (32, 64) and 2 dense layers; FEMNIST network of DLFA, SME, NL-SME",
        smallest=4,
    ),
    "cnn-cifar": Entry(
        partial(cnn, (64, 128), 200),
        3,
        32,
        "2 convolutions (64, 128) and 2 dense layers; CIFAR-100 network of DLFA, SME, NL-SME",
        smallest=4,
    ),
    "mlp": Entry(mlp, 1, 28, "2 hidden layers of 1000, ReLU; SME appendix G"),
    "lenet-zhu": Entry(
        partial(lenet_sigmoid, (2, 2, 1)), 3, 32, "LeNet with sigmoid; DLG, IG section 5"
    ),
    "lenet5-sapag": Entry(
        partial(lenet_sigmoid, (1, 1, 1, 1)),
        3,
        32,
        "LeNet-5 with sigmoid, 4 convolutions, no stride; SAPAG section VI-A",
    ),
    "lenet-tanh": Entry(lenet_tanh, 1, 28, "LeNet of 1998 with tanh", smallest=12),
    "lenet-tanh-softmax": Entry(
        partial(lenet_tanh, softmax=True),
        1,
        28,
        "lenet-tanh ending in a softmax, under a loss that has another; SME appendix G",
        smallest=12,
    ),
    "convnet": Entry(
        convnet, 3, 32, "8 convolutions with batch norm; IG figure 8, D = 64", smallest=9
    ),
    "resnet8": Entry(resnet8, 1, 28, "3 basic blocks, 2 dense layers; SME appendix G"),
    "resnet20-4": Entry(
        partial(resnet, BasicBlock, (3, 3, 3), 16 * 4, small_stem),
        3,
        32,
        "CIFAR ResNet-20, 4 times as wide; IG table 1, AGIC",
    ),
    "resnet32-10": Entry(
        partial(resnet, BasicBlock, (5, 5, 5), 16 * 10, small_stem),
        3,
        32,
        "CIFAR ResNet-32, 10 times as wide; IG figure 6",
    ),
    **{
        name: Entry(partial(build, imagenet_stem), 3, 224, "He et al. 2016 for ImageNet; IG, AGIC")
        for name, build in _RESNETS.items()
    },
    **{
        f"{name}-small": Entry(
            partial(build, small_stem), 3, 32, f"{name} with a 3x3 stem for small images; IG"
        )
        for name, build in _RESNETS.items()
    },
    "resnet18-sigmoid": Entry(
        partial(resnet, SigmoidBlock, (2, 2, 2, 2), 64, partial(small_stem, activation=nn.Sigmoid)),
        3,
        32,
        "resnet18-small with sigmoid; SAPAG section VI-A, which has stride 1 throughout",
    ),
    "vit-a": Entry(
        partial(VitA, _PATCH),
        1,
        28,
        "vision transformer type A, 4 blocks of width 384, patches of 4x4; APRIL",
        smallest=_PATCH,
        multiple_of=_PATCH,
    ),
    "vit-a-whole": Entry(
        partial(VitA, None), 1, 28, "vit-a with the image as its only patch; SME appendix G"
    ),
}
