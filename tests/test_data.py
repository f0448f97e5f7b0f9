"""The registry, the dataset itself, the embedded sets and the user's own files."""

from __future__ import annotations

import socket
import struct
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from leakmeter import data
from leakmeter.errors import LeakmeterError

SHARED = Path(__file__).parents[2] / "shared" / "data"
RNG = np.random.default_rng(0)


def pixels(*shape: int) -> NDArray[np.uint8]:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def bytes_of(dataset: data.Dataset) -> NDArray[np.uint8]:
    """The images as uint8 [N, H, W, C], to compare with what was written."""
    assert dataset.images.dtype == torch.float32
    assert 0 <= float(dataset.images.min()) <= float(dataset.images.max()) <= 1
    scaled: NDArray[np.float32] = dataset.images.permute(0, 2, 3, 1).numpy() * 255
    assert np.abs(scaled - scaled.round()).max() < 1e-4
    return scaled.round().astype(np.uint8)


# The registry and the dataset


def test_every_kind_is_described_in_one_line_with_its_form() -> None:
    assert data.names()[:2] == ["photos", "faces"]
    for name in data.names():
        line = data.describe(name)
        assert line.startswith(name)
        assert "\n" not in line
    assert data.describe("npz").startswith("npz:FILE: ")
    assert data.describe("cifar10").startswith("cifar10:FOLDER: ")


@pytest.mark.parametrize(
    ("spec", "size", "message"),
    [
        ("cifar:/x", None, "unknown dataset 'cifar': did you mean 'cifar1"),
        ("npz", None, "write it as npz:FILE"),
        ("mnist:", None, "write it as mnist:FOLDER"),
        ("photos:/x", None, "write it as photos"),
        ("photos", 0, "size: must be at least 1 pixel, not 0"),
        ("npz:~no-such-user-here/x", None, "cannot be read"),
        ("npz:" + "x" * 5000, None, "cannot be read"),
        ("npz:/no/such.npz", None, r"^/no/such.npz: file not found: .*'images' .* and 'labels'"),
        ("folder:/no/such", None, "^/no/such: folder not found: .* one subfolder per class"),
    ],
)
def test_bad_specs_say_what_to_write(spec: str, size: int | None, message: str) -> None:
    with pytest.raises(LeakmeterError, match=message):
        data.load(spec, size=size)


def test_unknown_names_give_the_nearest() -> None:
    with pytest.raises(LeakmeterError, match="did you mean 'mnist'"):
        data.describe("minst")
    with pytest.raises(LeakmeterError, match="did you mean 'imagenet'"):
        data.normalization("imagenett")


def test_normalization_constants() -> None:
    assert data.normalization("mnist") == ((0.1307,), (0.3081,))
    for name in ("fashion-mnist", "femnist", "cifar10", "cifar100", "imagenet", "lfw"):
        mean, std = data.normalization(name)
        assert len(mean) == len(std) in (1, 3)
        assert all(0 < value < 1 for value in mean + std)


@pytest.mark.parametrize("indices", [[2, 0], torch.tensor([2, 0]), range(2, -1, -2)])
def test_select_keeps_order_and_all_else(indices: Any) -> None:
    whole = data.Dataset(
        name="three",
        images=torch.rand(3, 1, 2, 4),
        labels=torch.tensor([0, 1, 1]),
        class_names=("a", "b"),
        writer=torch.tensor([7, 8, 9]),
    )
    part = whole.select(indices)
    assert (len(whole), whole.classes, whole.shape) == (3, 2, (1, 2, 4))
    assert (len(part), part.classes, part.name) == (2, 2, "three")
    assert torch.equal(part.images, whole.images[[2, 0]])
    assert part.labels.tolist() == [1, 0]
    assert part.writer is not None
    assert part.writer.tolist() == [9, 7]


@pytest.mark.parametrize("indices", [[200], [-1], [0.5], [True, False], [[0]]])
def test_select_refuses_what_is_no_index(indices: Any) -> None:
    with pytest.raises(LeakmeterError, match=r"indices: .* integers in 0 .. 199 for 'faces'"):
        data.load("faces").select(indices)


