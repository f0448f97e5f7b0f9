"""The front door, as somebody tries it who guesses the names."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

import leakmeter as lm
from leakmeter.models.factory import arguments
from leakmeter.pixels import as_images
from victims import examples, tiny, tiny_update

SIZE = 16


@pytest.fixture(scope="module")
def photos() -> lm.data.Dataset:
    return lm.data.load("photos", size=SIZE)


def shared_gradient(photos: lm.data.Dataset, model: nn.Module, count: int = 2) -> lm.Update:
    images, labels = photos.images[:count], photos.labels[:count]
    return lm.Client(model, images, labels, normalize="photos").gradient()


# Attacks


def test_one_call_attacks_an_update(tmp_path: Path) -> None:
    update = tiny_update()
    update.save(tmp_path / "update.safetensors")
    found = lm.attack(update, tiny(), "sme", iterations=20)
    again = lm.attack(tmp_path / "update.safetensors", model=tiny(), attack="sme", iterations=20)
    assert torch.equal(found.images, again.images)
    plain = lm.papers.sme(iterations=20)
    assert torch.equal(lm.attack(update, tiny(), plain).images, found.images)
    assert torch.equal(plain.run(tiny(), update).images, found.images)
    by_recipe = lm.attack(update, tiny(), lm.papers.sme, iterations=20)
    assert torch.equal(by_recipe.images, found.images)
    assert (found.recipe, found.labels_known) == ("sme", False)
    assert found.replay == pytest.approx(lm.replay_score(tiny(), update, found))


def test_labels_and_what_the_update_does_not_say_can_be_told() -> None:
    images, labels = examples()
    sent = lm.Client(tiny(), images, labels, epochs=2, lr=0.05).train()
    bare = lm.Update(sent.before, sent.after, None, len(images))
    known: dict[str, Any] = {"input_shape": (1, 12, 12), "classes": 5, "normalize": "none"}
    with pytest.raises(lm.LeakmeterError, match=r"protocol\.input_shape is unknown"):
        lm.attack(bare, tiny(), "ig", iterations=2)
    found = lm.attack(bare, tiny(), "ig", iterations=2, labels=labels.numpy(), **known)
    assert found.labels_known
    assert torch.equal(found.labels, labels)


def test_several_updates_of_the_same_examples_are_taken_together() -> None:
    images, labels = examples()
    both = [lm.Client(tiny(), images, labels).gradient() for _ in range(2)]
    found = lm.attack(both, tiny(), "ig", iterations=5)
    assert len(found.images) == 3
    assert found.replay is None


def test_unfinished_work_is_kept(tmp_path: Path) -> None:
    first = lm.attack(tiny_update(), tiny(), "sme", iterations=5, folder=tmp_path)
    again = lm.attack(tiny_update(), tiny(), "sme", iterations=5, folder=tmp_path)
    assert torch.equal(first.images, again.images)
    assert first.seconds == again.seconds  # it was read back


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: lm.attack(tiny(), tiny_update()), "give the update first, then the model"),  # type: ignore[arg-type]
        (lambda: lm.attack(tiny_update(), tiny(), "smee"), "did you mean 'sme'"),
        (lambda: lm.attack(tiny_update(), tiny(), "sme", options={"tvv": 1}), "did you mean 'tv'"),
        (lambda: lm.attack("nowhere.safetensors", tiny()), "cannot read nowhere.safetensors"),
        (lambda: lm.attack(tiny_update(), tiny(), "sme", epoch=5), "did you mean 'epochs'"),
        (lambda: lm.attack({"w": torch.ones(1)}, tiny()), r"update is a dict: .* lm\.Update\("),  # type: ignore[arg-type]
        (lambda: lm.attack([], tiny()), "update is a list"),
        (lambda: lm.attack(lm.Client(tiny(), *examples()), tiny()), r"client\.train\(\)"),  # type: ignore[arg-type]
        (lambda: lm.attack(tiny_update(), tiny(), "sme", lr=0.5), r"the update says 0\.05"),
        (lambda: lm.audit({"modle": "mlp"}, "out"), "did you mean 'model'"),
        (lambda: lm.audit({"model": "mlp"}, "out", attack="dlg"), "are for recorded updates"),
        (lambda: lm.Client("lenet", *examples()), "model is a str"),  # type: ignore[arg-type]
        (lambda: lm.Client(tiny(), *examples(), defenses=["noise"]), "such as leakmeter.fed"),  # type: ignore[list-item]
        (lambda: lm.names("attack"), "did you mean 'attacks'"),  # type: ignore[arg-type]
        (lambda: lm.audit("nowhere.yaml", "out"), "cannot read nowhere.yaml"),
    ],
)
def test_mistakes_are_named(call: Callable[[], object], says: str) -> None:
    with pytest.raises(lm.LeakmeterError, match=says):
        call()


# Audits


def test_one_call_audits_a_setting(tmp_path: Path) -> None:
    scenario = {
        "model": "mlp",  # a name may stand for a part
        "data": {"source": "photos", "size": SIZE},
        "client": {"examples": 1},
        "attacks": ["closed_form"],
    }
    report = lm.audit(scenario, out=tmp_path)
    assert report.verdict == "leaks"
    assert Path(report.path).is_file()
    assert (tmp_path / "results.json").is_file()
    (finding,) = report.findings
    assert finding["leaked"] == 1.0
    assert finding["psnr"] > 60
    assert repr(report).startswith("AuditReport(leaks: The only training image could be read out")


# What things look like


def test_everything_describes_itself_in_a_line(photos: lm.data.Dataset) -> None:
    model = lm.models.build("lenet-zhu", classes=photos.classes, size=SIZE)
    client = lm.Client(model, photos.images[:2], photos.labels[:2], epochs=3, lr=0.05)
    update = client.train()
    found = lm.attack(update, model, "sme", iterations=3)
    scores = lm.measure.images(found.images, photos.images[:2])
    assert repr(photos) == "Dataset(photos: 128 images 3x16x16, 8 classes)"
    assert repr(client) == "Client(2 images 3x16x16, sgd, epochs 3, batch_size 2, lr 0.05)"
    assert repr(update).startswith("Update(weights of 2 examples, 9,680 numbers, sgd, epochs 3")
    assert repr(lm.Protocol(epochs=5, lr=0.1)) == "Protocol(epochs=5, lr=0.1)"
    assert repr(found).startswith("Reconstruction(2 images 3x16x16, sme, replay score 0.")
    assert "labels recovered" in repr(found)
    assert repr(scores).startswith("ImageScores(2 images, PSNR ")
    for each in (photos, client, update, found, scores, update.protocol):
        assert len(repr(each)) < 250
        assert "\n" not in repr(each)


def test_reconstructions_show_themselves(tmp_path: Path) -> None:
    images, _ = examples()
    found = lm.attack(tiny_update(), tiny(), "ig", iterations=2)
    assert isinstance(found.show(), Figure)
    assert len(found.show(originals=images).axes) == 6
    assert found.show()._repr_png_().startswith(b"\x89PNG")
    found.to_png(tmp_path / "made" / "found.png")
    with pytest.raises(lm.LeakmeterError, match=r"let the name end in \.png"):
        found.to_png(tmp_path / "found.jpg")
    with Image.open(tmp_path / "made" / "found.png") as picture:
        assert picture.format == "PNG"
    assert found._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(lm.LeakmeterError, match="for a picture use to_png"):
        found.save(tmp_path / "found.png")
    with pytest.raises(lm.LeakmeterError, match="give one image for each"):
        found.show(originals=images[:1])


def test_scores_become_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    images, _ = examples()
    frame = lm.measure.images(images, images).to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["pairs", "psnr", "ssim", "mse"]
    assert len(frame) == 3


def test_recipes_and_nothing_else_are_among_the_papers() -> None:
    assert set(dir(lm.papers)) == {"ABLATIONS", "RECIPES", *lm.names("attacks")}
    assert "sme" in lm.names("attacks")
    assert "top_k" in lm.names("defenses")
    assert "photos" in lm.names("datasets")
    assert "resnet8" in lm.names("models")


# Inputs of other libraries


def test_images_come_as_arrays_and_pictures_too() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 12, 12, 3), dtype=np.uint8)
    expected = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    assert torch.allclose(as_images(pixels), expected)
    assert torch.allclose(as_images([Image.fromarray(each) for each in pixels]), expected)
    assert torch.allclose(as_images(expected.numpy()), expected)
    assert torch.allclose(as_images(expected.permute(0, 2, 3, 1).numpy()), expected)
    client = lm.Client(tiny(5, 3), pixels, np.array([0, 1, 2]))
    assert torch.allclose(client.images, expected)
    assert lm.measure.images(pixels, expected).psnr.min() > 100
    with pytest.raises(lm.LeakmeterError, match="give a tensor, a numpy array or PIL images"):
        as_images("picture.png")


def test_weights_come_as_arrays_too() -> None:
    update = tiny_update()
    assert update.after is not None
    before: Any = {name: tensor.numpy() for name, tensor in update.before.items()}
    after: Any = {name: tensor.numpy() for name, tensor in update.after.items()}
    made = lm.Update(before, after, num_examples=3, protocol=update.protocol)
    assert made.fingerprint() == update.fingerprint()


@dataclass
class Output:
    """What a network of Hugging Face returns."""

    logits: Tensor


class AsHuggingFace(nn.Module):
    """Images by their name, logits in an object."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny()

    def forward(self, labels: Any = None, pixel_values: Tensor | None = None) -> Output:
        return Output(self.inner(pixel_values))


