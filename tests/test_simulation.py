"""The unrolled client agrees with the real one, for every optimizer, and remembers little."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad

import leakmeter as lm
from leakmeter import papers
from leakmeter.attacks.distance import Cosine
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.simulation import Simulation
from leakmeter.federated.local import make_optimizer
from victims import CLIENTS, examples, tiny


@pytest.mark.parametrize("name", CLIENTS)
def test_the_replay_of_the_true_data_is_the_update(name: str) -> None:
    """With one batch an epoch there is no order to guess, so nothing else can differ."""
    model, (images, labels) = tiny(), examples()
    update = lm.Client(model, images, labels, epochs=5, **CLIENTS[name]).train()
    problem = Problem.of(model, update, None)
    for copies, trajectory in ((1, Simulation()), (5, Simulation(per_epoch=True))):
        x = images.repeat(copies, 1, 1, 1)
        predicted = trajectory.predict(problem, x, labels, {})
        scale = CLIENTS[name]["lr"] * 5
        for key, moved in problem.observed.items():
            torch.testing.assert_close(predicted[key] * scale, moved, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adam"])
def test_recomputing_segments_gives_the_derivative_of_the_whole(name: str) -> None:
    """Against torch's own optimizer, differentiated through in one piece, in double precision."""
    model, (images, labels) = tiny().double(), examples()
    images = images.double()
    update = lm.Client(model, images, labels, epochs=3, batch_size=2, **CLIENTS[name]).train()
    problem = Problem.of(model, update, None)
    compare = Cosine().against(problem)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(images.shape, generator=generator, dtype=torch.float64)
    found = grad(lambda x: compare(Simulation().predict(problem, x, labels, {})))(x)
    step = 1e-6 * torch.randn(x.shape, generator=generator, dtype=torch.float64)

    def distance(x: Tensor) -> Tensor:
        replayed = tiny().double()
        optimizer = make_optimizer(replayed, update.protocol)
        for _ in range(3):
            for batch in torch.arange(len(x)).split(2):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(replayed(x[batch]), labels[batch]).backward()
                optimizer.step()
        ends = dict(replayed.named_parameters())
        return compare({key: start - ends[key].detach() for key, start in problem.before.items()})

    slope = (distance(x + step) - distance(x - step)) / 2
    torch.testing.assert_close((found * step).sum(), slope, rtol=1e-4, atol=1e-12)


def test_learned_labels_get_a_derivative_through_the_replay() -> None:
    model, (images, labels) = tiny(), examples()
    problem = Problem.of(model, lm.Client(model, images, labels, epochs=2, lr=0.1).train(), None)
    compare = Cosine().against(problem)
    soft = torch.full((3, 5), 0.2)
    slope = grad(lambda y: compare(Simulation().predict(problem, images, y, {})))(soft)
    assert slope.abs().max() > 0


def test_dlfa_averages_the_epochs_after_pairing_them() -> None:
    model, (images, labels) = tiny(), examples()
    problem = Problem.of(model, lm.Client(model, images, labels, epochs=2, lr=0.1).train(), None)
    shuffled = images[[2, 0, 1]] + 0.02
    merged = Simulation(per_epoch=True).merge(problem, torch.cat([images, shuffled]))
    torch.testing.assert_close(merged, images + 0.01)


def test_simulations_ask_for_the_protocol() -> None:
    model, (images, labels) = tiny(), examples()
    update = lm.Client(model, images, labels, epochs=2, lr=0.1).train()
    protocol = update.protocol.model_copy(update={"epochs": None})
    blind = lm.Update(update.before, update.after, None, 3, protocol)
    for name in ("ig_fedavg", "dlfa"):
        with pytest.raises(lm.LeakmeterError, match=r"protocol\.epochs is unknown"):
            papers.RECIPES[name](iterations=1).run(model, blind)
