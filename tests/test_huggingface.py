"""Language models of transformers behind the interface of leakmeter's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import leakmeter as lm
from leakmeter import LeakmeterError, papers
from leakmeter.models.huggingface import CausalLM

transformers = pytest.importorskip("transformers")

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
FOLLOWING = torch.tensor([[1, 4, 1, 5, 9, 2, 6, 0]])


def small(**settings: object) -> nn.Module:
    """A GPT-2 with one layer, ten words and no dropout that matters: clients switch it off."""
    torch.manual_seed(0)
    given = {"vocab_size": 10, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16}
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = transformers.GPT2Config(**(given | ends | settings))
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model.eval()


def scaling() -> nn.Module:
    """A Gemma with one layer, which multiplies what it reads off its embedding."""
    torch.manual_seed(0)
    config = transformers.GemmaConfig(
        vocab_size=10,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        pad_token_id=None,
    )
    model: nn.Module = transformers.GemmaForCausalLM(config)
    return model.eval()


@pytest.mark.parametrize("make", [small, scaling])
def test_embedded_sentences_get_the_models_own_answer(make: Callable[[], nn.Module]) -> None:
    inner = make()
    model = CausalLM(inner)
    (mean,), (std,) = model.normalize
    pixels = model.embed(TOKENS)
    assert pixels.shape == (1, 1, 8, 32)
    with torch.no_grad():
        expected = inner(TOKENS).logits.transpose(1, 2)
        torch.testing.assert_close(model((pixels - mean) / std), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.tokens(pixels), TOKENS)


def test_words_of_unequal_length_are_told_apart() -> None:
    """As in trained networks, where frequent words are short and all have much in common."""
    inner = small(vocab_size=300)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        table = CausalLM(inner).model.get_input_embeddings().weight
        table.mul_(torch.rand((300, 1), generator=generator) + 0.1).add_(0.1)
    model, tokens = CausalLM(inner), torch.arange(300).view(20, 15)
    assert torch.equal(model.tokens(model.embed(tokens)), tokens)


@pytest.mark.parametrize("tied", [False, True])
def test_the_gradient_is_that_of_training_on_tokens(tied: bool) -> None:
    inner = small(tie_word_embeddings=tied)
    model = CausalLM(inner)
    update = lm.Client(model, model.embed(TOKENS), FOLLOWING, normalize=model.normalize).gradient()
    functional.cross_entropy(inner(TOKENS).logits.transpose(1, 2), FOLLOWING).backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert update.gradient is not None
    assert update.gradient.keys() == expected.keys()
    # The words must not be named by the rows of a gradient.
    assert not any("wte" in name for name in expected)
    assert ("model.lm_head.weight" in expected) is not tied
    for name, gradient in expected.items():
        torch.testing.assert_close(update.gradient[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_any_attention_can_be_attacked(attention: str) -> None:
    """The fused kernels have no second derivative; the engine takes the plain one."""
    model = CausalLM(small(attn_implementation=attention))
    update = lm.Client(model, model.embed(TOKENS), FOLLOWING, normalize=model.normalize).gradient()
    found = papers.dlg_adam(60, lr=0.01).run(model, update, labels=FOLLOWING)
    assert lm.measure.sentences(model.tokens(found.images), TOKENS).token_accuracy > 0.7


def test_what_is_no_language_model_is_refused() -> None:
    for wrong in (nn.Linear(3, 3), small().transformer):
        assert isinstance(wrong, nn.Module)
        with pytest.raises(LeakmeterError, match="such as GPT2LMHeadModel"):
            CausalLM(wrong)


def test_tokens_of_another_tokenizer_are_refused() -> None:
    with pytest.raises(LeakmeterError, match=r"tokens must lie in 0\.\.9"):
        CausalLM(small()).embed(torch.tensor([[10]]))
