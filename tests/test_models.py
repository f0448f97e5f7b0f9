from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from leakmeter import models
from leakmeter.errors import LeakmeterError
from leakmeter.models.registry import REGISTRY
from leakmeter.models.vit import Attention


def conv(inputs: int, outputs: int, kernel: int) -> int:
    return (inputs * kernel**2 + 1) * outputs


def dense(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def conv_bn(inputs: int, outputs: int, kernel: int) -> int:
    """A convolution without bias, and batch norm."""
    return inputs * kernel**2 * outputs + 2 * outputs


def basic(inputs: int, outputs: int) -> int:
    shortcut = 0 if inputs == outputs else conv_bn(inputs, outputs, 1)
    return conv_bn(inputs, outputs, 3) + conv_bn(outputs, outputs, 3) + shortcut


def cifar_resnet(width: int, blocks: int) -> int:
    """Everything but the head: stem and three stages."""
    stages = basic(width, width) + basic(width, 2 * width) + basic(2 * width, 4 * width)
    rest = (blocks - 1) * sum(basic(k * width, k * width) for k in (1, 2, 4))
    return conv_bn(3, width, 3) + stages + rest


# torchvision's published counts at 1000 classes; the small stem saves (7^2 - 3^2) * 3 * 64.
IMAGENET = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
}

LENET_TANH = conv(1, 6, 5) + conv(6, 16, 5) + dense(400, 120) + dense(120, 84) + dense(84, 1000)
VIT_BLOCK = 384 * 3 * 384 + dense(384, 384) + 2 * 384 + dense(384, 768) + dense(768, 384)
VIT_REST = 4 * VIT_BLOCK + 3 * 2 * 384 + 2 * 384 + dense(384, 768) + dense(768, 1000)

PARAMETERS = {
    "cnn-femnist": conv(1, 32, 3) + conv(32, 64, 3) + dense(64 * 7 * 7, 100) + dense(100, 1000),
    "cnn-cifar": conv(3, 64, 3) + conv(64, 128, 3) + dense(128 * 8 * 8, 200) + dense(200, 1000),
    "mlp": dense(28 * 28, 1000) + dense(1000, 1000) + dense(1000, 1000),
    "lenet-zhu": conv(3, 12, 5) + 2 * conv(12, 12, 5) + dense(768, 1000),
    "lenet5-sapag": conv(3, 12, 5) + 3 * conv(12, 12, 5) + dense(12 * 32 * 32, 1000),
    "lenet-tanh": LENET_TANH,
    "lenet-tanh-softmax": LENET_TANH,
    # Batch norm adds two parameters for each of the 64 * (1 + 2 + 2 + 5 * 4) channels.
    "convnet": (
        conv(3, 64, 3)
        + conv(64, 128, 3)
        + conv(128, 128, 3)
        + conv(128, 256, 3)
        + 4 * conv(256, 256, 3)
        + 2 * 64 * 25
        + dense(36 * 64, 1000)
    ),
    "resnet8": (
        conv_bn(1, 32, 3)
        + basic(32, 32)
        + basic(32, 64)
        + basic(64, 128)
        + dense(2048, 1000)
        + dense(1000, 1000)
    ),
    "resnet20-4": cifar_resnet(64, 3) + dense(256, 1000),
    "resnet32-10": cifar_resnet(160, 5) + dense(640, 1000),
    **IMAGENET,
    **{f"{name}-small": count - 7680 for name, count in IMAGENET.items()},
    "resnet18-sigmoid": IMAGENET["resnet18"] - 7680,
    # The first block has no norm before its attention; 49 patches and the class token.
    "vit-a": dense(16, 384) + 384 + 50 * 384 + VIT_REST,
    "vit-a-whole": dense(28 * 28, 384) + 384 + 2 * 384 + VIT_REST,
}

# Small inputs, so that the second derivative of the big networks takes a second or two.
SIZES = {"convnet": 9, "resnet32-10": 8, "resnet20-4": 16, "resnet18-sigmoid": 16} | {
    name: size for bare in IMAGENET for name, size in ((bare, 64), (f"{bare}-small", 16))
}

SIZED = ["cnn-femnist", "mlp", "lenet-zhu", "lenet5-sapag", "lenet-tanh", "convnet", "resnet8"]


def images(name: str, count: int, size: int | None = None) -> Tensor:
    entry = REGISTRY[name]
    side = size or entry.size
    generator = torch.Generator("cpu").manual_seed(1)
    return torch.rand(count, entry.channels, side, side, generator=generator, device="cpu")


