"""What every reader returns: labeled images in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from leakmeter.errors import LeakmeterError
from leakmeter.state import State, digest
from leakmeter.update import Normalization


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labeled images.

    Attributes:
        name: the set's name in reports.
        images: float32 [N, C, H, W] in [0, 1], not normalized.
        labels: int64 [N] in 0 .. classes - 1.
        class_names: one name per class.
        writer: int64 [N], who produced each example, or None if unknown.
        normalization: (mean, std) per channel that models for this set expect; None: identity.
    """

    name: str
    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    writer: Tensor | None = None
    normalization: Normalization | None = None

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"Dataset({self.name}: {len(self)} images {shape}, {self.classes} classes)"

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all images, labels, classes, and writers."""
        tensors: State = {"images": self.images, "labels": self.labels}
        if self.writer is not None:
            tensors["writer"] = self.writer
        return digest(tensors, repr(self.class_names))

    def select(self, indices: Tensor | Sequence[int]) -> Dataset:
        """The examples at `indices` (int [K], in any order), with everything else unchanged."""
        index = torch.as_tensor(indices)
        if index.numel() == 0:
            index = index.long()
        integers = not (index.dtype == torch.bool or index.is_floating_point())
        if index.ndim != 1 or not integers or ((index < 0) | (index >= len(self))).any():
            raise LeakmeterError(
                f"indices: must be a list of integers in 0 .. {len(self) - 1} for {self.name!r}"
            )
        return replace(
            self,
            images=self.images[index],
            labels=self.labels[index],
            writer=None if self.writer is None else self.writer[index],
        )
