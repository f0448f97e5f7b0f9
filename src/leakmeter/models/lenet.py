"""The LeNets of the papers: two with sigmoid, one with tanh."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def lenet_sigmoid(
    strides: tuple[int, ...], *, classes: int, channels: int, size: int
) -> nn.Sequential:
    """12-channel 5x5 convolutions, one per stride: [N, channels, size, size] -> [N, classes].

    Strides (2, 2, 1) give the network in DLG's public code, which IG calls "LeNet (Zhu)" (Geiping
    et al. 2020, section 5). Strides (1, 1, 1, 1) give SAPAG's LeNet-5 (Wang et al. 2020, section
    VI-A); SAPAG does not state the padding, so DLG's padding of 2 is used.

    All parameters are drawn from U(-0.5, 0.5), as in DLG, IG and SAPAG (which also tries
    Xavier-normal): with torch's default, the sigmoids shrink the first layer's gradient by a
    factor of several hundred.
    """
    layers = OrderedDict[str, nn.Module]()
    width, side = channels, size
    for number, stride in enumerate(strides, start=1):
        layers[f"conv{number}"] = nn.Conv2d(width, 12, 5, stride=stride, padding=2)
        layers[f"sigmoid{number}"] = nn.Sigmoid()
        width, side = 12, (side - 1) // stride + 1
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(width * side * side, classes)
    network = nn.Sequential(layers)
    for parameter in network.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return network


def lenet_tanh(*, classes: int, channels: int, size: int, softmax: bool = False) -> nn.Sequential:
    """LeNet (LeCun et al. 1998) with tanh: [N, channels, size, size] -> [N, classes].

    From SME (Zhu et al. 2023, appendix G). As in its public code, the average pooling pads by one,
    so 28x28 reaches the dense layers as 5x5 without padding the image.

    Args:
        classes: number of outputs.
        channels: channels of the images.
        size: side of the images in pixels.
        softmax: whether to end in a softmax as in that code, although the client's cross-entropy
            applies softmax again. It keeps gradients so small that SME's client can learn with a
            step size of 0.4.
    """
    side = (size - 4) // 2 + 1
    side = (side - 4) // 2 + 1
    network = nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(channels, 6, 5),
            tanh1=nn.Tanh(),
            pool1=nn.AvgPool2d(2, padding=1),
            conv2=nn.Conv2d(6, 16, 5),
            tanh2=nn.Tanh(),
            pool2=nn.AvgPool2d(2, padding=1),
            flatten=nn.Flatten(),
            fc1=nn.Linear(16 * side * side, 120),
            tanh3=nn.Tanh(),
            fc2=nn.Linear(120, 84),
            tanh4=nn.Tanh(),
            fc3=nn.Linear(84, classes),
        )
    )
    if softmax:
        network.add_module("softmax", nn.Softmax(dim=1))
    return network
