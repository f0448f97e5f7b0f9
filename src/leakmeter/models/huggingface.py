"""Language models from Hugging Face's transformers, adapted to the engine that reads pictures.

As in :mod:`leakmeter.models.text`, an embedded sentence is a picture with one channel,
[N, 1, words, width], and the network returns logits [N, vocabulary, words].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leakmeter.errors import LeakmeterError
from leakmeter.models.text import Embedded


class CausalLM(Embedded):
    """A causal language model from transformers, such as ``GPT2LMHeadModel``.

    The module is wrapped, not copied, and its input embedding is frozen, along with any output
    layer that shares its weights. If clients trained the embedding, the rows of its gradient would
    reveal the words without any attack.

    Args:
        model: a ``PreTrainedModel`` that takes ``inputs_embeds`` and returns ``logits``.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        if not hasattr(model, "get_input_embeddings") or not hasattr(model, "lm_head"):
            raise LeakmeterError(
                f"model is {type(model).__name__}: give a causal language model of transformers, "
                "with its output layer, such as GPT2LMHeadModel"
            )
        self.model = model
        model.get_input_embeddings().requires_grad_(False)

    def forward(self, embedded: Tensor) -> Tensor:
        """Predict the next word after every word."""
        answer: Any = self.model(inputs_embeds=embedded[:, 0], use_cache=False)
        logits: Tensor = answer.logits
        return logits.transpose(1, 2)

    def table(self) -> Tensor:
        """The embedding [vocabulary, width] as the model reads it; some models scale the weights.

        The weights are in the state, so the server knows them.
        """
        model: Any = self.model
        embedding = model.get_input_embeddings()
        weight: Tensor = embedding.weight
        rows: Tensor = embedding(torch.arange(len(weight), device=weight.device))
        return rows.detach()
