"""How much of a sentence can be read out of one gradient of a Hugging Face language model?

    python examples/transformer.py [ITERATIONS]

A small GPT-2 with fresh weights, and a tokenizer trained on the sentences below; put your own in
their place. The client shares the gradient of one sentence, and the attack is told nothing else,
not even the next words that the model was to learn. Needs the extra ``text``:
pip install --constraint constraints.txt '.[text]'. Takes a minute.

Result: three quarters of the tokens in the right place, against none without an update.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

import leakmeter as lm
from leakmeter.attacks import Joint
from leakmeter.models.huggingface import CausalLM

try:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel
except ImportError:
    sys.exit("this example needs transformers: pip install --constraint constraints.txt '.[text]'")

SENTENCES = [
    "the patient in room seven was told on monday that her treatment has failed",
    "please send the contract to my lawyer before noon and do not copy our partners",
    "we will meet behind the old station at nine so bring both keys and some money",
    "nobody in this room was told where our partners hid the money",
]


def own_tokenizer() -> Tokenizer:
    """Words and pieces of words, learned from the sentences."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=150, special_tokens=["<unk>", "<eos>"], show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def own_model(vocabulary: int) -> CausalLM:
    """A GPT-2 of two layers. For yours: CausalLM(AutoModelForCausalLM.from_pretrained(...))."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        bos_token_id=None,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    return CausalLM(GPT2LMHeadModel(config))


def spelled(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """All tokens, one beside the other."""
    return "|".join(tokenizer.id_to_token(token) or "?" for token in tokens)


def main(iterations: int = 300) -> None:
    """Attack the gradient of the first sentence, and noise of the same size for comparison."""
    tokenizer = own_tokenizer()
    words = tokenizer.encode(SENTENCES[0]).ids
    truth, following = torch.tensor([words]), torch.tensor([[*words[1:], 1]])
    model = own_model(tokenizer.get_vocab_size())

    # What happens at the client: the server sees the update, nothing else.
    client = lm.Client(model, model.embed(truth), following, normalize=model.normalize)
    update = client.gradient()

    # IG, but for sentences: nothing is smooth about words, and labels are learned, too.
    attack = replace(lm.papers.ig(iterations, lr=0.01, tv=0.0), labels=Joint(lr=0.1))
    print(f"{len(words)} tokens, a vocabulary of {tokenizer.get_vocab_size()}")
    print(f"{'truth':9} {'in place':>8}  {spelled(tokenizer, words)}")
    for name, sent in (("IG", update), ("no update", lm.measure.signal_free(update))):
        tokens = model.tokens(attack.run(model, sent, compiling="never").images)
        scores = lm.measure.sentences(tokens, truth)
        read = spelled(tokenizer, tokens[0].tolist())
        print(f"{name:9} {scores.token_accuracy:8.0%}  {read}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
