"""Labels out of the last layer: each method on what it is made for, and the choice among them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import leakmeter as lm
from leakmeter import LeakmeterError, papers
from leakmeter.attacks.labels import (
    Automatic,
    Counts,
    EmbeddingCounts,
    InterpolatedCounts,
    Labels,
    RowMinima,
    SignCounts,
    Single,
)
from leakmeter.attacks.problem import Problem
from victims import examples, tiny, tiny_update

PLAIN = [RowMinima(), SignCounts(), EmbeddingCounts(), InterpolatedCounts(), Counts(), Automatic()]
CLASSES = 10
DISTINCT = torch.tensor([1, 4, 6, 9])
REPEATS = torch.tensor([2, 2, 2, 5, 5, 5, 7, 7])


def head_of(model: nn.Module) -> nn.Linear:
    return [module for module in model.modules() if isinstance(module, nn.Linear)][-1]


def without_bias(model: nn.Module) -> nn.Module:
    head_of(model).register_parameter("bias", None)
    return model


def client(labels: Tensor, model: nn.Module | None = None, **training: Any) -> lm.Client:
    images, _ = examples(count=len(labels))
    settings = {"lr": 0.004, "normalize": ((0.5,), (0.29,)), **training}
    return lm.Client(model or tiny(CLASSES), images, labels, **settings)


def problem_of(update: lm.Update, model: nn.Module | None = None) -> Problem:
    return Problem.of(model or tiny(CLASSES), update, None)


class Trained(NamedTuple):
    """A network, and the photos that it was not trained on."""

    model: nn.Module
    images: Tensor
    labels: Tensor


@pytest.fixture(scope="module")
def trained(photos: lm.data.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    order = torch.randperm(len(photos), generator=torch.Generator().manual_seed(0))
    mine, others = order[::2], order[1::2]
    model = lm.federated.federate(
        lm.models.build("lenet-zhu", classes=photos.classes),
        [(photos.images[others], photos.labels[others])],
        rounds=1,
        cache=tmp_path_factory.mktemp("rounds"),
        epochs=20,
        batch_size=10,
        lr=0.05,
        momentum=0.9,
        normalize="photos",
    )
    return Trained(model, photos.images[mine], photos.labels[mine])


@pytest.mark.parametrize("method", PLAIN, ids=repr)
def test_distinct_labels_of_one_gradient_are_exact(method: Labels) -> None:
    problem = problem_of(client(DISTINCT).gradient())
    assert method.recover(problem).tolist() == DISTINCT.tolist()


@pytest.mark.parametrize("method", PLAIN[1:], ids=repr)
def test_repeated_labels_of_one_gradient_are_exact(method: Labels) -> None:
    problem = problem_of(client(REPEATS).gradient())
    assert method.recover(problem).tolist() == REPEATS.tolist()


def test_row_minima_cannot_see_repeats() -> None:
    found = RowMinima().recover(problem_of(client(REPEATS).gradient()))
    assert len(found.unique()) == len(REPEATS)
    assert {2, 5, 7} <= set(found.tolist())


@pytest.mark.parametrize("method", PLAIN[1:], ids=repr)
def test_the_movement_of_weights_has_the_sign_of_a_gradient(method: Labels) -> None:
    """With the sign of wT - w0, none of these labels would be found."""
    update = client(REPEATS, epochs=5, batch_size=3).train()
    problem = problem_of(update)
    assert method.recover(problem).tolist() == REPEATS.tolist()
    flipped = replace(problem, observed={name: -t for name, t in problem.observed.items()})
    assert lm.measure.label_accuracy(method.recover(flipped), REPEATS) < 0.5


@pytest.mark.parametrize("method", [Single(), *PLAIN], ids=repr)
@pytest.mark.parametrize("epochs", [0, 7])
def test_the_label_of_one_example_is_exact(method: Labels, epochs: int) -> None:
    for label in torch.tensor([[0], [6]]):
        victim = client(label, epochs=max(1, epochs))
        update = victim.train() if epochs else victim.gradient()
        assert method.recover(problem_of(update)).tolist() == label.tolist()


@pytest.mark.parametrize("method", [SignCounts(), InterpolatedCounts(), Counts(), Automatic()])
def test_a_last_layer_without_bias_is_enough(method: Labels) -> None:
    model = without_bias(tiny(CLASSES))
    problem = problem_of(client(REPEATS, model, epochs=5).train(), model)
    assert method.recover(problem).tolist() == REPEATS.tolist()


@pytest.mark.parametrize("hides", [{"lr": None}, {"epochs": None}, {"optimizer": None}])
@pytest.mark.parametrize("method", [SignCounts(), Counts(), Automatic()])
def test_the_step_size_need_not_be_known(method: Labels, hides: dict[str, None]) -> None:
    update = client(REPEATS, epochs=5, batch_size=3).train()
    unsure = replace(update, protocol=update.protocol.model_copy(update=hides))
    assert method.recover(problem_of(unsure)).tolist() == REPEATS.tolist()


@pytest.mark.parametrize("training", [{"momentum": 0.9}, {"reduction": "sum"}])
def test_other_clients_than_plain_ones_are_read_too(training: dict[str, Any]) -> None:
    problem = problem_of(client(REPEATS, epochs=5, batch_size=3, **training).train())
    assert Automatic().recover(problem).tolist() == REPEATS.tolist()


@pytest.mark.parametrize("labels", [DISTINCT, REPEATS], ids=["distinct", "repeats"])
def test_label_smoothing_is_taken_out(labels: Tensor) -> None:
    problem = problem_of(client(labels, label_smoothing=0.3).gradient())
    assert Automatic().recover(problem).tolist() == labels.tolist()


def test_rounding_is_not_taken_for_a_label() -> None:
    """Classes that are never predicted move by mere rounding, some of them downwards."""
    model = tiny(CLASSES)
    with torch.no_grad():
        head_of(model).bias[5:] = -30.0
    labels = torch.tensor([0] * 9 + [3] * 3)
    problem = problem_of(client(labels, model, epochs=3, batch_size=4).train(), model)
    rounded = {name: tensor - 1e-9 for name, tensor in problem.observed.items()}
    for method in (EmbeddingCounts(), Counts(), Automatic()):
        found = method.recover(replace(problem, observed=rounded))
        assert found.tolist() == labels.tolist()


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("shares", ["gradient", "weights"])
def test_automatic_is_no_worse_than_any_method_on_a_trained_network(
    trained: Trained, shares: str, skewed: bool
) -> None:
    """Over ten clients; half a label in ten is left to chance."""
    sums = dict.fromkeys(map(repr, PLAIN), 0.0)
    for seed in range(10):
        some = torch.randperm(len(trained.labels), generator=torch.Generator().manual_seed(seed))
        if skewed:
            some = some[torch.isin(trained.labels[some], trained.labels[some[:2]])]
        images, labels = trained.images[some[:10]], trained.labels[some[:10]]
        victim = lm.Client(trained.model, images, labels, epochs=3, lr=0.004, normalize="photos")
        update = victim.gradient() if shares == "gradient" else victim.train()
        problem = Problem.of(trained.model, update, None)
        for method in PLAIN:
            sums[repr(method)] += lm.measure.label_accuracy(method.recover(problem), labels) / 10
    print(sums)
    assert sums[repr(Automatic())] >= max(sums.values()) - 0.05
    assert sums[repr(Automatic())] >= 0.8


@pytest.mark.parametrize("shares", ["gradient", "weights"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [1, 8, 24])
def test_labels_of_photos_are_recovered_with_repeats(
    photos: lm.data.Dataset, shares: str, bias: bool, count: int
) -> None:
    model = lm.models.build("cnn-cifar", classes=photos.classes if bias else 100)
    model = model if bias else without_bias(model)
    generator = torch.Generator().manual_seed(count)
    some = torch.randperm(len(photos), generator=generator)[:count]
    labels = photos.labels[some]
    victim = lm.Client(model, photos.images[some], labels, epochs=5, lr=0.004, normalize="photos")
    update = victim.gradient() if shares == "gradient" else victim.train()
    found = Automatic().recover(Problem.of(model, update, None))
    assert len(found) == count
    assert lm.measure.label_accuracy(found, labels) >= (0.95 if bias else 0.85)


def test_an_attack_recovers_labels_automatically() -> None:
    assert papers.ig().labels == Automatic()


def test_idlg_reads_one_label_only() -> None:
    with pytest.raises(LeakmeterError, match="4 examples, but iDLG reads the label of one"):
        Single().recover(problem_of(client(DISTINCT).gradient()))


def test_embedding_counts_ask_for_a_bias_and_a_step_size() -> None:
    model = without_bias(tiny(CLASSES))
    update = client(DISTINCT, epochs=5).train()
    unsure = replace(update, protocol=update.protocol.model_copy(update={"lr": None}))
    for problem in (
        problem_of(client(DISTINCT, model).gradient(), model),
        problem_of(unsure),
    ):
        with pytest.raises(LeakmeterError, match="need a bias in the last layer and a known"):
            EmbeddingCounts().recover(problem)


def test_interpolated_counts_ask_for_the_step_size() -> None:
    update = client(DISTINCT, epochs=5).train()
    unsure = replace(update, protocol=update.protocol.model_copy(update={"lr": None}))
    with pytest.raises(LeakmeterError, match=r"protocol\.lr is unknown but needed"):
        InterpolatedCounts().recover(problem_of(unsure))


def test_labels_need_a_dense_last_layer() -> None:
    model = nn.Sequential(nn.Conv2d(1, 5, 12), nn.Flatten())
    update = lm.Client(model, *examples(), lr=0.1).train()
    with pytest.raises(LeakmeterError, match="pass labels="):
        papers.ig(1).run(model, update)


@pytest.mark.parametrize("method", PLAIN, ids=repr)
def test_an_update_that_says_nothing_about_labels_still_gets_some(method: Labels) -> None:
    problem = problem_of(client(DISTINCT).gradient())
    for value in (0.0, 1.0):
        blank = {name: torch.full_like(t, value) for name, t in problem.observed.items()}
        assert len(method.recover(replace(problem, observed=blank))) == len(DISTINCT)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (torch.tensor([0, 1]), "labels must be 3 integers"),
        (torch.tensor([0.0, 1.0, 2.0]), "labels must be 3 integers"),
        (torch.tensor([0, 1, 5]), "0..4"),
    ],
)
def test_wrong_labels_are_refused(labels: Tensor, says: str) -> None:
    with pytest.raises(LeakmeterError, match=says):
        papers.ig(1).run(tiny(), tiny_update(), labels=labels)
