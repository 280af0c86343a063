"""The best span is legal and the best; metrics are SQuAD's."""

import string
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infolm.data.tokens import Special
from infolm.errors import RunError
from infolm.finetuning.spans import answer, best_span, evaluate, exact_match, f1, normalise
from infolm.finetuning.squad import SquadQuestion, Window, windows

# Spans


def pieces(text: str) -> Any:
    """A letter a token, without blanks."""
    places = [i for i, letter in enumerate(text) if letter != " "]
    spans = np.array([(i, i + 1) for i in places], dtype=np.int64).reshape(-1, 2)
    return np.array([ord(text[i]) for i in places], dtype=np.int64), spans


def letters(count: int, length: int, stride: int) -> tuple[str, list[Window]]:
    """A paragraph of so many letters, and the windows of a question of two."""
    context = " ".join(chr(ord("a") + i) for i in range(count))
    asked = SquadQuestion("id", "? !", context, ((0, "a"),), 0)
    return context, windows([asked], pieces, Special(0, 1, 2, 3, 4), length, stride)


def slow_spans(start: Any, end: Any, window: Window, longest: int) -> list[tuple[float, Any]]:
    """All legal spans with their scores, one by one."""
    return [
        (float(start[i]) + float(end[j]), (window.offsets[i, 0], window.offsets[j, 1]))
        for i in range(len(window.tokens))
        for j in range(len(window.tokens))
        if window.offsets[i, 0] >= 0 and window.offsets[j, 0] >= 0
        if i <= j < i + longest and window.best[i]
    ]


# Few values make ties, and the limits of float32 are what a model could give at most.
scores = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0]), st.floats(width=32, allow_nan=False, allow_infinity=False)
)


@given(st.integers(1, 20), st.integers(6, 16), st.integers(1, 9), st.integers(1, 25), st.data())
def test_the_best_span_is_that_of_a_double_loop(
    count: int, length: int, stride: int, longest: int, data: st.DataObject
) -> None:
    context, read = letters(count, length, stride)
    drawn = []
    for window in read:
        size = len(window.tokens)
        values = data.draw(st.lists(scores, min_size=2 * size, max_size=2 * size))
        start, end = np.array(values, np.float32).reshape(2, size)
        spans = slow_spans(start, end, window, longest)
        assert best_span(start, end, window, longest) == max(spans, key=lambda span: span[0])
        drawn.append((start, end))
    every = [
        span for w, pair in zip(read, drawn, strict=True) for span in slow_spans(*pair, w, longest)
    ]
    first, last = max(every, key=lambda span: span[0])[1]
    assert answer(context, read, drawn, longest) == context[first:last]


def test_no_score_makes_an_illegal_span_win() -> None:
    _, (window,) = letters(6, 16, 4)  # [CLS] ? ! [SEP] a b c d e f [SEP]
    start, end = np.zeros(11), np.zeros(11)
    outside = [0, 1, 2, 3, 10]
    start[outside] = end[outside] = np.inf  # what a model says of other tokens does not count
    start[9], end[4] = 50, 50  # the end before the start
    assert best_span(start, end, window) == (50, (0, 1))
    start[4], end[9] = 7, 60
    assert best_span(start, end, window, 6) == (110, (10, 11))
    start[9] = 0
    assert best_span(start, end, window, 6) == (67, (0, 11))
    assert best_span(start, end, window, 5) == (60, (2, 11))


def test_a_span_begins_where_its_window_is_the_best() -> None:
    context, (one, two) = letters(6, 9, 2)  # a b c d and c d e f
    assert [one.best[4:-1].tolist(), two.best[4:-1].tolist()] == [
        [True, True, True, False],
        [False, True, True, True],
    ]
    low, high = np.zeros(9), np.zeros(9)
    high[4] = 9  # "c", which has more context in the first
    assert best_span(high, low, two) == (0, (6, 7))
    assert answer(context, [one, two], [(low, low), (high, low)]) == "a"
    high[4], high[5] = 0, 9
    assert answer(context, [one, two], [(low, low), (high, high)]) == "d"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.7e308])
