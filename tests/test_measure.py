from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

import leakmeter as lm
from leakmeter import LeakmeterError, measure
from victims import tiny_update


def noisy(photos: lm.data.Dataset, count: int) -> tuple[Tensor, Tensor]:
    truth = photos.images[:count]
    generator = torch.Generator().manual_seed(0)
    strength = torch.linspace(0.02, 0.3, count).view(-1, 1, 1, 1)
    found = truth + strength * torch.randn(truth.shape, generator=generator)
    return found.clamp(0, 1), truth


def test_scores_agree_with_scikit_image(photos: lm.data.Dataset) -> None:
    found, truth = noisy(photos, 12)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    scores = measure.images(found[order], truth)
    assert torch.equal(order[scores.pairs], torch.arange(12))
    for index in range(12):
        a, b = found[index].double().numpy(), truth[index].double().numpy()
        expected = structural_similarity(
            a,
            b,
            channel_axis=0,
            data_range=1,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
        assert scores.ssim[index].item() == pytest.approx(expected, abs=1e-6)
        psnr = peak_signal_noise_ratio(b, a, data_range=1)
        assert scores.psnr[index].item() == pytest.approx(psnr, abs=1e-6)
        assert scores.mse[index].item() == pytest.approx(np.mean((a - b) ** 2), abs=1e-9)
    assert (scores.worst, scores.best) == (0, 11)
    assert scores.share_above(scores.psnr.median().item()) == pytest.approx(7 / 12)


def test_psnr_is_averaged_per_image_not_over_the_batch() -> None:
    truth = torch.zeros(2, 1, 16, 16)
    found = torch.stack([torch.full((1, 16, 16), 0.1), torch.full((1, 16, 16), 0.01)])
    scores = measure.images(found, truth)
    assert scores.psnr.mean().item() == pytest.approx((20 + 40) / 2, abs=1e-4)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), count=st.integers(1, 6))
def test_order_does_not_matter(seed: int, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    truth, found = torch.rand((2, count, 1, 11, 11), generator=generator)
    order = torch.randperm(count, generator=generator)
    one, other = measure.images(found, truth), measure.images(found[order], truth)
    torch.testing.assert_close(one.psnr, other.psnr)
    torch.testing.assert_close(one.ssim, other.ssim)
    assert torch.equal(one.pairs, order[other.pairs])
    assert sorted(one.pairs.tolist()) == list(range(count))


def test_a_perfect_copy_has_a_finite_score() -> None:
    truth = torch.rand(2, 3, 16, 16)
    scores = measure.images(truth, truth)
    assert scores.psnr.tolist() == [120.0, 120.0]
    assert scores.ssim.tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    ("found", "truth", "says"),
    [
        ((2, 1, 16, 16), (3, 1, 16, 16), "same shape"),
        ((2, 16, 16), (2, 16, 16), "same shape"),
        ((0, 1, 16, 16), (0, 1, 16, 16), "same shape"),
        ((1, 1, 8, 8), (1, 1, 8, 8), "too small for SSIM"),
    ],
)
def test_shapes_are_checked(found: tuple[int, ...], truth: tuple[int, ...], says: str) -> None:
    with pytest.raises(LeakmeterError, match=says):
        measure.images(torch.zeros(found), torch.zeros(truth))


def test_label_accuracy_counts_repeats_and_ignores_order() -> None:
    accuracy = measure.label_accuracy
    assert accuracy(torch.tensor([3, 1, 1]), torch.tensor([1, 3, 1])) == 1
    assert accuracy(torch.tensor([1, 1, 1]), torch.tensor([1, 3, 1])) == pytest.approx(2 / 3)
    assert accuracy(torch.tensor([0, 2, 9]), torch.tensor([1, 3, 1])) == 0


def test_line_ups_find_good_reconstructions_and_not_noise(photos: lm.data.Dataset) -> None:
    found, truth = noisy(photos, 8)
    rest = photos.select(torch.arange(8, len(photos)))
    labels = photos.labels[:8]
    good = measure.reidentify(found, truth, labels, rest.images, rest.labels)
    assert good.rate == 1
    per_class = torch.bincount(rest.labels, minlength=photos.classes)[labels].double() + 1
    assert good.chance == pytest.approx((1 / per_class).mean().item())
    noise = torch.rand(truth.shape, generator=torch.Generator().manual_seed(0))
    blind = measure.reidentify(noise, truth, labels, rest.images, rest.labels)
    assert blind.rate <= 0.25
    assert measure.reidentify(
        rest.images[:8], truth, labels, rest.images, rest.labels
    ).rate == pytest.approx(0)


def test_a_class_without_distractors_meets_the_whole_pool(photos: lm.data.Dataset) -> None:
    others = photos.select((photos.labels != photos.labels[0]).nonzero().flatten())
    one = measure.reidentify(
        photos.images[:1], photos.images[:1], photos.labels[:1], others.images, others.labels
    )
    assert one.rate == 1
    assert one.chance == pytest.approx(1 / (len(others) + 1))


def test_bootstrap_interval_covers_the_mean() -> None:
    covered = 0
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        found = measure.interval(3 + torch.randn(30, generator=generator), seed=seed)
        covered += found.low <= 3 <= found.high
        assert found.low < found.mean < found.high
    assert 85 <= covered <= 100
    alone = measure.interval(torch.tensor([2.0]))
    assert alone.mean == 2
    assert math.isnan(alone.low)


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611)],
)
def test_shares_have_wilsons_interval(hits: int, total: int, low: float, high: float) -> None:
    """Newcombe 1998, table I, method 3."""
    found = measure.share(hits, total)
    assert found == pytest.approx((hits / total, low, high), abs=5e-5)
    other = measure.share(total - hits, total)
    assert other == pytest.approx((1 - hits / total, 1 - found.high, 1 - found.low))
    wider = measure.share(hits, total, confidence=0.99)
    assert wider.high > found.high


@pytest.mark.parametrize(
    ("hits", "total", "says"),
    [(0, 0, "total is 0"), (4, 3, "hits is 4"), (-1, 3, "hits is -1")],
)
def test_a_share_needs_trials(hits: int, total: int, says: str) -> None:
    with pytest.raises(LeakmeterError, match=says):
        measure.share(hits, total)


def test_signal_free_updates_keep_only_the_norm() -> None:
    update = tiny_update()
    blank = measure.signal_free(update, seed=1)
    assert blank.after is not None
    assert update.after is not None
    assert blank.protocol == update.protocol
    for name, start in update.before.items():
        moved, real = blank.after[name] - start, update.after[name] - start
        torch.testing.assert_close(moved.norm(), real.norm(), rtol=1e-3, atol=1e-5)
    moved, real = (
        torch.cat([(u.after[n] - u.before[n]).flatten() for n in u.before])  # type: ignore[index]
        for u in (blank, update)
    )
    assert torch.nn.functional.cosine_similarity(moved, real, dim=0).abs() < 0.2
