"""BLEU: n-gram overlap of a hypothesis with a reference (Papineni et al. 2001, one reference each).

    p_n = sum over hypotheses of clipped n-gram matches / sum over hypotheses of n-grams
    BLEU = min(1, exp(1 - r / c)) (p_1 ... p_N)^(1/N)

An n-gram matches at most as often as it occurs in its reference; c and r are the tokens of the
hypotheses and of the references; N is the order. A hypothesis that is too long loses precision;
the first factor, the brevity penalty, is for those too short. If no n-gram of some order n <= N
matches, BLEU is 0.

There are two ways to score many sentences. Papineni's adds up the counts and is one score of the
`corpus`. SentenceMIM's tables (order 1) give the `mean` of the scores of single sentences, in which
a short sentence weighs as much as a long one.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from infolm.evaluation.measurement import Measurement
from infolm.metrics import Described, describe

Tokens = Sequence[Hashable]
Counts = npt.NDArray[np.int64]

FROM = {
    "mean": "the mean",
    "likeliest": "the likeliest classes",
    "nearest": "the nearest entries",
    "sampled": "a sample",
}
for _name, _source in FROM.items():
    describe(
        "latent",
        Described(f"bleu_{_name}", f"BLEU of reconstructions from {_source}", "BLEU-1", 3, "up"),
        Described(f"corpus_bleu_{_name}", "", "BLEU-1", 3, "up", "BLEU of the summed counts"),
    )


class Bleu(NamedTuple):
    """The scores of S sentences: the `corpus` score; the `mean` of the sentences' scores with its
    standard error, None for a single sentence."""

    corpus: float
    mean: float
    stderr: float | None


def bleu(hypotheses: Sequence[Tokens], references: Sequence[Tokens], order: int = 1) -> Bleu:
    """BLEU of S > 0 hypotheses, each with its reference."""
    pairs = zip(hypotheses, references, strict=True)
    counts = np.stack([_counts(hypothesis, reference, order) for hypothesis, reference in pairs])
    scores = np.array([_score(row) for row in counts])
    many = len(scores) > 1
    stderr = float(scores.std(ddof=1) / math.sqrt(len(scores))) if many else None
    return Bleu(_score(counts.sum(0)), float(scores.mean()), stderr)


def sentence_bleu(hypothesis: Tokens, reference: Tokens, order: int = 1) -> float:
    """BLEU of one sentence; 0 if the hypothesis has no n-gram of the order, as when it is empty."""
    return _score(_counts(hypothesis, reference, order))


def _counts(hypothesis: Tokens, reference: Tokens, order: int) -> Counts:
    """The matches and the n-grams for n = 1 ... order, then c and r: (2, order + 1)."""
    grams = [(_grams(hypothesis, n), _grams(reference, n)) for n in range(1, order + 1)]
    matches = [(ours & theirs).total() for ours, theirs in grams]
    totals = [ours.total() for ours, _ in grams]
    return np.array([[*matches, len(hypothesis)], [*totals, len(reference)]])


def _grams(tokens: Tokens, n: int) -> Counter[tuple[Hashable, ...]]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def _score(counts: Counts) -> float:
    (*matches, c), (*totals, r) = counts.tolist()
    if not min(matches):
        return 0.0
    log_precision = sum(math.log(m / n) for m, n in zip(matches, totals, strict=True))
    return math.exp(min(0.0, 1 - r / c) + log_precision / len(matches))


def bleu_measurements(
    hypotheses: Sequence[Tokens],
    references: Sequence[Tokens],
    name: str,
    split: str,
    method: str,
    written: str,
) -> list[Measurement]:
    """BLEU-1 of reconstructions, by both ways of averaging: bleu_`name`, corpus_bleu_`name`.

    written: how they were decoded.
    """
    found = bleu(hypotheses, references)
    tokens = sum(len(reference) for reference in references)
    told = f"{len(references):,} sentences written anew, {written}, without <eos>"
    mean = f"the mean of the BLEU-1 of each of {told}"
    whole = f"the BLEU-1 of the summed counts of {told}"
    values = {
        f"bleu_{name}": (found.mean, found.stderr, mean),
        f"corpus_bleu_{name}": (found.corpus, None, whole),
    }
    return [
        Measurement(metric, value, "BLEU-1", stderr, tokens, split, method, convention)
        for metric, (value, stderr, convention) in values.items()
    ]
