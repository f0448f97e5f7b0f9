"""One trial on text: a client shares the gradient of one sentence, an attack reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leakscope import measure, models
from leakscope.attack.papers import RECIPES
from leakscope.data.text import Vocabulary
from leakscope.errors import LeakscopeError, unknown
from leakscope.federated import Client


def sentence_trial(
    sentences: Sequence[str], repeat: int, recipe: str, options: Mapping[str, Any]
) -> dict[str, float]:
    """Attack the gradient of one of ``sentences``, and noise in its place.

    Args:
        sentences: their words are the vocabulary.
        repeat: counted from 0; decides which sentence, the weights and the attack's start.
        recipe: of :mod:`leakscope.attack.papers`; it must learn labels jointly.
        options: of the recipe.

    Returns:
        ``token_accuracy`` and ``word_recall``, both also with ``baseline_``, and ``seconds``.
    """
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    vocabulary = Vocabulary.of(sentences)
    truth = vocabulary.encode([sentences[repeat % len(sentences)]])
    model = models.text.build(len(vocabulary), seed=repeat)
    client = Client(
        model,
        model.embed(truth),
        vocabulary.next_words(truth),
        normalize=models.text.NORMALIZE,
    )
    update = client.gradient()
    try:
        attack = RECIPES[recipe](**options)
    except TypeError as error:
        raise LeakscopeError(f"recipe {recipe!r} has other options: {error}") from None
    found = attack.run(model, update, seed=repeat)
    blind = attack.run(model, measure.signal_free(update), seed=repeat)
    scores = measure.sentences(model.tokens(found.images), truth)
    baseline = measure.sentences(model.tokens(blind.images), truth)
    return {
        "token_accuracy": scores.token_accuracy,
        "word_recall": scores.word_recall,
        "baseline_token_accuracy": baseline.token_accuracy,
        "baseline_word_recall": baseline.word_recall,
        "seconds": found.seconds,
    }