def test_select_nothing() -> None:
    assert len(data.load("faces").select([])) == 0


# The embedded sets


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("went to the network")

    monkeypatch.setattr(socket, "socket", refuse)


def nearest(images: torch.Tensor) -> float:
    """The smallest mean squared difference between two of the images."""
    flat = images.flatten(1)
    return float(torch.pdist(flat).square().min()) / flat.shape[1]


def check_normalization(dataset: data.Dataset) -> None:
    assert dataset.normalization == data.normalization(dataset.name)
    mean, std = (torch.tensor(values) for values in dataset.normalization)
    normal = (dataset.images - mean[:, None, None]) / std[:, None, None]
    assert torch.allclose(normal.mean((0, 2, 3)), torch.zeros(len(mean)), atol=2e-3)
    assert torch.allclose(normal.std((0, 2, 3)), torch.ones(len(mean)), atol=2e-3)


@pytest.mark.usefixtures("offline")
def test_photos() -> None:
    photos = data.load("photos")
    assert (len(photos), photos.classes, photos.shape) == (128, 8, (3, 32, 32))
    assert photos.labels.tolist() == list(range(8)) * 16
    assert photos.class_names[:2] == ("astronaut", "cat")
    assert 0 <= float(photos.images.min()) <= float(photos.images.max()) <= 1
    assert nearest(photos.images) > 2e-3
    assert float(photos.images.std((2, 3)).amax(1).min()) > 0.03
    check_normalization(photos)
    assert torch.equal(photos.images, data.load("photos").images)


def test_photos_at_another_size_are_cut_from_the_originals() -> None:
    large = data.load("photos", size=64)
    assert large.shape == (3, 64, 64)
    small = torch.nn.functional.avg_pool2d(large.images, 2)
    assert float((small - data.load("photos").images).abs().mean()) < 0.02


@pytest.mark.usefixtures("offline")
def test_faces() -> None:
    faces = data.load("faces")
    assert (len(faces), faces.shape) == (200, (1, 25, 25))
    assert faces.class_names == ("face", "not face")
    assert faces.labels.tolist() == [0] * 100 + [1] * 100
    assert nearest(faces.images[:100]) > 1e-2
    check_normalization(faces)
    assert data.load("faces", size=32).shape == (1, 32, 32)


# npz


def write_npz(path: Path, **fields: NDArray[Any]) -> str:
    np.savez_compressed(path, allow_pickle=True, **fields)
    return f"npz:{path}"


def test_npz_round_trip(tmp_path: Path) -> None:
    images = pixels(4, 5, 7, 3)
    spec = write_npz(
        tmp_path / "own.npz",
        images=images,
        labels=np.array([2, 0, 1, 2], np.uint8),
        writer=np.array([5, 5, 9, 9]),
        class_names=np.array(["a", "bb", "ccc", "unused"]),
    )
    own = data.load(spec)
    assert (own.name, own.shape, own.normalization) == ("own", (3, 5, 7), None)
    assert np.array_equal(bytes_of(own), images)
    assert own.labels.dtype == torch.int64
    assert own.labels.tolist() == [2, 0, 1, 2]
    assert own.class_names == ("a", "bb", "ccc", "unused")
    assert own.writer is not None
    assert own.writer.tolist() == [5, 5, 9, 9]


def test_npz_needs_only_images_and_labels(tmp_path: Path) -> None:
    images = np.asfortranarray(pixels(3, 6, 4))
    own = data.load(write_npz(tmp_path / "own.npz", images=images, labels=np.array([0, 3, 1])))
    assert own.shape == (1, 6, 4)
    assert np.array_equal(bytes_of(own)[..., 0], images)
    assert own.class_names == ("0", "1", "2", "3")
    assert own.writer is None


