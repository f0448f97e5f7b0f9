from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

import leakmeter as lm
from leakmeter import LeakmeterError, measure
from leakmeter.data.image import decode
from leakmeter.measure import Lpips, lpips
from leakmeter.measure.finding import Scores
from leakmeter.pixels import as_images

SHARED = Path(__file__).parents[2] / "shared" / "data"


def random_weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in lpips.SHAPES.items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("_w"):
            fan = shape[1] * shape[2] * shape[3]
            # Kernels without a mean see edges and not brightness, unlike the squared error.
            weights[name] = (noise - noise.mean((2, 3), keepdim=True)) * (2 / fan) ** 0.5
        else:
            weights[name] = 0.01 * noise if name.endswith("_b") else noise.clamp_min(0)
    return weights


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return random_weights()


@pytest.fixture(scope="module")
def network(weights: dict[str, Tensor]) -> Lpips:
    return Lpips(weights)


@pytest.fixture(scope="module")
def archive(weights: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "alex.npz"
    np.savez(path, allow_pickle=False, **{name: t.numpy() for name, t in weights.items()})
    return path


def some(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


def test_the_published_example() -> None:
    path = SHARED / "lpips_alex.npz"
    if not path.exists():
        pytest.skip(f"no real weights at {os.path.relpath(path)}")
    files = [SHARED / "lpips_example" / f"ex_{name}.png" for name in ("ref", "p0", "p1")]
    reference, *others = (as_images(decode(file)[None]) for file in files)
    real = Lpips.load(path)
    found = real.distances(reference, torch.cat(others))
    assert [f"{value:.4f}" for value in found[0].tolist()] == ["0.7219", "0.1376"]


def by_definition(weights: dict[str, Tensor], a: Tensor, b: Tensor) -> Tensor:
    """LPIPS as the paper writes it, in double precision on PyTorch's own layers."""
    pool = nn.MaxPool2d(3, stride=2)
    convs = [
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.Conv2d(256, 256, 3, padding=1),
    ]
    shift = torch.tensor([-0.030, -0.088, -0.188]).view(3, 1, 1)
    scale = torch.tensor([0.458, 0.448, 0.450]).view(3, 1, 1)
    x, y = ((2 * side.double() - 1 - shift) / scale for side in (a, b))
    total = torch.zeros(len(a), dtype=torch.float64)
    for index, conv in enumerate(convs):
        state = {"weight": weights[f"conv{index}_w"], "bias": weights[f"conv{index}_b"]}
        conv.load_state_dict(state)
        step = nn.Sequential(*([pool] if index in (1, 2) else []), conv.double(), nn.ReLU())
        x, y = step(x), step(y)
        unit = [side / side.square().sum(1, keepdim=True).sqrt() for side in (x, y)]
        head = weights[f"lin{index}"].double().view(-1, 1, 1)
        total += ((unit[0] - unit[1]).square() * head).sum(1).mean((1, 2)).detach()
    return total


def test_a_distance_is_that_of_the_definition(network: Lpips, weights: dict[str, Tensor]) -> None:
    a, b = some(2, 3, 3, 75, 66)
    expected = by_definition(weights, a, b)
    assert expected.min() > 0.1
    torch.testing.assert_close(network.distance(a, b), expected, rtol=1e-4, atol=0)
    everyone = network.distances(a, torch.cat([b, a]))
    torch.testing.assert_close(everyone[:, :3].diagonal(), expected, rtol=1e-4, atol=0)
    assert everyone[:, 3:].diagonal().abs().max() < 1e-9
    apart = torch.cdist(network.embed(a), network.embed(b)).square()
    torch.testing.assert_close(apart.double(), everyone[:, :3], rtol=1e-3, atol=0)


def test_both_formats_hold_the_same(archive: Path, network: Lpips, tmp_path: Path) -> None:
    stored = tmp_path / "alex.safetensors"
    save_file({**network.weights, "unrelated": torch.zeros(2)}, stored)
    images = some(2, 3, 64, 64)
    expected = network.embed(images)
    assert torch.equal(Lpips.load(str(stored)).embed(images), expected)
    assert torch.equal(Lpips.load(archive).embed(images), expected)


@pytest.mark.parametrize(
    ("size", "enlarged"), [((28, 28), (64, 64)), ((32, 48), (64, 96)), ((100, 25), (256, 64))]
)
def test_small_images_are_enlarged(
    network: Lpips, size: tuple[int, int], enlarged: tuple[int, int]
) -> None:
    images = some(2, 3, *size)
    by_hand = functional.interpolate(images, enlarged, mode="bilinear", align_corners=False)
    assert torch.equal(network.embed(images), network.embed(by_hand))


def test_gray_images_have_three_equal_channels(network: Lpips) -> None:
    gray = some(2, 1, 64, 64)
    torch.testing.assert_close(network.embed(gray), network.embed(gray.repeat(1, 3, 1, 1)))


def embedded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that are embedded from now on."""
    sizes: list[int] = []
    embed = Lpips._embed

    def counting(network: Lpips, batch: Tensor) -> Tensor:
        sizes.append(len(batch))
        return embed(network, batch)

    monkeypatch.setattr(Lpips, "_embed", counting)
    return sizes


def test_batches_bound_the_memory_and_change_nothing(
    network: Lpips, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = some(7, 1, 32, 32)
    whole = network.distances(images[:2], images)
    paired = network.distance(images, images.flip(0))
    sizes = embedded(monkeypatch)
    monkeypatch.setattr(lpips, "_BATCH_PIXELS", 3 * 64 * 64)
    monkeypatch.setattr(lpips, "_ROWS", 1)
    torch.testing.assert_close(network.distances(images[:2], images), whole)
    assert sizes == [2, 3, 3, 1]
    torch.testing.assert_close(network.distance(images, images.flip(0)), paired)
    assert max(sizes) == 3


@pytest.mark.parametrize("size", [(2000, 2000), (11, 3000)])
def test_large_images_go_one_by_one(size: tuple[int, int]) -> None:
    huge = torch.zeros(1, 1, 1, 1).expand(3, 3, *size)
    assert [len(batch) for batch in lpips._batches(huge)] == [1, 1, 1]


@pytest.mark.parametrize("shape", [(2, 64, 64), (2, 2, 64, 64), (0, 3, 64, 64), (2, 3, 0, 64)])
def test_only_pictures_are_embedded(network: Lpips, shape: tuple[int, ...]) -> None:
    with pytest.raises(LeakmeterError, match="1 or 3 channels"):
        network.embed(torch.zeros(shape))


def test_sides_must_agree(network: Lpips) -> None:
    with pytest.raises(LeakmeterError, match="same shape"):
        network.distance(some(2, 3, 64, 64), some(3, 3, 64, 64))
    with pytest.raises(LeakmeterError, match="same size"):
        network.distances(some(2, 3, 64, 64), some(2, 3, 64, 65))


def with_nan(tensor: Tensor) -> Tensor:
    return tensor.index_fill(0, torch.tensor([1]), torch.nan)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("conv3_b", lambda tensor: None, "'conv3_b' is missing"),
        ("conv0_w", lambda tensor: tensor[:, :1], r"'conv0_w' must be floats .*\(64, 1, 11, 11\)"),
        ("lin2", lambda tensor: tensor[None, :, None, None], r"'lin2' must be floats .*\(384,\)"),
        ("lin1", lambda tensor: tensor.long(), "'lin1' must be floats .* not torch.int64"),
        ("conv4_w", with_nan, "'conv4_w' contains NaN or Inf"),
        ("lin0", lambda tensor: tensor - 1e-3, "'lin0' has negative weights"),
    ],
)
def test_bad_weights_are_named(
    weights: dict[str, Tensor],
    tmp_path: Path,
    name: str,
    change: Callable[[Tensor], Tensor | None],
    says: str,
) -> None:
    changed = change(weights[name])
    bad = {key: tensor for key, tensor in weights.items() if key != name}
    bad |= {} if changed is None else {name: changed.contiguous()}
    save_file(bad, tmp_path / "bad.safetensors")
    with pytest.raises(LeakmeterError, match=f"^{says}.*measure.Lpips shows how"):
        Lpips(bad)
    with pytest.raises(LeakmeterError, match=f"bad.safetensors: {says}.*measure.Lpips shows how"):
        Lpips.load(tmp_path / "bad.safetensors")


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def write_pickle(path: Path, bomb: Bomb) -> None:
    path.write_bytes(pickle.dumps(bomb))


def write_torch(path: Path, bomb: Bomb) -> None:
    torch.save({"conv0_w": bomb}, path)


def write_objects(path: Path, bomb: Bomb) -> None:
    np.savez(path, allow_pickle=True, conv0_w=np.array([bomb], dtype=object))


@pytest.mark.parametrize(
    ("write", "name", "says"),
    [
        (write_pickle, "w.npz", "w.npz is a pickle"),
        (write_torch, "w.npz", "w.npz is a pickle"),
        (write_objects, "w.npz", "'conv0_w': Object arrays cannot be loaded"),
        (write_pickle, "w.safetensors", "w.safetensors is a pickle"),
        (write_torch, "w.pth", r"must be .npz or .safetensors; pickles \(.pth\) are never opened"),
    ],
)
def test_pickles_are_refused_and_not_run(
    tmp_path: Path, write: Callable[[Path, Bomb], None], name: str, says: str
) -> None:
    write(tmp_path / name, Bomb(tmp_path / "exploded"))
    with pytest.raises(LeakmeterError, match=f"{says}.*measure.Lpips shows how"):
        Lpips.load(tmp_path / name)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("kept", [0, 1, 100, 50_000, 9_000_000])
def test_truncated_files_are_refused(archive: Path, tmp_path: Path, kept: int) -> None:
    stored = tmp_path / "cut.safetensors"
    save_file(random_weights(), stored)
    for whole, cut in ((archive, tmp_path / "cut.npz"), (stored, stored)):
        content = whole.read_bytes()
        assert kept < len(content)
        cut.write_bytes(content[:kept])
        with pytest.raises(LeakmeterError, match=r"cut\..*measure.Lpips shows how"):
            Lpips.load(cut)


def test_damaged_missing_and_oversized_arrays(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(archive.read_bytes())
    content[5_000_000] ^= 1
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(content)
    with pytest.raises(LeakmeterError, match=r"damaged.npz: not a readable array 'conv\d_w'"):
        Lpips.load(damaged)
    for suffix in ("npz", "safetensors"):
        with pytest.raises(LeakmeterError, match=f"none.{suffix}"):
            Lpips.load(tmp_path / f"none.{suffix}")
    words = tmp_path / "words.npz"
    np.savez(words, conv0_w=np.array(["a"]))
    with pytest.raises(LeakmeterError, match="'conv0_w': it holds <U1, not floats"):
        Lpips.load(words)
    monkeypatch.setattr(lpips, "_MOST_BYTES", 2**16)
    with pytest.raises(LeakmeterError, match=r"'conv0_w': it has .* bytes"):
        Lpips.load(archive)


def test_other_precisions_are_read(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    double = {name: tensor.double().numpy().astype(">f8") for name, tensor in weights.items()}
    np.savez(tmp_path / "double.npz", allow_pickle=False, **double)
    loaded = Lpips.load(tmp_path / "double.npz")
    assert all(torch.equal(loaded.weights[name], tensor) for name, tensor in weights.items())
    np.savez(tmp_path / "large.npz", allow_pickle=False, **{**double, "lin4": np.full(256, 1e300)})
    with pytest.raises(LeakmeterError, match="'lin4' contains NaN or Inf"):
        Lpips.load(tmp_path / "large.npz")


# pairing and line-ups

LIGHT = 0.2


@pytest.fixture
def dim(photos: lm.data.Dataset) -> Tensor:
    """Crops of eight photographs, so flat that ``LIGHT`` changes more than the picture does."""
    images = photos.images[[int((photos.labels == label).nonzero()[0]) for label in range(8)]]
    return 0.4 + 0.3 * (images - images.mean((1, 2, 3), keepdim=True))


def test_lpips_decides_the_pairing(network: Lpips, dim: Tensor) -> None:
    truth = torch.stack([dim[0], dim[1] + LIGHT])
    found = torch.stack([dim[0] + LIGHT, dim[1]])
    by_error, by_look = measure.images(found, truth), measure.images(found, truth, network)
    assert by_error.lpips is None
    assert by_error.pairs.tolist() == [1, 0]
    assert by_look.pairs.tolist() == [0, 1]
    assert by_look.lpips is not None
    torch.testing.assert_close(by_look.lpips, network.distance(found, truth))
    torch.testing.assert_close(by_look.mse, torch.full((2,), LIGHT**2).double())


def test_lpips_decides_who_is_nearest(network: Lpips, dim: Tensor) -> None:
    truth, found, pool = dim[:3], dim[:3] + LIGHT, dim[3:] + LIGHT
    labels, pool_labels = torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1, 1, 1])
    arguments = (found, truth, labels, pool, pool_labels)
    by_error, by_look = measure.reidentify(*arguments), measure.reidentify(*arguments, network)
    assert by_error.hits.tolist() == [False] * 3
    assert by_look.hits.tolist() == [True] * 3
    assert by_look.chance == by_error.chance
    swapped = (found[[1, 0, 2]], truth, labels, pool, pool_labels)
    pool[0] = truth[1]
    assert measure.reidentify(*swapped, network).hits.tolist() == [False, False, True]


def test_only_its_own_class_stands_in_a_line_up(network: Lpips, dim: Tensor) -> None:
    # The pool holds the very likeness of each reconstruction, but in the other's class.
    truth, found = dim[:2], dim[:2] + LIGHT
    labels, pool_labels = torch.tensor([0, 1]), torch.tensor([1, 0])
    apart = measure.reidentify(found, truth, labels, found, pool_labels, network)
    assert apart.hits.tolist() == [True, True]
    assert apart.chance == pytest.approx(1 / 2)
    anyone = measure.reidentify(found, truth, labels, found, pool_labels + 5, network)
    assert anyone.hits.tolist() == [False, False]
    assert anyone.chance == pytest.approx(1 / 3)


def test_a_twin_in_the_line_up_is_a_tie_whatever_its_batch(
    network: Lpips, dim: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (dim + 0.05 * some(*dim.shape)).clamp(0, 1)
    labels = torch.zeros(8, dtype=torch.long)
    for batch in (1, 3, 16):
        monkeypatch.setattr(lpips, "_BATCH_PIXELS", batch * 64 * 64)
        twins = measure.reidentify(found, dim, labels, dim, labels, network)
        assert not twins.hits.any()


def test_each_image_of_the_pool_is_embedded_once(
    network: Lpips, dim: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = embedded(monkeypatch)
    labels, pool_labels = torch.tensor([0, 0, 0]), torch.tensor([0, 0, 1, 1, 1])
    measure.reidentify(dim[:3], dim[:3], labels, dim[3:], pool_labels, network)
    assert sum(sizes) == 3 + 2 + 3 + 3  # found, the pool's class 0, and found with truth


def reconstruction(images: Tensor, labels: Tensor) -> lm.Reconstruction:
    return lm.Reconstruction(
        images, labels, history={}, seconds=0.0, attack="none", seed=0, labels_known=True
    )


def test_a_finding_holds_lpips(network: Lpips, dim: Tensor) -> None:
    truth, pool = dim[:2] + torch.tensor([0.0, LIGHT]).view(2, 1, 1, 1), dim[2:]
    labels = torch.tensor([0, 1])
    found = reconstruction(dim[:2] + torch.tensor([LIGHT, 0.0]).view(2, 1, 1, 1), labels)
    blank = reconstruction(some(*truth.shape), labels)
    arguments = (found, blank, truth, labels, pool, torch.arange(6) % 2)
    plain, seen = measure.measure(*arguments), measure.measure(*arguments, network)
    assert plain.scores.lpips is plain.baseline.lpips is None
    assert seen.scores.pairs == [0, 1] != plain.scores.pairs
    assert seen.scores.reidentified == [True, True]
    assert seen.scores.lpips == pytest.approx(network.distance(found.images, truth).tolist())
    assert seen.baseline.lpips is not None
    assert max(seen.scores.lpips or []) < min(seen.baseline.lpips)
    assert measure.Finding.model_validate_json(seen.model_dump_json()) == seen
    before = plain.scores.model_dump(exclude={"lpips"})
    assert Scores.model_validate(before) == plain.scores
