"""Sentences: reading them from a text file and turning them into words and tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from leakmeter.data.files import reading
from leakmeter.errors import LeakmeterError

UNKNOWN = "<unk>"
"""Stands for every word outside a vocabulary."""

END = "<eos>"
"""Follows the last word of a sentence."""

_WORD = re.compile(rf"{UNKNOWN}|'?\w+(?:['-]\w+)*|[^\w\s]+")


def split(sentence: str) -> list[str]:
    """The words of ``sentence`` in lower case; punctuation counts as a word."""
    return _WORD.findall(sentence.lower())


def read(path: str | Path, *, length: int = 15) -> list[str]:
    """The first ``length`` words, joined by spaces, of every line that has at least that many.

    Args:
        path: UTF-8 text with one sentence per line; anything after a tab is ignored.
        length: number of words in a sentence, at least 1.
    """
    if length < 1:
        raise LeakmeterError(f"length is {length}: a sentence has at least 1 word")
    path = Path(path).expanduser()
    with reading(path, "text file"):
        lines = path.read_text(encoding="utf-8").splitlines()
    sentences = (split(line.partition("\t")[0]) for line in lines)
    found = [" ".join(words[:length]) for words in sentences if len(words) >= length]
    if not found:
        raise LeakmeterError(f"{path}: no line has {length} words: use a smaller length")
    return found


@dataclass(frozen=True)
class Vocabulary:
    """Words indexed by token.

    Attributes:
        words: the words, all different; `UNKNOWN` and `END` come first.
    """

    words: tuple[str, ...]

    @classmethod
    def of(cls, sentences: Sequence[str], most: int | None = None) -> Vocabulary:
        """The words of ``sentences``, most frequent first.

        Args:
            sentences: must contain at least one word in total.
            most: number of words to keep in addition to the two special ones; all by default.
        """
        counts = Counter(word for sentence in sentences for word in split(sentence))
        del counts[UNKNOWN]
        if not counts:
            raise LeakmeterError("sentences have no words: a vocabulary needs at least one")
        if most is not None and most < 1:
            raise LeakmeterError(f"most is {most}: keep at least 1 word")
        return cls((UNKNOWN, END, *(word for word, _ in counts.most_common(most))))

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _tokens(self) -> dict[str, int]:
        return {word: token for token, word in enumerate(self.words)}

    def encode(self, sentences: Sequence[str]) -> Tensor:
        """Tokens [N, words] of sentences of equal length."""
        rows = [split(sentence) for sentence in sentences]
        if not rows or not all(rows):
            raise LeakmeterError("sentences: each needs at least one word, and there must be one")
        lengths = sorted({len(row) for row in rows})
        if len(lengths) > 1:
            raise LeakmeterError(
                f"sentences have {lengths[0]} to {lengths[-1]} words: cut them to equal length"
            )
        unknown = self._tokens[UNKNOWN]
        return torch.tensor([[self._tokens.get(word, unknown) for word in row] for row in rows])

    def decode(self, tokens: Tensor) -> list[str]:
        """The sentences of ``tokens`` [N, words]."""
        if tokens.ndim != 2 or ((tokens < 0) | (tokens >= len(self))).any():
            raise LeakmeterError(f"tokens must be [N, words] integers in 0..{len(self) - 1}")
        return [" ".join(self.words[token] for token in row) for row in tokens.tolist()]

    def next_words(self, tokens: Tensor) -> Tensor:
        """What a language model learns to predict after each of ``tokens``, both [N, words].

        This is the next word, and `END` after the last word.
        """
        end = torch.full_like(tokens[:, :1], self._tokens[END])
        return torch.cat([tokens[:, 1:], end], dim=1)
