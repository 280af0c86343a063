"""Spans of a paragraph as answers: the best one under a model's scores, and SQuAD 1.1's metrics.

A model scores each token as the first of the answer and as the last (InfoWord, appendix C):

    p(start = m) ~ exp(w_start . x_m)        p(end = m) ~ exp(w_end . x_m)

The answer is the span with the highest p(start) p(end), so with the highest sum of scores.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from infolm.errors import RunError
from infolm.finetuning.squad import SquadQuestion, Window

LARGE = 1e300
"""Scores beyond this are refused as not finite, because their sum may not be."""

Scores = npt.NDArray[np.floating[Any]]


def best_span(
    start_scores: Scores, end_scores: Scores, window: Window, longest: int = 30
) -> tuple[float, tuple[int, int]]:
    """The score of the best legal span, and where it begins and ends in the paragraph.

    start_scores, end_scores (L,): of each token of the window; those of tokens that are not of the
    paragraph do not matter. A span is legal if it has 1 to `longest` tokens, all of the paragraph,
    and begins with a token that has most context in this window. Of equals the first counts, then
    the shortest. Some span is always legal.
    """
    inside = window.offsets[:, 0] >= 0
    starts, ends = (np.asarray(scores, np.float64)[inside] for scores in (start_scores, end_scores))
    if not (np.abs([starts, ends]) < LARGE).all():
        raise RunError(
            "the model gives scores that are not finite: lower the learning rate, or choose "
            "another "
            "checkpoint"
        )
    longest = min(longest, len(starts))
    beyond = np.full(longest - 1, -np.inf)
    # Row i, column k: the span from token i to token i + k. (n, longest)
    band = np.lib.stride_tricks.sliding_window_view(np.concatenate([ends, beyond]), longest)
    sums = np.where(window.best[inside], starts, -np.inf)[:, None] + band
    first, more = np.unravel_index(sums.argmax(), sums.shape)
    places = window.offsets[inside]
    return float(sums[first, more]), (int(places[first, 0]), int(places[first + more, 1]))


def answer(
    context: str,
    windows: Sequence[Window],
    scores: Sequence[tuple[Scores, Scores]],
    longest: int = 30,
) -> str:
    """The best legal span over all windows of a question, as text of its paragraph.

    scores: of starts and of ends, (L,) each, for each window. They are the scores themselves, not
    log probabilities, which each window has by itself and which cannot be compared between them.
    """
    spans = [
        best_span(start, end, window, longest)
        for window, (start, end) in zip(windows, scores, strict=True)
    ]
    _, (first, end) = max(spans, key=itemgetter(0))
    return context[first:end]


# The metrics, as SQuAD's evaluate-v1.1 has them


def normalise(text: str) -> str:
    """In lower case, without ASCII punctuation and the words a, an and the, blanks as one."""
    bare = text.lower().translate(_NO_MARKS)
    return " ".join(re.sub(r"\b(?:an?|the)\b", " ", bare).split())


_NO_MARKS = str.maketrans("", "", string.punctuation)


def exact_match(prediction: str, truths: Iterable[str]) -> bool:
    """Whether the prediction is one of the true answers, both normalised."""
    return normalise(prediction) in map(normalise, truths)


def f1(prediction: str, truths: Iterable[str]) -> float:
    """2 P R / (P + R) = 2 |p & t| / (|p| + |t|), the highest over the true answers t.

    Both are bags of normalised words. 0 where they share none, even if both are empty, as "the" is:
    that is an exact match with an F1 of 0.
    """
    return max(_overlap(normalise(prediction).split(), normalise(t).split()) for t in truths)


def _overlap(predicted: list[str], true: list[str]) -> float:
    shared = (Counter(predicted) & Counter(true)).total()
    return 2 * shared / (len(predicted) + len(true)) if shared else 0.0


def evaluate(
    predictions: Mapping[str, str], questions: Sequence[SquadQuestion]
) -> dict[str, float]:
    """Exact match and F1 in percent, the means over all questions.

    predictions: by the questions' ids. A question without one counts as 0.
    """

    def percent(metric: Callable[[str, list[str]], float]) -> float:
        values = [
            metric(predictions[each.id], [text for _, text in each.answers])
            for each in questions
            if each.id in predictions
        ]
        return 100 * sum(values) / len(questions)

    return {"exact_match": percent(exact_match), "f1": percent(f1)}