def test_size_cuts_the_center_square_then_resizes(tmp_path: Path) -> None:
    images = np.zeros((1, 8, 16), np.uint8)
    images[:, :, 4:8], images[:, :, 8:12] = 100, 200  # the center square's two halves
    spec = write_npz(tmp_path / "own.npz", images=images, labels=np.array([0]))
    assert np.array_equal(bytes_of(data.load(spec, size=8))[..., 0], images[:, :, 4:12])
    small = data.load(spec, size=4).images[0, 0] * 255
    assert small.shape == (4, 4)
    assert torch.allclose(small[:, 0], torch.tensor(100.0), atol=1)
    assert torch.allclose(small[:, 3], torch.tensor(200.0), atol=1)


IMAGES, LABELS = pixels(2, 4, 4), np.array([0, 1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"labels": LABELS}, "field 'images' is missing"),
        ({"images": IMAGES}, "field 'labels' is missing"),
        ({"images": IMAGES / 255, "labels": LABELS}, "'images' must be uint8 .* not float64"),
        ({"images": IMAGES[0], "labels": LABELS}, r"'images' must be .* shape \(4, 4\)"),
        ({"images": pixels(2, 4, 4, 4), "labels": LABELS}, "'images' must be .* 1 or 3 channels"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "'images' is empty"),
        ({"images": pixels(2, 0, 4), "labels": LABELS}, "'images' is empty"),
        ({"images": IMAGES, "labels": LABELS[:1]}, "'labels' has 1 entries for 2 images"),
        ({"images": IMAGES, "labels": LABELS / 1}, "'labels' must be a vector of integers"),
        ({"images": IMAGES, "labels": LABELS[:, None]}, "'labels' must be a vector of integers"),
        ({"images": IMAGES, "labels": LABELS - 1}, "'labels' must be in 0 .. 0, not -1 .. 0"),
        ({"images": IMAGES, "labels": LABELS * 10**12}, "'labels' go up to 1000000000000"),
        ({"images": IMAGES, "labels": LABELS.astype(object)}, "'labels' holds Python objects"),
        (
            {"images": IMAGES, "labels": LABELS, "class_names": np.array(["a"])},
            "'labels' must be in 0 .. 0, not 0 .. 1",
        ),
        (
            {"images": IMAGES, "labels": LABELS, "class_names": np.arange(2)},
            "'class_names' must be a vector of strings",
        ),
        (
            {"images": IMAGES, "labels": LABELS, "writer": np.arange(3)},
            "'writer' has 3 entries for 2 images",
        ),
    ],
)
def test_npz_errors_name_file_and_field(
    tmp_path: Path, fields: dict[str, NDArray[Any]], message: str
) -> None:
    spec = write_npz(tmp_path / "bad.npz", **fields)
    with pytest.raises(LeakmeterError, match=f"bad.npz: {message}"):
        data.load(spec)


@pytest.mark.parametrize("lying_directory", [False, True])
def test_npz_that_claims_gigabytes_allocates_nothing(tmp_path: Path, lying_directory: bool) -> None:
    path = tmp_path / "huge.npz"
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (3000000000, 1, 1)}".ljust(117)
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.encode() + b"\n" + bytes(10)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", member)
    if lying_directory:
        content = bytearray(path.read_bytes())
        struct.pack_into("<I", content, content.index(b"PK\x01\x02") + 24, 128 + 3_000_000_000)
        path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(LeakmeterError, match=r"huge.npz: "):
        data.load(f"npz:{path}")
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=200))
def test_npz_of_random_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random.npz"
    path.write_bytes(content)
    with pytest.raises(LeakmeterError, match=r"random.npz: not a readable npz archive"):
        data.load(f"npz:{path}")


