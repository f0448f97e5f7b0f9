"""A network of your own: any function or class that returns a ``torch.nn.Module``."""

from torch import nn


def small_cnn(classes: int, channels: int) -> nn.Module:
    """Images [N, channels, 32, 32] -> logits [N, classes].

    leakmeter passes what the arguments name: ``classes`` and ``channels`` of the data, and
    ``size`` if it is asked for.
    """
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, classes),
    )
