"""A network of your own: any function or class that returns a ``torch.nn.Module``."""

from torch import nn


def small_cnn(classes: int, channels: int) -> nn.Module:
    """Images [N, channels, 32, 32] -> logits [N, classes].

    leakscope passes what the arguments name: ``classes`` and ``channels`` of the data, and
    ``size`` if it is asked for.
    """
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, padding=2, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, padding=2, stride=2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, classes),
    )