def gradient_norm(model: nn.Module, x: Tensor) -> Tensor:
    """|dloss/dw|^2, what every gradient matching differentiates once more."""
    labels = torch.arange(len(x)) % 5
    loss = functional.cross_entropy(model(x), labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return torch.stack([gradient.square().sum() for gradient in gradients]).sum()


def test_every_model_is_counted() -> None:
    assert models.names() == list(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_output_at_the_default_input(name: str) -> None:
    with torch.device("meta"):  # shapes only: no memory, no arithmetic
        model = models.build(name, classes=1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
    assert model(images(name, 2).to("meta")).shape == (2, 1000)


@pytest.mark.parametrize("name", PARAMETERS)
def test_second_derivative_is_finite_and_nonzero(name: str) -> None:
    size = SIZES.get(name)
    model = models.build(name, classes=5, size=size).eval()
    x = images(name, 1, size).requires_grad_()
    assert model(x).shape == (1, 5)
    (second,) = torch.autograd.grad(gradient_norm(model, x), x)
    assert second.isfinite().all()
    assert second.abs().max() > 0


@pytest.mark.parametrize("name", ["lenet-zhu", "lenet5-sapag", "lenet-tanh", "vit-a"])
def test_second_derivative_agrees_with_a_finite_difference(name: str) -> None:
    model = models.build(name, classes=5).double()
    x = images(name, 2).double()
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).double()
    (second,) = torch.autograd.grad(gradient_norm(model, x.requires_grad_()), x)
    step = 1e-5
    ahead = gradient_norm(model, x + step * direction)
    behind = gradient_norm(model, x - step * direction)
    assert ((ahead - behind) / (2 * step)).item() == pytest.approx(
        (second * direction).sum().item(), rel=1e-6
    )


@pytest.mark.parametrize("name", SIZED)
def test_sized_models_take_every_size_from_their_smallest(name: str) -> None:
    for size in range(REGISTRY[name].smallest, 41):
        with torch.device("meta"):
            model = models.build(name, classes=3, channels=1, size=size).eval()
            assert model(torch.empty(2, 1, size, size)).shape == (2, 3)


@pytest.mark.parametrize("name", PARAMETERS)
def test_channels_can_be_chosen(name: str) -> None:
    with torch.device("meta"):
        model = models.build(name, classes=3, channels=2, size=32)
        assert model(torch.empty(2, 2, 32, 32)).shape == (2, 3)


def test_no_activation_works_in_place() -> None:
    for name in models.names():
        with torch.device("meta"):
            model = models.build(name, classes=2)
        assert not any(getattr(module, "inplace", False) for module in model.modules())


def test_resnet20_4_has_the_21_convolutions_that_agic_counts() -> None:
    model = models.build("resnet20-4", classes=10)
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == 21


def test_resnet_parameters_have_torchvision_names() -> None:
    with torch.device("meta"):
        keys = set(models.build("resnet50", classes=10).state_dict())
    assert len(keys) == 320
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.downsample.1.bias"} <= keys
    assert {"layer4.2.conv3.weight", "fc.weight", "fc.bias"} <= keys


def test_sigmoid_lenets_start_uniform() -> None:
    for name in ("lenet-zhu", "lenet5-sapag"):
        weights = torch.cat(
            [each.flatten() for each in models.build(name, classes=10).parameters()]
        )
        assert weights.min() >= -0.5
        assert weights.max() <= 0.5
        assert weights.std().item() == pytest.approx(12**-0.5, rel=0.02)


def test_attention_is_scaled_dot_product_attention() -> None:
    torch.manual_seed(0)
    attention = Attention()
    tokens = torch.randn(2, 7, 384)
    query, key, value = (
        part.view(2, 7, 4, 96).transpose(1, 2)
        for part in functional.linear(tokens, attention.qkv.weight).chunk(3, dim=-1)
    )
    mixed = functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(attention(tokens), attention.out(mixed.transpose(1, 2).flatten(2)))


def test_the_first_vit_block_sees_the_bare_embedding() -> None:
    model = models.build("vit-a", classes=5)
    x = images("vit-a", 1)
    seen: list[Tensor] = []
    first = next(module for module in model.modules() if isinstance(module, Attention))
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(x)
    patches = functional.unfold(x, 4, stride=4).transpose(1, 2)
    state = model.state_dict()
    tokens = functional.linear(patches, state["embedding.weight"], state["embedding.bias"])
    expected = torch.cat([state["class_token"], tokens], dim=1) + state["positions"]
    torch.testing.assert_close(seen[0], expected)


def test_seed_decides_the_weights_and_leaves_the_global_state() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, same, other = (models.build("cnn-femnist", classes=10, seed=s) for s in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, same.state_dict()[name])
        assert not torch.equal(weight, other.state_dict()[name])
    assert first.training


def test_describe_is_one_line_with_the_input() -> None:
    assert not any("\n" in models.describe(name) for name in models.names())
    assert models.describe("mlp").endswith("SME appendix G [1x28x28]")


@pytest.mark.parametrize("call", [models.describe, lambda name: models.build(name, classes=2)])
def test_unknown_name_suggests_the_nearest(call: Callable[[str], object]) -> None:
    with pytest.raises(LeakmeterError, match="unknown model 'resnet19': did you mean 'resnet18'"):
        call("resnet19")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("mlp", {"classes": 1}, "classes must be at least 2, got 1"),
        ("mlp", {"classes": 2, "channels": 0}, "channels must be at least 1, got 0"),
        ("mlp", {"classes": 2, "size": 0}, "size must be at least 1, got 0"),
        ("convnet", {"classes": 2, "size": 8}, "size: convnet needs .* at least 9 .* got 8"),
        ("lenet-tanh", {"classes": 2, "size": 11}, "size: .* at least 12 .* got 11"),
        ("cnn-cifar", {"classes": 2, "size": 3}, "size: .* at least 4 .* got 3"),
        ("vit-a", {"classes": 2, "size": 30}, "size: vit-a needs a multiple of 4 .* got 30"),
        ("nowhere:net", {"classes": 1}, "classes must be at least 2"),
        (":net", {"classes": 2}, "write it as package.module:factory"),
        ("nets.py:", {"classes": 2}, "write it as package.module:factory"),
    ],
)
def test_bad_arguments_name_the_field(name: str, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(LeakmeterError, match=message):
        models.build(name, **arguments)


FACTORIES = """
from __future__ import annotations
import sys
from dataclasses import dataclass
import torch
from torch import nn
from sibling_of_nets import SCALE

torch.rand(3)  # an import that draws numbers must not shift the weights

@dataclass
class Settings:
    width: int = 4

def full(classes, channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))

def defaults(classes, channels=1, size=8):
    return full(classes, channels, size)

def open_ended(**named):
    module = nn.Identity()
    module.named = named
    return module

def lazy(classes):
    import late_sibling_of_nets
    return nn.Linear(SCALE, classes)

class Net(nn.Linear):
    def __init__(self, classes):
        super().__init__(Settings().width, classes)

number = 3

def broken(classes):
    raise RuntimeError("no such luck")

def greedy(classes, depth):
    return nn.Identity()

def quits():
    sys.exit(3)

def wrong(classes):
    return {"classes": classes}
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the current directory, with ``nets.py`` and ``deep/nets.py``."""
    for folder in (tmp_path, tmp_path / "deep"):
        folder.mkdir(exist_ok=True)
        (folder / "nets.py").write_text(FACTORIES)
    (tmp_path / "sibling_of_nets.py").write_text("SCALE = 4")
    (tmp_path / "late_sibling_of_nets.py").touch()
    (tmp_path / "deep" / "__init__.py").touch()
    (tmp_path / "half.py").write_text("raise ImportError('half a file')")
    (tmp_path / "leaves.py").write_text("import sys; sys.exit()")
    monkeypatch.chdir(tmp_path)
    for name in ("nets", "deep", "deep.nets", "sibling_of_nets", "late_sibling_of_nets"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def linear_shape(model: nn.Module) -> tuple[int, ...]:
    return tuple(next(model.parameters()).shape)


@pytest.mark.parametrize("source", ["nets", "deep.nets", "nets.py", "./nets.py"])
@pytest.mark.usefixtures("nets")
def test_own_model_gets_the_arguments_it_names(source: str) -> None:
    path = list(sys.path)
    build = models.build
    assert linear_shape(build(f"{source}:full", classes=5, channels=2, size=6)) == (5, 2 * 36)
    assert linear_shape(build(f"{source}:full", classes=5)) == (5, 3 * 32 * 32)
    assert linear_shape(build(f"{source}:defaults", classes=5)) == (5, 64)
    assert linear_shape(build(f"{source}:defaults", classes=5, size=2)) == (5, 4)
    assert linear_shape(build(f"{source}:Net", classes=5, channels=2)) == (5, 4)
    assert linear_shape(build(f"{source}:lazy", classes=5)) == (5, 4)
    assert build(f"{source}:open_ended", classes=5, size=7).named == {"classes": 5, "size": 7}
    assert sys.path == path


def test_own_model_from_a_file_elsewhere(nets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert linear_shape(models.build(f"{nets}/nets.py:Net", classes=5)) == (5, 4)


@pytest.mark.parametrize("source", ["nets", "nets.py"])
@pytest.mark.usefixtures("nets")
def test_own_model_is_seeded_too(source: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, same, other = (models.build(f"{source}:Net", classes=5, seed=s) for s in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    weights = [model.state_dict()["weight"] for model in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent:net", "cannot import 'absent' .ModuleNotFoundError.*check the spelling"),
        ("absent.py:net", "cannot import 'absent.py' .FileNotFoundError"),
        ("half:net", "cannot import 'half' .ImportError: half a file"),
        ("half.py:net", "cannot import 'half.py' .ImportError: half a file"),
        ("leaves.py:net", "cannot import 'leaves.py' .SystemExit"),
        ("nets.py:absent", "'nets.py' has no 'absent': name a function or class"),
        ("nets.py:number", "number is int, not callable"),
        ("nets.py:broken", "the factory raised RuntimeError: no such luck"),
        ("nets.py:greedy", "the factory raised TypeError: .*depth.*signature names"),
        ("nets.py:quits", "the factory raised SystemExit: 3"),
        ("nets.py:wrong", "wrong returned dict, it must return a torch.nn.Module"),
    ],
)
@pytest.mark.usefixtures("nets")
def test_own_model_errors_name_the_path_and_the_remedy(name: str, message: str) -> None:
    path = list(sys.path)
    with pytest.raises(LeakmeterError, match=message) as raised:
        models.build(name, classes=5)
    assert str(raised.value).startswith(f"model {name!r}: ")
    assert sys.path == path
    assert "leakmeter_user_half" not in sys.modules
