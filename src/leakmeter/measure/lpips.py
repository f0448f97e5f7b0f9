"""LPIPS: how different two images look to a network (Zhang et al. 2018, arXiv:1801.03924).

The unit-normalized features of a layer count by the weight of their channel,

    LPIPS(a, b) = sum_l mean_hw sum_c w_lc (f_l(a) - f_l(b))^2,

which is a squared Euclidean distance: one embedding per image serves any number of comparisons.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor
from torch.nn import functional

from leakmeter.data.files import reading
from leakmeter.errors import LeakmeterError
from leakmeter.state import State, read_safetensors

SMALLEST_SIDE = 64
"""Smaller images are enlarged to this: the heads were fitted on 64 px patches. The pools need 31 px
for their last map to exist, and leave a single place in it up to 46."""

ROUNDING = 1e-6
"""Distances closer than this count as equal: an embedding's last bits vary with its batch."""

_REMEDY = "measure.Lpips shows how to write the file"
_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)
_BATCH_PIXELS = 2**20  # 256 images of 64 px at a time, 20 of 224
_ROWS = 64  # of embeddings in double precision at a time
_MOST_BYTES = 2**26  # the largest array needs 5 MB in double precision; an archive may lie


@dataclass(frozen=True)
class _Layer:
    """A convolution of AlexNet; if ``pooled``, a max pool (3x3, stride 2) comes before it."""

    channels: int
    kernel: int
    stride: int = 1
    pooled: bool = False


_LAYERS = (
    _Layer(64, 11, stride=4),
    _Layer(192, 5, pooled=True),
    _Layer(384, 3, pooled=True),
    _Layer(256, 3),
    _Layer(256, 3),
)


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    before = 3
    for index, layer in enumerate(_LAYERS):
        shapes[f"conv{index}_w"] = (layer.channels, before, layer.kernel, layer.kernel)
        shapes[f"conv{index}_b"] = (layer.channels,)
        shapes[f"lin{index}"] = (layer.channels,)
        before = layer.channels
    return shapes


SHAPES = _shapes()
"""The tensors a file of weights must have."""


