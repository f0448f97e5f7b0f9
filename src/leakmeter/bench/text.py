"""One trial on text: a client shares the gradient of one sentence, and an attack reads it."""

from __future__ import annotations

from pathlib import Path

from leakmeter import measure, models
from leakmeter.attacks.attack import RunOptions
from leakmeter.attacks.papers import RECIPES
from leakmeter.bench import sources
from leakmeter.bench.table import Row
from leakmeter.data import text
from leakmeter.federated import Client

WORDS, VOCABULARY = 15, 500


def attack_sentence(row: Row, data: Path, repeat: int, options: RunOptions) -> dict[str, float]:
    """Attack the gradient of one sentence, and then noise in its place (SAPAG, section VII).

    ``words`` is the share of words found, ignoring order, which is how the paper's examples are
    counted; ``token_accuracy`` is the share found in the right place. Both are also given for the
    no-update baseline.
    """
    sentences = text.read(sources.locate_text(data), length=WORDS)
    vocabulary = text.Vocabulary.of(sentences, most=VOCABULARY)
    truth = vocabulary.encode([sentences[repeat % len(sentences)]])
    model = models.text.build(len(vocabulary), seed=repeat)
    client = Client(
        model, model.embed(truth), vocabulary.next_words(truth), normalize=models.text.NORMALIZE
    )
    update = client.gradient()
    attack = RECIPES[row.recipe.name](iterations=row.iterations, **row.recipe.options)
    found = attack.attempt(model, update, options)
    blind = attack.attempt(model, measure.signal_free(update), options)
    scores = measure.sentences(model.tokens(found.images), truth)
    baseline = measure.sentences(model.tokens(blind.images), truth)
    return {
        "words": scores.word_recall,
        "token_accuracy": scores.token_accuracy,
        "baseline_words": baseline.word_recall,
        "baseline_token_accuracy": baseline.token_accuracy,
        "seconds": found.seconds,
        "iterations": float(len(found.history["match"])),
    }
