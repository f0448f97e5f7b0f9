"""Sentences read out of a language model's gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import leakmeter as lm
from leakmeter import LeakmeterError, measure, papers
from leakmeter.attacks.attack import RunOptions
from leakmeter.bench.table import Recipe, Row
from leakmeter.bench.text import attack_sentence
from leakmeter.data.text import UNKNOWN, Vocabulary, read, split
from leakmeter.models import text

SENTENCES = [
    "please call the doctor before nine tomorrow",
    "my sister sold her old house quietly",
    "nobody knows where they hid our money",
    "we lost both keys behind that station",
]


def client(sentence: str, width: int = 64) -> tuple[text.LanguageModel, Tensor, lm.Update]:
    vocabulary = Vocabulary.of(SENTENCES)
    tokens = vocabulary.encode([sentence])
    model = text.build(len(vocabulary), width=width)
    labels = vocabulary.next_words(tokens)
    return (
        model,
        tokens,
        lm.Client(model, model.embed(tokens), labels, normalize=text.NORMALIZE).gradient(),
    )


@pytest.mark.parametrize(("vocabulary", "width"), [(30, 100), (600, 100)])
def test_the_pseudo_inverse_reads_back_every_word(vocabulary: int, width: int) -> None:
    model = text.build(vocabulary, width=width)
    tokens = torch.arange(vocabulary).view(3, -1)
    pixels = model.embed(tokens)
    assert pixels.shape == (3, 1, vocabulary // 3, width)
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    assert torch.equal(model.tokens(pixels), tokens)
    noise = 0.1 * torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0))
    assert (model.tokens(pixels + noise) == tokens).double().mean() > 0.95


def test_what_the_client_normalizes_is_the_embedding() -> None:
    model, tokens, _ = client(SENTENCES[0])
    (mean,), (std,) = text.NORMALIZE
    seen = (model.embed(tokens) - mean) / std
    torch.testing.assert_close(seen[:, 0], model.embedding[tokens])


def test_no_word_sees_a_later_one() -> None:
    model = text.build(20, width=32).double()
    sentence = torch.randn((1, 1, 7, 32), dtype=torch.float64)
    changed = sentence.clone()
    changed[..., 4, :] += 1
    before, after = model(sentence), model(changed)
    assert before.shape == (1, 20, 7)
    torch.testing.assert_close(before[..., :4], after[..., :4])
    assert ((before - after)[..., 4:].abs().amax(1) > 1e-3).all()


def test_the_place_of_a_word_matters() -> None:
    model = text.build(20, width=32)
    logits = model(model.embed(torch.tensor([[3, 3]])))
    assert (logits[..., 0] - logits[..., 1]).abs().max() > 1e-3


def test_second_derivatives_are_right() -> None:
    model = text.build(6, width=8).double()
    labels = torch.tensor([[1, 2, 5]])
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def gradients(x: Tensor) -> Tensor:
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        parts = torch.autograd.grad(loss, weights, create_graph=True)
        return torch.stack([part.square().sum() for part in parts])

    x = torch.randn((1, 1, 3, 8), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gradients, (x,))


def test_the_embedding_is_known_to_the_server_but_not_trained() -> None:
    _, _, update = client(SENTENCES[0])
    assert update.gradient is not None
    assert "embedding" in update.before
    assert "embedding" not in update.gradient


def test_the_same_seed_builds_the_same_model() -> None:
    one, same, other = (text.build(9, width=8, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["embedding"], other["embedding"])


def test_a_sentence_is_read_out_of_one_gradient() -> None:
    model, tokens, update = client(SENTENCES[0])
    attack = papers.sapag_adamw(200, lr=0.1)
    found = measure.sentences(model.tokens(attack.run(model, update).images), tokens)
    blind = attack.run(model, measure.signal_free(update))
    baseline = measure.sentences(model.tokens(blind.images), tokens)
    assert found.token_accuracy >= baseline.token_accuracy + 0.5
    assert found.word_recall >= baseline.word_recall + 0.4


def test_learned_labels_are_the_next_words() -> None:
    model, tokens, update = client(SENTENCES[1])
    found = papers.sapag_adamw(200, lr=0.1).run(model, update)
    assert found.labels.shape == tokens.shape
    assert (found.labels[:, :-1] == tokens[:, 1:]).double().mean() >= 0.5


def test_a_trial_gives_both_sides(tmp_path: Path) -> None:
    row = Row(
        setting="sentence",
        attack="SAPAG",
        recipe=Recipe("sapag_adamw", 2, {"lr": 0.1}),
        victim=None,
        paper={},
        kind="text",
    )
    with pytest.raises(LeakmeterError, match=r"sst2\.tsv: file not found"):
        attack_sentence(row, tmp_path, 0, RunOptions())
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "sst2.tsv").write_text(" and ".join(SENTENCES), encoding="utf-8")
    metrics = attack_sentence(row, tmp_path, 1, RunOptions())
    for side in ("words", "token_accuracy"):
        assert 0 <= metrics[side] <= 1
        assert 0 <= metrics[f"baseline_{side}"] <= 1


def test_words_and_punctuation() -> None:
    assert split("It's a well-known trick , isn't it?") == [
        *("it's", "a", "well-known", "trick", ",", "isn't", "it", "?")
    ]
    assert split("the author 's <unk> did n't") == ["the", "author", "'s", UNKNOWN, "did", "n't"]


def test_a_vocabulary_keeps_the_most_frequent_words() -> None:
    vocabulary = Vocabulary.of(["b a b", "c b a", "<unk> b"], most=2)
    assert vocabulary.words == ("<unk>", "<eos>", "b", "a")
    tokens = vocabulary.encode(["A b c", "b b b"])
    assert tokens.tolist() == [[3, 2, 0], [2, 2, 2]]
    assert vocabulary.decode(tokens) == ["a b <unk>", "b b b"]
    assert vocabulary.next_words(tokens).tolist() == [[2, 0, 1], [2, 2, 1]]


def test_reading_cuts_sentences_to_length(tmp_path: Path) -> None:
    file = tmp_path / "some.tsv"
    file.write_text("sentence\tlabel\nOne two , three four\t1\ntoo short\t0\n\na b c d\t1\n")
    assert read(file, length=4) == ["one two , three", "a b c d"]


def test_scores_of_sentences() -> None:
    truth = torch.tensor([[1, 2, 3, 2], [5, 6, 7, 8]])
    found = torch.tensor([[5, 6, 8, 9], [2, 2, 3, 4]])
    scores = measure.sentences(found, truth)
    assert scores == measure.TextScores(token_accuracy=0.5, word_recall=0.75)
    assert measure.sentences(truth.flip(0), truth) == measure.TextScores(1.0, 1.0)


def test_bad_sentences_are_refused() -> None:
    vocabulary = Vocabulary.of(SENTENCES)
    for sentences, said in (
        ([], "at least one word"),
        (["a b", " "], "at least one word"),
        (["a b", "a b c"], "2 to 3 words"),
    ):
        with pytest.raises(LeakmeterError, match=said):
            vocabulary.encode(sentences)
    with pytest.raises(LeakmeterError, match="no words"):
        Vocabulary.of(["", "  "])
    with pytest.raises(LeakmeterError, match="most is 0"):
        Vocabulary.of(SENTENCES, most=0)
    with pytest.raises(LeakmeterError, match="tokens must be"):
        vocabulary.decode(torch.tensor([[len(vocabulary)]]))


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LeakmeterError, match=r"absent\.txt"):
        read(tmp_path / "absent.txt")
    with pytest.raises(LeakmeterError, match="text file"):
        read(tmp_path)
    file = tmp_path / "some.txt"
    file.write_bytes(b"\xff\xfe\x00 not text")
    with pytest.raises(LeakmeterError, match="text file"):
        read(file)
    file.write_text("three short words\n")
    with pytest.raises(LeakmeterError, match="no line has 15 words"):
        read(file)
    with pytest.raises(LeakmeterError, match="length is 0"):
        read(file, length=0)


def test_bad_tokens_and_models_are_refused() -> None:
    model = text.build(10, width=8)
    with pytest.raises(LeakmeterError, match="integers"):
        model.embed(torch.zeros((1, 0), dtype=torch.int64))
    with pytest.raises(LeakmeterError, match=r"0\.\.9"):
        model.embed(torch.tensor([[10]]))
    with pytest.raises(LeakmeterError, match="words, 8"):
        model.tokens(torch.zeros((1, 1, 3, 12)))
    with pytest.raises(LeakmeterError, match="same shape"):
        measure.sentences(torch.zeros((1, 3)), torch.zeros((1, 4)))
    with pytest.raises(LeakmeterError, match="multiple of 4"):
        text.build(10, width=10)
    with pytest.raises(LeakmeterError, match="vocabulary is 1"):
        text.build(1)