@pytest.mark.parametrize("side", [0, 1])
def test_scores_that_are_not_finite_are_refused(bad: float, side: int) -> None:
    _, (window,) = letters(3, 16, 4)
    pair = [np.zeros(8), np.zeros(8)]
    pair[side][5] = bad
    with pytest.raises(RunError, match="scores that are not finite"):
        best_span(pair[0], pair[1], window)


# Metrics


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Denver Broncos!", "denver broncos"),
        ("  an  Apple,\na pear ", "apple pear"),
        ("Panther's", "panthers"),
        ("a.an.the", "aanthe"),  # marks go first, and then it is one word
        ("Theatre and Ananas", "theatre and ananas"),
        ("$1,000.50", "100050"),
        ("the “A” team", "“ ” team"),  # only marks of ASCII go
        ("The", ""),
        ("", ""),
        ("ÉCOLE", "école"),
    ],
)
def test_normalisation_is_that_of_squad(text: str, expected: str) -> None:
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("prediction", "truths", "match", "overlap"),
    [
        ("The Denver Broncos!", ["Denver Broncos"], True, 1),
        ("Broncos", ["Denver Broncos"], False, 2 / 3),
        ("the Carolina Panthers", ["Denver Broncos"], False, 0),
        ("new new york", ["new york new jersey"], False, 6 / 7),
        ("york york york", ["york"], False, 1 / 2),
        ("Denver", ["Carolina", "Denver Broncos", "the city of Denver"], False, 2 / 3),
        ("Denver", ["Denver Broncos", "denver."], True, 1),
        ("the", ["A!"], True, 0),  # official: equal, with no word to share
        ("", ["Denver"], False, 0),
        ("Denver", ["the"], False, 0),
    ],
)
def test_metrics_of_known_cases(
    prediction: str, truths: list[str], match: bool, overlap: float
) -> None:
    assert exact_match(prediction, truths) is match
    assert f1(prediction, truths) == pytest.approx(overlap)


def slow_words(text: str) -> list[str]:
    """Normalised words, letter by letter."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    word, words = "", []
    for letter in bare + " ":
        if not letter.isspace():
            word += letter
        elif word:
            words.append(word)
            word = ""
    return [word for word in words if word not in ("a", "an", "the")]


def slow_f1(prediction: str, truth: str) -> float:
    predicted, true = slow_words(prediction), slow_words(truth)
    left, shared = list(true), 0
    for word in predicted:
        if word in left:
            left.remove(word)
            shared += 1
    if shared == 0:
        return 0
    precision, recall = shared / len(predicted), shared / len(true)
    return 2 * precision * recall / (precision + recall)


phrases = st.lists(
    st.sampled_from(["the", "A", "an", "cat", "Cat,", "dog", "dogs!", "...", "\n", "anthem"]),
    max_size=6,
).map(" ".join)


@given(phrases, st.lists(phrases, min_size=1, max_size=3))
def test_metrics_are_those_of_a_slow_count(prediction: str, truths: list[str]) -> None:
    expected = max(slow_f1(prediction, truth) for truth in truths)
    assert f1(prediction, truths) == pytest.approx(expected, abs=1e-12)
    assert exact_match(prediction, truths) == any(
        slow_words(prediction) == slow_words(truth) for truth in truths
    )


def test_an_evaluation_is_in_percent_over_all_questions() -> None:
    truths = {"1": ["Denver"], "2": ["Denver Broncos", "Broncos"], "3": ["a cat"], "4": ["dog"]}
    questions = [
        SquadQuestion(id, "?", " ".join(texts), tuple((0, text) for text in texts), 0)
        for id, texts in truths.items()
    ]
    predictions = {"1": "the Denver Broncos", "2": "broncos", "3": "dog", "other": "dog"}
    found = evaluate(predictions, questions)  # the fourth has no prediction
    assert found == pytest.approx({"exact_match": 100 / 4, "f1": 100 * (2 / 3 + 1) / 4})
    right = {id: texts[-1] for id, texts in truths.items()}
    assert evaluate(right, questions) == {"exact_match": 100, "f1": 100}
