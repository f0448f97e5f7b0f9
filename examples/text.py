"""How much of a sentence can be read out of one gradient of a language model?

    python examples/text.py [FILE [LINE]] [--iterations N]

FILE is a text file with one sentence per line (anything after a tab is ignored); LINE counts
only sentences of 15 words. Without FILE, three built-in sentences are used. Takes a minute or two.
"""

from __future__ import annotations

import argparse
import sys

import leakmeter as lm
from leakmeter import measure, papers
from leakmeter.attacks import Attack
from leakmeter.data.text import Vocabulary, read
from leakmeter.models import text

SENTENCES = [
    "the patient in room seven was told on monday that her new treatment has failed",
    "please send the contract to my lawyer before noon , and do not copy our partners",
    "we will meet behind the old station at nine ; bring both keys and some money",
]
POOL = 100
"""So many sentences of FILE, LINE among them, make the vocabulary."""


def main() -> None:
    """Attack the gradient of one sentence in several ways and print what each one reads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", metavar="FILE")
    parser.add_argument("line", nargs="?", metavar="LINE", type=int, default=0)
    parser.add_argument("--iterations", metavar="N", type=int, default=500)
    given = parser.parse_args()
    sentences = read(given.file)[given.line : given.line + POOL] if given.file else SENTENCES
    vocabulary = Vocabulary.of(sentences)
    truth = vocabulary.encode(sentences[:1])

    # What happens at the client: the server sees the update, nothing else.
    model = text.build(len(vocabulary))
    labels = vocabulary.next_words(truth)
    update = lm.Client(model, model.embed(truth), labels, normalize=text.NORMALIZE).gradient()

    def show(name: str, attack: Attack, update: lm.Update) -> None:
        tokens = model.tokens(attack.run(model, update, compiling="never").images)
        scores = measure.sentences(tokens, truth)
        print(f"{name:9} {scores.token_accuracy:8.0%} {scores.word_recall:8.0%}", end="  ")
        print(*vocabulary.decode(tokens), flush=True)

    print(f"one sentence of {truth.shape[1]} words, a vocabulary of {len(vocabulary)}")
    print(f"{'':9} {'in place':>8} {'anywhere':>8}")
    print(f"{'truth':9} {'':8} {'':8}  {vocabulary.decode(truth)[0]}")
    sapag = papers.sapag_adamw(given.iterations, lr=0.1)
    show("SAPAG", sapag, update)
    show("DLG", papers.dlg_adam(given.iterations), update)
    show("no update", sapag, measure.signal_free(update))


if __name__ == "__main__":
    try:
        main()
    except lm.LeakmeterError as error:
        sys.exit(str(error))
