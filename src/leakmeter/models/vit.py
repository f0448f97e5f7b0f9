"""The vision transformer "type A" of APRIL, which SME and NL-SME attack."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_WIDTH = 384
_HEADS = 4
_BLOCKS = 4
_HIDDEN = 2 * _WIDTH


class Attention(nn.Module):
    """Multi-head self-attention: [N, tokens, 384] -> [N, tokens, 384].

    Written out because torch's fused attention has no second derivative on the CPU, which all
    gradient matching needs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH, bias=False)
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mix the tokens; each head uses its own similarity."""
        batch, count, _ = tokens.shape
        qkv = self.qkv(tokens).reshape(batch, count, 3, _HEADS, _WIDTH // _HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        similarity = query @ key.transpose(-2, -1) / (_WIDTH // _HEADS) ** 0.5
        mixed = torch.softmax(similarity, dim=-1) @ value
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, count, _WIDTH))
        return out


class FirstBlock(nn.Module):
    """What makes it type A: attention sees the embedding itself, with no norm and no shortcut.

    [N, tokens, 384] -> [N, tokens, 384] (Lu et al. 2021, figure 1 A).
    """

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norm = nn.LayerNorm(_WIDTH)
        self.mlp = _mlp(_WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Apply attention alone, then the MLP with its shortcut."""
        tokens = self.attention(tokens)
        out: Tensor = tokens + self.mlp(self.norm(tokens))
        return out


class Block(nn.Module):
    """A pre-norm encoder block (Dosovitskiy et al. 2021): [N, tokens, 384] -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(_WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(_WIDTH)
        self.mlp = _mlp(_WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Apply attention and the MLP, each with its shortcut."""
        tokens = tokens + self.attention(self.norm1(tokens))
        out: Tensor = tokens + self.mlp(self.norm2(tokens))
        return out


class VitA(nn.Module):
    """ViT type A: [N, channels, size, size] -> [N, classes].

    From APRIL (Lu et al. 2021, figure 1 A): the embedding goes into the first attention unchanged,
    which the closed-form attack requires. From SME's public code (Zhu et al. 2023, appendix G):
    width 384, 4 heads, 4 blocks, MLPs twice as wide with GELU, no bias on queries, keys, and
    values, a class token, and a head with one hidden layer.

    Our choice: position embeddings drawn from N(0, 0.02^2), as in ViT (SME's code starts them at
    zero, which makes the untrained network blind to the order of the patches).

    Args:
        patch: side of a patch in pixels; ``None`` for the whole image, as in SME's code.
        classes: number of outputs.
        channels: channels of the images.
        size: side of the images in pixels.
    """

    def __init__(self, patch: int | None, *, classes: int, channels: int, size: int) -> None:
        super().__init__()
        self.patch = patch = patch or size
        self.embedding = nn.Linear(channels * patch * patch, _WIDTH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.positions = nn.Parameter(torch.empty(1, (size // patch) ** 2 + 1, _WIDTH))
        nn.init.normal_(self.positions, std=0.02)
        self.blocks = nn.Sequential(FirstBlock(), *(Block() for _ in range(_BLOCKS - 1)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = _mlp(classes)

    def forward(self, images: Tensor) -> Tensor:
        """Classify images from the class token."""
        patches = functional.unfold(images, self.patch, stride=self.patch).transpose(1, 2)
        tokens = self.embedding(patches)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), tokens], dim=1)
        tokens = self.blocks(tokens + self.positions)
        logits: Tensor = self.head(self.norm(tokens[:, 0]))
        return logits


def _mlp(outputs: int) -> nn.Sequential:
    """[..., 384] -> [..., outputs] through one hidden layer with GELU."""
    return nn.Sequential(nn.Linear(_WIDTH, _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, outputs))