@settings(max_examples=150, deadline=None)
@given(source=st.data())
def test_npz_truncated_or_with_a_changed_byte(
    tmp_path_factory: pytest.TempPathFactory, source: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.npz"
    spec = write_npz(path, images=IMAGES, labels=LABELS, class_names=np.array(["a", "b"]))
    content = bytearray(path.read_bytes())
    place = source.draw(st.integers(0, len(content) - 1))
    path.write_bytes(content[:place])
    with pytest.raises(LeakmeterError):
        data.load(spec)
    content[place] = source.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(LeakmeterError):  # a lucky change may still be valid
        data.load(spec)


@pytest.mark.parametrize(
    ("name", "count", "classes", "shape"),
    [
        ("cifar10", 2000, 10, (3, 32, 32)),
        ("cifar100", 4000, 100, (3, 32, 32)),
        ("femnist", 10651, 62, (1, 28, 28)),
        ("lfw64", 400, 40, (3, 64, 64)),
        ("imagenet224", 40, 391, (3, 224, 224)),
    ],
)
def test_real_samples(name: str, count: int, classes: int, shape: tuple[int, int, int]) -> None:
    path = SHARED / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"{path} is not on this machine")
    sample = data.load(f"npz:{path}")
    assert (len(sample), sample.classes, sample.shape) == (count, classes, shape)
    assert 0 <= float(sample.images.min()) <= float(sample.images.max()) <= 1
    assert (sample.writer is not None) == (name == "femnist")


# folder


def write_picture(path: Path, values: NDArray[Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(values).save(path)


def test_folder_round_trip(tmp_path: Path) -> None:
    cat, dog, gray = pixels(4, 6, 3), pixels(4, 6, 3), pixels(4, 6)
    write_picture(tmp_path / "dog" / "b.png", dog)
    write_picture(tmp_path / "cat" / "z.PNG", cat)
    write_picture(tmp_path / "dog" / "a.bmp", gray)
    (tmp_path / "dog" / "notes.txt").write_text("not a picture")
    (tmp_path / ".cache").mkdir()
    own = data.load(f"folder:{tmp_path}")
    assert own.class_names == ("cat", "dog")
    assert own.labels.tolist() == [0, 1, 1]
    assert (own.name, own.shape, own.normalization) == (tmp_path.name, (3, 4, 6), None)
    assert np.array_equal(bytes_of(own), [cat, np.stack([gray] * 3, axis=-1), dog])


def test_folder_of_grayscale_has_one_channel(tmp_path: Path) -> None:
    gray = pixels(5, 5)
    write_picture(tmp_path / "only" / "a.png", gray)
    assert np.array_equal(bytes_of(data.load(f"folder:{tmp_path}"))[0, ..., 0], gray)


def test_folder_of_several_sizes_needs_size(tmp_path: Path) -> None:
    write_picture(tmp_path / "a" / "1.png", pixels(8, 8, 3))
    write_picture(tmp_path / "a" / "2.jpg", pixels(9, 12, 3))
    with pytest.raises(LeakmeterError, match=r"2.jpg: 12x9 pixels, but .*1.png has 8x8: pass `siz"):
        data.load(f"folder:{tmp_path}")
    assert data.load(f"folder:{tmp_path}", size=6).shape == (3, 6, 6)


def test_folder_errors(tmp_path: Path) -> None:
    spec = f"folder:{tmp_path}"
    with pytest.raises(LeakmeterError, match="no subfolders"):
        data.load(spec)
    (tmp_path / "a").mkdir()
    with pytest.raises(LeakmeterError, match=r"a: no pictures \(endings: .png"):
        data.load(spec)
    (tmp_path / "a" / "huge.ppm").write_bytes(b"P6 9000 9000 255\n")
    with pytest.raises(LeakmeterError, match=r"huge.ppm: 9000x9000 is more than 50000000 pixels"):
        data.load(spec)
    write_picture(tmp_path / "a" / "deep.png", pixels(3, 3).astype(np.uint16))
    with pytest.raises(LeakmeterError, match=r"deep.png: pixel format 'I;16' is not supported"):
        data.load(spec)


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 100), content=st.binary(max_size=100))
def test_folder_of_truncated_or_random_files(
    tmp_path_factory: pytest.TempPathFactory, place: int, content: bytes
) -> None:
    root = tmp_path_factory.getbasetemp() / "pictures"
    root.mkdir(exist_ok=True)
    path = root / "a" / "bad.png"
    write_picture(path, IMAGES[0])
    for bad in (path.read_bytes()[: min(place, 60)], content):
        path.write_bytes(bad)
        with pytest.raises(LeakmeterError, match=r"bad.png: not a readable picture"):
            data.load(f"folder:{root}")
