"""The transformer language model from which SAPAG reads sentences.

To the engine, an embedded sentence is a picture with one channel, [N, 1, words, width], in which
each row is a word. At every word the network returns logits for the next one,
[N, vocabulary, words].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from leakmeter.errors import LeakmeterError
from leakmeter.models.factory import seeded
from leakmeter.update import Normalization

BOUND = 0.1
"""Embeddings are drawn from [-BOUND, BOUND]."""

NORMALIZE: Normalization = ((0.5,), (0.5 / BOUND,))
"""Maps pixels in [0, 1] to embeddings in [-BOUND, BOUND]; a client needs it as ``normalize``."""

_HEADS = 4
_HIDDEN = 200
_LAYERS = 2


class Embedded(nn.Module):
    """Base class for language models that take words as rows of a frozen embedding."""

    def table(self) -> Tensor:
        """The embedding [vocabulary, width]."""
        raise NotImplementedError

    @property
    def normalize(self) -> Normalization:
        """Maps pixels in [0, 1] to embeddings; a client needs it as ``normalize``."""
        bound = self.table().abs().max().item()
        return (0.5,), (0.5 / bound,)

    def embed(self, tokens: Tensor) -> Tensor:
        """Pixels [N, 1, words, width] in [0, 1], as a client needs them, for tokens [N, words]."""
        if tokens.ndim != 2 or 0 in tokens.shape or tokens.is_floating_point():
            raise LeakmeterError(
                f"tokens must be integers [N, words], not {tokens.dtype} {tuple(tokens.shape)}"
            )
        table = self.table()
        if tokens.min() < 0 or tokens.max() >= len(table):
            raise LeakmeterError(
                f"tokens must lie in 0..{len(table) - 1}: build the model with the size of the "
                "vocabulary that made them"
            )
        (mean,), (std,) = self.normalize
        return (table[tokens].unsqueeze(1) * std + mean).clamp(0, 1)

    def tokens(self, pixels: Tensor) -> Tensor:
        """Tokens [N, words] for exact or reconstructed pixels [N, 1, words, width]."""
        table = self.table()
        if pixels.ndim != 4 or pixels.shape[1] != 1 or pixels.shape[3] != table.shape[1]:
            raise LeakmeterError(
                f"pixels must be [N, 1, words, {table.shape[1]}], not {tuple(pixels.shape)}: "
                "use the model that embedded the sentences"
            )
        (mean,), (std,) = self.normalize
        return self.nearest((pixels[:, 0].to(table.device).double() - mean) / std)

    def nearest(self, rows: Tensor) -> Tensor:
        """The word [N, words] whose embedding is nearest to each of ``rows`` [N, words, width]."""
        return torch.cdist(rows, self.table().double()).argmin(-1)


class CausalAttention(nn.Module):
    """Multi-head self-attention in which no word sees a later one: [N, words, width] -> the same.

    Written out because torch's fused attention has no second derivative on the CPU, which all
    gradient matching needs.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, words: Tensor) -> Tensor:
        """Mix every word with those before it; each head uses its own similarity."""
        batch, count, width = words.shape
        qkv = self.qkv(words).reshape(batch, count, 3, _HEADS, width // _HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        similarity = query @ key.transpose(-2, -1) / (width // _HEADS) ** 0.5
        later = torch.ones((count, count), dtype=torch.bool, device=words.device).triu(1)
        mixed = torch.softmax(similarity.masked_fill(later, -torch.inf), dim=-1) @ value
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, count, width))
        return out


class EncoderLayer(nn.Module):
    """Attention and a GELU network, each with a shortcut and then a norm (Vaswani et al. 2017)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = CausalAttention(width)
        self.norm1 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, width))
        self.norm2 = nn.LayerNorm(width)

    def forward(self, words: Tensor) -> Tensor:
        """[N, words, width] -> the same."""
        words = self.norm1(words + self.attention(words))
        out: Tensor = self.norm2(words + self.mlp(words))
        return out


class LanguageModel(Embedded):
    """Embedded sentences [N, 1, words, width] -> logits of the next word [N, vocabulary, words].

    From SAPAG (Wang et al. 2020, section VII): a position encoder, two encoder layers with four
    heads and 200 hidden units, GELU, and a uniformly initialized embedding. We take its "decoder"
    to be the output layer over the vocabulary, as in language models without a second sentence to
    attend to; there is no dropout.

    Our choices: the width (the paper's 5,000 is out of reach without a GPU), the range of the
    embedding, a causal mask, and freezing the embedding. If clients trained it, the rows of its
    gradient would reveal the words without any attack. In the small range, the position code is
    the larger part of the input, which tells an attack where in the sentence a word belongs; in
    [-1, 1], an attack finds the words, but in the wrong order.

    Attributes:
        embedding: [vocabulary, width], frozen; part of the state, so the server knows it.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(
            torch.empty(vocabulary, width).uniform_(-BOUND, BOUND), requires_grad=False
        )
        self.layers = nn.Sequential(*(EncoderLayer(width) for _ in range(_LAYERS)))
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, embedded: Tensor) -> Tensor:
        """Predict the next word after every word."""
        words = embedded[:, 0]
        words = self.layers(words + _positions(words))
        logits: Tensor = self.decoder(words)
        return logits.transpose(1, 2)

    def table(self) -> Tensor:
        """The embedding [vocabulary, width]."""
        return self.embedding

    def nearest(self, rows: Tensor) -> Tensor:
        """The word with the largest weight: rows times the pseudo-inverse (SAPAG, section VII).

        A square embedding makes this fragile because its pseudo-inverse amplifies noise: make the
        vocabulary clearly larger or clearly smaller than the width.
        """
        inverse: Tensor = torch.linalg.pinv(self.embedding.double())
        return (rows @ inverse).argmax(-1)

    @property
    def normalize(self) -> Normalization:
        """The range that embeddings are drawn from."""
        return NORMALIZE


def build(vocabulary: int, *, width: int = 100, seed: int = 0) -> LanguageModel:
    """A freshly initialized language model; the same call gives the same weights.

    Args:
        vocabulary: number of words it knows, at least 2.
        width: number of values that represent a word, a multiple of 4.
        seed: seed for the initial weights.
    """
    if vocabulary < 2:
        raise LeakmeterError(f"vocabulary is {vocabulary}: a language model needs at least 2 words")
    if width < _HEADS or width % _HEADS:
        raise LeakmeterError(f"width is {width}: use a multiple of {_HEADS}, one part per head")
    with seeded(seed):
        return LanguageModel(vocabulary, width)


def _positions(words: Tensor) -> Tensor:
    """Sines and cosines for every position in a sentence, [words, width] (Vaswani et al. 2017)."""
    count, width = words.shape[1:]
    place = torch.arange(count, device=words.device, dtype=words.dtype)[:, None]
    pair = torch.arange(0, width, 2, device=words.device, dtype=words.dtype)
    angle = place * torch.exp(pair * (-math.log(10_000) / width))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
