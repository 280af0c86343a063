"""10,000 sentences of 20 tokens scored one by one against the same tokens evaluated in 20 streams.

The model has the sizes of `awd-lstm/demo`: two layers of 256 units, 5,000 words. Scoring gives the
log-probability, the rank and the surprisal of each token and word, as objects in Python; with
`top`, also the three likeliest tokens in each place. Evaluation gives the log-probabilities alone.
Bar: 3.

    python benchmarks/scoring.py
"""

import sys
from functools import partial

import numpy as np
import torch
from timing import ratio

from infolm.config import load_recipe
from infolm.data.tokens import Tokenizer
from infolm.evaluation import scoring
from infolm.evaluation.likelihood import parallel_log_probs
from infolm.evaluation.scoring import Line, View, Wording, once_each, score_lines
from infolm.evaluation.suite import WARM_UP
from infolm.models.language import LanguageModel

VOCABULARY, SENTENCES, LENGTH, STREAMS, CHUNK = 5000, 10_000, 20, 20, 200


def score(model: LanguageModel, tokenizer: Tokenizer, texts: list[str], top: int) -> None:
    lines = [Line.of(text, tokenizer, "") for text in texts]
    read = once_each(scoring.fresh(model, tokenizer.eos, View.of(tokenizer, top)), tokenizer.eos)
    score_lines(lines, read, Wording(tokenizer))


def main() -> None:
    sentences = int(sys.argv[1]) if len(sys.argv) > 1 else SENTENCES
    torch.manual_seed(0)
    model = load_recipe("awd-lstm/demo").model.build(VOCABULARY).eval()
    assert isinstance(model, LanguageModel)
    words = ["<eos>", "<unk>", *(f"w{i}" for i in range(2, VOCABULARY))]
    tokenizer = Tokenizer.from_words(words)
    drawn = np.random.default_rng(0).zipf(1.3, (sentences, LENGTH)) % (VOCABULARY - 2) + 2
    texts = [" ".join(words[word] for word in row) for row in drawn]
    stream = tokenizer.encode("".join(f"{text}\n" for text in texts))
    evaluate = partial(parallel_log_probs, model, stream, STREAMS, WARM_UP, CHUNK)
    for top in (0, 3):
        value, a, b = ratio(partial(score, model, tokenizer, texts, top), evaluate, repeats=3)
        print(f"top {top}: {value:.2f} of evaluation ({a:.1f} s / {b:.1f} s; bar 3)", flush=True)


if __name__ == "__main__":
    main()