class AsDict(AsHuggingFace):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"logits": self.inner(x)}


@pytest.mark.parametrize("kind", [AsHuggingFace, AsDict])
def test_networks_may_return_their_logits_as_they_like(kind: Callable[[], nn.Module]) -> None:
    images, labels = examples()
    model = kind()
    found = lm.attack(lm.Client(model, images, labels).gradient(), model, "ig", iterations=5)
    plain = lm.attack(lm.Client(tiny(), images, labels).gradient(), tiny(), "ig", iterations=5)
    assert torch.equal(found.images, plain.images)


class AsTorchvision(nn.Module):
    """Convolutions, batch norm, pooling, one dense layer."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(4, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.pool(self.features(x)).flatten(1))
        return logits


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_a_network_with_batch_norm_is_attacked_as_it_is(batchnorm: str) -> None:
    images, labels = examples()
    model = AsTorchvision(num_classes=5).train()
    update = lm.Client(model, images, labels, lr=0.05, batchnorm=batchnorm).train()
    assert lm.attack(update, model, "ig", iterations=3).images.shape == images.shape


def timm_like(num_classes: int, in_chans: int, img_size: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(in_chans * img_size**2, num_classes))


def test_factories_may_call_their_arguments_as_others_do() -> None:
    found = arguments(timm_like, classes=5, channels=3, size=8)
    assert found == {"num_classes": 5, "in_chans": 3, "img_size": 8}


def test_a_network_with_other_outputs_than_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n"
        "def wide():\n    return nn.Sequential(nn.Flatten(), nn.Linear(768, 1000))\n"
    )
    scenario = {
        "model": {"name": f"{tmp_path}/net.py:wide"},
        "data": {"source": "photos", "size": SIZE},
        "client": {"examples": 1},
    }
    with pytest.raises(lm.LeakmeterError, match=r"has 1000 outputs but photos has 8 classes"):
        lm.audit(scenario, tmp_path / "out")


@pytest.mark.parametrize(
    "module",
    [
        *("front", "pixels", "execution.identity", "federated.client", "update", "data", "models"),
        *("measure.image", "attacks.replay"),
    ],
)
def test_examples_in_docstrings_run(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"leakmeter.{module}"))
    assert found.attempted > 0
    assert found.failed == 0


def test_a_classifier_of_hugging_face_is_attacked_as_it_is() -> None:
    """A vision transformer made here, without a download."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=12,
        patch_size=4,
        num_channels=1,
        num_labels=5,
        attn_implementation="eager",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.ViTForImageClassification(config)
    images, labels = examples()
    update = lm.Client(model, images, labels, epochs=2, lr=0.05).train()
    found = lm.attack(update, model, "sme", iterations=3)
    assert found.images.shape == images.shape
    assert len(found.history["match"]) == 3
