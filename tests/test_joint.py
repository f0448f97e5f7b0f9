"""Several updates of one client: the pairing of their images, and what all of them give away."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import leakmeter as lm
from leakmeter import LeakmeterError, papers
from leakmeter.attacks import joint
from leakmeter.attacks.attack import RunOptions
from victims import examples, tiny


def found(images: Tensor, labels: list[int]) -> lm.Reconstruction:
    return lm.Reconstruction(images, torch.tensor(labels), {}, 0.0, "", 0, True)


def test_images_are_paired_from_the_most_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((4, 1, 12, 12), generator=generator)
    noisy = images + 0.3 * torch.randn(images.shape, generator=generator)
    order = [2, 0, 3, 1]
    first = [found(images[:2], [0, 1]), found(images[2:], [2, 3])]
    second = [found(noisy[order][:3], [2, 0, 3]), found(noisy[order][3:], [1])]
    assert joint.match(first, second).tolist() == [1, 3, 0, 2]


def test_a_label_in_common_rules_out_look_alikes() -> None:
    light, dark = torch.full((1, 1, 12, 12), 0.9), torch.full((1, 1, 12, 12), 0.1)
    first = [found(light, [0]), found(dark, [1])]
    second = [found(light, [1]), found(dark, [0])]
    assert joint.match(first, second, by_label=False).tolist() == [0, 1]
    assert joint.match(first, second, by_label=True).tolist() == [1, 0]
    assert lm.measure.matching_rate(torch.tensor([1, 0]), [0, 1], [1, 0]) == 1
    assert lm.measure.matching_rate(torch.tensor([0, 1]), [0, 1], [1, 0]) == 0


def test_two_updates_together_give_away_more_than_each_on_average() -> None:
    """Eight images at two states of the network, in other batches (AGIC, table VI)."""
    photos = lm.data.load("photos", size=16)
    model = lm.models.build("cnn-cifar", classes=photos.classes, size=16)
    others = [(photos.images[64:], photos.labels[64:])]
    later = lm.federated.federate(model, others, rounds=5, lr=0.05, normalize="photos")
    some = torch.randperm(64, generator=torch.Generator().manual_seed(0))[:8]
    images, labels = photos.images[some], photos.labels[some]
    batches = [[[0, 1, 2, 3, 4], [5, 6, 7]], [[7, 1, 5, 3, 0, 2, 6, 4]]]
    epochs = [
        [lm.Client(net, images[b], labels[b], normalize="photos").gradient() for b in epoch]
        for net, epoch in zip((model, later), batches, strict=True)
    ]
    told = [[labels[batch] for batch in epoch] for epoch in batches]
    together = joint.reconstruct(papers.ig(100), model, epochs, labels=told, rehearsal=100)
    shown = [
        [
            batch[original]
            for batch, alone in zip(epoch, found, strict=True)
            for original in lm.measure.images(alone.images, images[batch]).pairs.argsort().tolist()
        ]
        for epoch, found in zip(batches, together.alone, strict=True)
    ]
    assert lm.measure.matching_rate(together.pairs[0], shown[0], shown[1]) >= 0.75
    both = lm.measure.images(together.found.images, images).psnr.mean().item()
    alone = [
        lm.measure.images(torch.cat([each.images for each in epoch]), images).psnr.mean().item()
        for epoch in together.alone
    ]
    print(both, alone)
    assert both > sum(alone) / 2 + 0.3
    assert together.found.labels_known


def test_a_simulation_keeps_every_image_apart() -> None:
    images, labels = examples(count=4)

    def update(which: list[int], seed: int) -> lm.Update:
        client = lm.Client(tiny(), images[which], labels[which], epochs=2, lr=0.1, seed=seed)
        return client.train()

    epochs = [[update([0, 1], 0), update([2, 3], 1)], [update([0, 2], 2), update([1, 3], 3)]]
    found = joint.reconstruct(papers.ig_fedavg(3), tiny(), epochs, rehearsal=2).found
    assert found.images.shape == (4, 1, 12, 12)
    assert found.labels.shape == (4,)
    with pytest.raises(LeakmeterError, match="takes one update"):
        joint.reconstruct(papers.dlfa(1), tiny(), epochs)


def test_what_was_finished_is_not_done_again(tmp_path: Path) -> None:
    images, labels = examples()
    epochs = [[lm.Client(tiny(), images, labels, epochs=e, lr=0.1).train()] for e in (1, 2)]
    calls: list[int] = []

    def pull_the_plug(done: int, total: int, match: object) -> None:
        calls.append(total)
        if total == 9 and done == 5:
            raise KeyboardInterrupt

    attack = papers.ig(9)
    expected = joint.reconstruct(attack, tiny(), epochs, rehearsal=4).found
    with pytest.raises(KeyboardInterrupt):
        joint.reconstruct(
            attack,
            tiny(),
            epochs,
            rehearsal=4,
            options=RunOptions(on_progress=pull_the_plug, folder=tmp_path),
        )
    calls.clear()
    again = joint.reconstruct(
        attack,
        tiny(),
        epochs,
        rehearsal=4,
        options=RunOptions(
            on_progress=lambda done, total, match: calls.append(total), folder=tmp_path
        ),
    )
    assert calls == [9] * 4
    assert torch.equal(again.found.images, expected.images)


def test_epochs_must_cover_the_same_examples() -> None:
    images, labels = examples()
    one = lm.Client(tiny(), images, labels).gradient()
    other = lm.Client(tiny(), images[:2], labels[:2]).gradient()
    with pytest.raises(LeakmeterError, match=r"\[3, 2\] examples"):
        joint.reconstruct(papers.ig(1), tiny(), [[one], [other]])
    with pytest.raises(LeakmeterError, match=r"use Attack\.run"):
        joint.reconstruct(papers.ig(1), tiny(), [[one]])