@dataclass(frozen=True, eq=False, repr=False)
class Lpips:
    """LPIPS v0.1 with AlexNet's features: 0 for the same image, larger the less alike they look.

    What counts as large depends on the pictures: two unrelated photographs of 224 px are about 0.7
    apart, two of CIFAR-100 0.55, two faces of 64 px 0.25. Compare within one set of images.

    leakmeter carries no weights. With the authors' package, which does, write them once::

        net = lpips.LPIPS(net="alex")
        convs = [layer for layer in net.net.modules() if isinstance(layer, torch.nn.Conv2d)]
        heads = [net.lin0, net.lin1, net.lin2, net.lin3, net.lin4]
        weights = {f"conv{i}_w": conv.weight for i, conv in enumerate(convs)}
        weights |= {f"conv{i}_b": conv.bias for i, conv in enumerate(convs)}
        weights |= {f"lin{i}": head.model[-1].weight.flatten() for i, head in enumerate(heads)}
        safetensors.torch.save_file(weights, "lpips_alex.safetensors")

    Images with a side below 64 px are enlarged bilinearly until the shorter one has 64, so values
    of small images differ from those of programs that feed them as they are. Gray images are
    repeated to three channels.

    Attributes:
        weights: kernels ``conv0_w`` to ``conv4_w``, biases ``conv0_b`` to ``conv4_b`` and head
            weights ``lin0`` to ``lin4``, of the shapes in ``SHAPES``.
    """

    weights: State

    def __post_init__(self) -> None:
        for name, shape in SHAPES.items():
            _check(name, self.weights.get(name), shape)
        kept = {name: self.weights[name].detach().cpu().float() for name in SHAPES}
        object.__setattr__(self, "weights", kept)

    @classmethod
    def load(cls, path: str | Path) -> Lpips:
        """Read the weights from an ``.npz`` or ``.safetensors`` file; a pickle is never opened."""
        path = Path(path)
        try:
            weights = _read(path)
        except LeakmeterError as error:
            raise LeakmeterError(f"{error}; {_REMEDY}") from error
        try:
            return cls(weights)
        except LeakmeterError as error:
            raise LeakmeterError(f"{path}: {error}") from None

    def embed(self, images: Tensor) -> Tensor:
        """One vector per image, [N, D] float32, whose squared distances are LPIPS.

        Args:
            images: [N, C, H, W] in [0, 1], C 1 or 3. D grows with H W: 31,872 at 64 px, 484,992
                at 224.
        """
        return torch.cat([self._embed(batch) for batch in _batches(images)])

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        """LPIPS of every image of ``a`` with its counterpart in ``b``: [N] float64.

        Args:
            a: [N, C, H, W] in [0, 1].
            b: same shape.
        """
        if a.shape != b.shape:
            raise LeakmeterError(
                f"a {tuple(a.shape)} and b {tuple(b.shape)} must be images of the same shape"
            )
        found: list[float] = []
        for one, other in zip(_batches(a), _batches(b), strict=True):
            found += (self._embed(one) - self._embed(other)).square().sum(1).tolist()
        return torch.tensor(found, dtype=torch.float64)

    def distances(self, a: Tensor, b: Tensor) -> Tensor:
        """LPIPS of every image of ``a`` [N, ...] with all of ``b`` [M, ...]: [N, M] float64.

        Keeps the embeddings of ``a`` and a batch of those of ``b``, so the longer goes second.
        """
        if a.shape[2:] != b.shape[2:]:
            raise LeakmeterError(
                f"a {tuple(a.shape)} and b {tuple(b.shape)} must be images of the same size"
            )
        ours, batches = self.embed(a), _batches(b)
        found = torch.empty(len(a), len(b), dtype=torch.float64)
        columns = found.split([len(batch) for batch in batches], 1)
        for batch, place in zip(batches, columns, strict=True):
            _squared_distances(ours, self._embed(batch), place)
        return found

    @torch.no_grad()
    def _embed(self, batch: Tensor) -> Tensor:
        parts = []
        for index, features in enumerate(self._features(batch)):
            places = features.shape[2] * features.shape[3]
            factors = (self.weights[f"lin{index}"] / places).sqrt().view(-1, 1, 1)
            parts.append((functional.normalize(features, eps=1e-10) * factors).flatten(1))
        return torch.cat(parts, 1)

    def _features(self, batch: Tensor) -> Iterator[Tensor]:
        """Yield AlexNet's features after the ReLU of each convolution."""
        images = _enlarged(batch.detach().cpu().float()).expand(-1, 3, -1, -1)
        shift, scale = (torch.tensor(values).view(3, 1, 1) for values in (_SHIFT, _SCALE))
        x = (2 * images - 1 - shift) / scale
        for index, layer in enumerate(_LAYERS):
            if layer.pooled:
                x = functional.max_pool2d(x, 3, 2)
            kernel, bias = self.weights[f"conv{index}_w"], self.weights[f"conv{index}_b"]
            # AlexNet pads its first layer by 2, not by half the kernel.
            padding = min(layer.kernel // 2, 2)
            x = functional.conv2d(x, kernel, bias, layer.stride, padding).relu()
            yield x


def _check(name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    if tensor is None:
        raise LeakmeterError(f"{name!r} is missing; {_REMEDY}")
    if not tensor.is_floating_point() or tuple(tensor.shape) != shape:
        raise LeakmeterError(
            f"{name!r} must be floats of shape {shape}, not {tensor.dtype} of "
            f"{tuple(tensor.shape)}; {_REMEDY}"
        )
    if not tensor.float().isfinite().all():
        raise LeakmeterError(f"{name!r} contains NaN or Inf; {_REMEDY}")
    if name.startswith("lin") and (tensor < 0).any():
        raise LeakmeterError(
            f"{name!r} has negative weights, which make no distance; those of v0.1 have none; "
            f"{_REMEDY}"
        )


def _read(path: Path) -> State:
    if path.suffix == ".safetensors":
        return read_safetensors(path)[0]
    if path.suffix != ".npz":
        raise LeakmeterError(
            f"{path}: LPIPS weights must be .npz or .safetensors; pickles (.pth) are never opened"
        )
    if not path.is_file():
        raise LeakmeterError(f"{path}: file not found")
    with path.open("rb") as file:
        _refuse_pickle(path, file.read(1) == b"\x80")
    with reading(path, "npz archive"), zipfile.ZipFile(path) as archive:
        members = set(archive.namelist())
        # What torch.save writes is a zip archive with a pickle in it.
        _refuse_pickle(path, any(member.endswith(".pkl") for member in members))
        names = [name for name in SHAPES if f"{name}.npy" in members]
        return {name: _read_member(path, archive, name) for name in names}


def _refuse_pickle(path: Path, pickled: bool) -> None:
    if pickled:
        raise LeakmeterError(f"{path} is a pickle, which can run code and is never opened")


def _read_member(path: Path, archive: zipfile.ZipFile, name: str) -> Tensor:
    member = archive.getinfo(f"{name}.npy")
    with reading(path, f"array {name!r}"), archive.open(member) as file:
        if member.file_size > _MOST_BYTES:
            raise ValueError(f"it has {member.file_size} bytes, far more than LPIPS needs")
        array = npy.read_array(file, allow_pickle=False)
        if array.dtype.kind != "f":
            raise ValueError(f"it holds {array.dtype}, not floats")
        with np.errstate(over="ignore"):  # a number too large becomes Inf, which is refused
            return torch.from_numpy(array.astype(np.float32))


def _batches(images: Tensor) -> list[Tensor]:
    """Images in pieces whose features fit in memory."""
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise LeakmeterError(
            f"images of shape {tuple(images.shape)} cannot be compared by LPIPS: "
            "use [N, C, H, W] with 1 or 3 channels"
        )
    height, width = _size(images)
    return list(images.split(max(1, _BATCH_PIXELS // (height * width))))


def _squared_distances(a: Tensor, b: Tensor, into: Tensor) -> None:
    """Write the distances of all rows of ``a`` [N, D] and ``b`` [M, D] into ``into`` [N, M].

    ``|a|^2 + |b|^2 - 2 a b`` needs double precision, or equal rows would not be at 0. Allocating
    small results between large temporaries fragments memory (by gigabytes), hence ``into``.
    """
    b = b.double()
    for part, place in zip(a.split(_ROWS), into.split(_ROWS), strict=True):
        rows = part.double()
        squares = [torch.linalg.vector_norm(side, dim=1).square() for side in (rows, b)]
        sums = squares[0][:, None] + squares[1]
        place.copy_(torch.addmm(sums, rows, b.T, alpha=-2).clamp_min(0))


def _size(images: Tensor) -> tuple[int, int]:
    """Return the height and width at which the network sees the images."""
    height, width = images.shape[2:]
    factor = max(1, SMALLEST_SIDE / min(height, width))
    return round(height * factor), round(width * factor)


def _enlarged(images: Tensor) -> Tensor:
    size = _size(images)
    if size == tuple(images.shape[2:]):
        return images
    return functional.interpolate(images, size, mode="bilinear", align_corners=False)
