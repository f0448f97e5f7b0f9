"""What needs no search is exact: on real images, with and without biases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import leakmeter as lm
from leakmeter import LeakmeterError, papers
from leakmeter.attacks.closed_form import label, layer_input
from leakmeter.attacks.problem import Problem
from victims import examples, tiny


def dense(
    *biases: bool, activation: Callable[[], nn.Module] = nn.ReLU, width: int = 3 * 32 * 32
) -> nn.Sequential:
    """A fully connected network with a bias in those layers that say so, 8 classes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Flatten()]
        for bias in biases[:-1]:
            layers += [nn.Linear(width, 60, bias=bias), activation()]
            width = 60
        return nn.Sequential(*layers, nn.Linear(width, 8, bias=biases[-1]))


@pytest.mark.parametrize("biases", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Sigmoid])
@pytest.mark.parametrize("sent", ["gradient", "weights"])
def test_a_fully_connected_network_gives_its_example_away(
    photos: lm.data.Dataset,
    biases: tuple[bool, ...],
    activation: Callable[[], nn.Module],
    sent: str,
) -> None:
    model = dense(*biases, True, activation=activation)
    image, truth = photos.images[:1], photos.labels[:1]
    client = lm.Client(model, image, truth, lr=0.1, normalize="photos")
    update = client.gradient() if sent == "gradient" else client.train()
    found = papers.closed_form().run(model, update)
    assert found.labels.tolist() == truth.tolist()
    assert lm.measure.images(found.images, image).psnr.item() > 50


def test_no_bias_anywhere_is_no_obstacle(photos: lm.data.Dataset) -> None:
    model = dense(False, False, False)
    image, truth = photos.images[3:4], photos.labels[3:4]
    update = lm.Client(model, image, truth, normalize="photos").gradient()
    found = papers.closed_form().run(model, update, labels=truth)
    assert lm.measure.images(found.images, image).psnr.item() > 50


def test_many_local_steps_hide_nothing_behind_a_bias(photos: lm.data.Dataset) -> None:
    model = lm.models.build("mlp", classes=8, channels=3, size=32)
    image, truth = photos.images[5:6], photos.labels[5:6]
    client = lm.Client(model, image, truth, epochs=30, lr=0.02, momentum=0.9, normalize="photos")
    found = papers.closed_form().run(model, client.train(), labels=truth)
    assert lm.measure.images(found.images, image).psnr.item() > 50


@pytest.mark.parametrize("bias", [True, False])
def test_the_input_of_any_dense_layer_follows(photos: lm.data.Dataset, bias: bool) -> None:
    """Here what a convolution makes of the image."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(4 * 15 * 15, 30, bias=bias),
            nn.ReLU(),
            nn.Linear(30, 8),
        ).double()
    image, truth = photos.images[:1].double(), photos.labels[:1]
    update = lm.Client(model, image, truth).gradient()
    problem = Problem.of(model, update, None)
    found = layer_input(problem, "3", label(problem, truth))
    torch.testing.assert_close(found, model[:3](image)[0].detach(), rtol=1e-4, atol=1e-6)


def test_a_frozen_bias_is_known(photos: lm.data.Dataset) -> None:
    model = dense(True, True, activation=nn.Sigmoid)
    first = model[1]
    assert isinstance(first, nn.Linear)
    with torch.no_grad():
        first.bias.normal_(generator=torch.Generator().manual_seed(0))
    first.bias.requires_grad_(False)
    image, truth = photos.images[:1], photos.labels[:1]
    found = papers.closed_form().run(model, lm.Client(model, image, truth).gradient())
    assert lm.measure.images(found.images, image).psnr.item() > 50


def test_what_it_cannot_do_it_says() -> None:
    images, labels = examples(count=2)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(144, 5))
    closed = papers.closed_form()
    with pytest.raises(LeakmeterError, match="2 examples"):
        closed.run(flat, lm.Client(flat, images, labels).gradient())
    one = (images[:1], labels[:1])
    with pytest.raises(LeakmeterError, match="no fully connected layer that sees the image"):
        closed.run(tiny(), lm.Client(tiny(), *one).gradient())
    with pytest.raises(LeakmeterError, match="SGD without weight decay"):
        closed.run(flat, lm.Client(flat, *one, epochs=2, optimizer="adam").train())
    unbiased = nn.Sequential(nn.Flatten(), nn.Linear(144, 5, bias=False))
    with pytest.raises(LeakmeterError, match="one gradient or one local step"):
        closed.run(unbiased, lm.Client(unbiased, *one, epochs=2).train(), labels=one[1])
