"""Questions with candidates: sentences of prose, both formats, and files that are bad."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infolm.data.answers import Question, read_questions, sentences
from infolm.errors import InfolmError

# Sentences


@pytest.mark.parametrize(
    "text",
    [
        "One ends here. | Another begins.",
        "Is it so? | It is! | Then go.",
        "No end",
        "It grew by 3.07. | There were 2.5 million. | 40 remained.",
        "Dr. Smith met Mr. and Mrs. Jones in St. Louis vs. Boston.",
        "John F. Kennedy and J. R. R. Tolkien met. | He left.",
        "He fought in World War I. | He came home. | We took vitamin C. | It helped.",
        "The U.S. Navy and the U.N. Secretary agreed. | They live in the U.S. | The end.",
        "She has a Ph.D. from M.I.T. in it. | He has a Ph.D. | She asked.",
        "It opened at 5 p.m. on Monday. | They met at 5 p.m. | After that they ate.",
        "Apple Inc. Chairman Jobs spoke. | He founded Apple Inc. | It grew.",
        "See No. 5 and Vol. 2, fig. 3. | He said no. | Then he left on Jan. 5, 1990.",
        "Tools, e.g. Hammers, i.e. Nails, are sold, etc. | Nor are they dear.",
        'He cried "Help!" and ran. | "Stop!" | He did. | (It was late.) | “Who?” | ‘I.’',
        "It ended (see below). | It was cited.[4] | Then more.[12][note] | So it is.",
        "framed... without end. | And then... | What?! | Never…  | Nobody knows.",
        "1. The first item. | 2. The second one.",
        "A title \n\n | A paragraph that\ngoes on. | \n\nThe next",
        "H\n2\nO is water. | Drink it. ...",
        "... And how! | Yes .",
        "— ! No word before it.",
    ],
)
def test_prose_is_cut_where_a_reader_would(text: str) -> None:
    expected = [part.strip() for part in text.split("|")]
    whole = text.replace("| ", "")
    assert [whole[first:end] for first, end in sentences(whole)] == expected


@given(st.text("ab AB.!?\n1\"'(", max_size=60))
def test_sentences_hold_all_but_blanks_in_order(text: str) -> None:
    spans = sentences(text)
    assert "".join("".join(text[a:b].split()) for a, b in spans) == "".join(text.split())
    assert all(text[a:b] == text[a:b].strip() != "" for a, b in spans)
    assert [place for span in spans for place in span] == sorted(p for span in spans for p in span)


# Tab-separated text


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "questions"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


TABLE = (
    "what is it ?\tno idea\t0\n"
    "what is it ?\ta cat\t1\n"
    "what is it ?\tgo away\t0\n"
    "\n"
    "why ?\tit was late\t1\n"
    "why ?\tbecause\t0\n"
    "alone ?\tyes\t1\n"
)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: "Question\tAnswer\tLabel\n" + text,
        lambda text: text.rstrip("\n"),
    ],
)
def test_a_table_is_read_question_by_question(write: Any, change: Any) -> None:
    questions, notes = read_questions(write(change(TABLE)))
    assert questions == [
        Question("what is it ?", ("no idea", "a cat", "go away"), 1),
        Question("why ?", ("it was late", "because"), 0),
    ]
    assert notes == ["1 question with a single candidate"]


def test_a_table_may_begin_with_a_bracket(write: Any) -> None:
    questions, notes = read_questions(write("[1] who\tme\t1\n[1] who\tyou\t0\n"))
    assert questions == [Question("[1] who", ("me", "you"), 0)]
    assert notes == []


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\x80\x04\x95", r"is not UTF-8 text \(byte 0\)"),
        (b"what\tthat\n", "line 1 of .* has 2 columns and not three"),
        (b"what\tthat\t1\nwhat\n", "line 2 of .* has 1 column and"),
        (b"what\tthat\tthis\t1\n", "4 columns"),
        (b"what\tthat\t1\nwhat\tthis\tno\n", "line 2 of .* has the label 'no'"),
        (b"what\tthat\t1\nwhat\t \t0\n", "the answer on line 2 of .* is empty"),
        (b"\tthat\t1\n", "the question on line 1 of .* is empty"),
        (b"a\tb\t1\na\tc\t0\nwhat\tb\t0\nwhat\tc\t0\n", "on line 3 of .* has no right answer"),
        (b"a\tb\t1\na\tc\t1\n", "on line 1 of .* has 2 right answers"),
        (b"a\tb\t1\n", r"no question to rank answers of \(1 question with a single candidate\)"),
        (b"question\tanswer\tlabel\n", "has no question to rank answers of: give"),
        (b'{"data": [', "is not whole JSON .* on line 1"),
        (b'{"data": 3}', "not of SQuAD's format"),
        (b"[1, 2]", "not of SQuAD's format"),
        (b'{"version": 2}', r"not of SQuAD's format \(data: Field required\)"),
        (b'{"data": [{"paragraphs": [{"context": 5, "qas": []}]}]}', "not of SQuAD's format"),
        (b'{"data": []}', "has no question to rank answers of: give"),
    ],
)
def test_a_bad_file_is_one_sentence(write: Any, content: bytes, match: str) -> None:
    with pytest.raises(InfolmError, match=match):
        read_questions(write(content))


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InfolmError, match="none cannot be read: No such file"):
        read_questions(tmp_path / "none")


# SQuAD's format


def squad(context: str, *entries: dict[str, Any]) -> str:
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": list(entries)}]}]})


def entry(context: str, *answers: str, **more: Any) -> dict[str, Any]:
    found = [{"text": answer, "answer_start": context.index(answer)} for answer in answers]
    return {"question": " Who? ", "answers": found, **more}


CONTEXT = "Ada wrote it. Dr. Babbage built it.  It never ran."


@pytest.mark.parametrize(
    ("answers", "right"),
    [(["Ada"], 0), (["it."], 0), (["Dr. Babbage"], 1), (["It"], 2), (["Babbage", "built it."], 1)],
)
def test_the_sentence_that_holds_the_answer_is_right(
    write: Any, answers: list[str], right: int
) -> None:
    questions, notes = read_questions(write(squad(CONTEXT, entry(CONTEXT, *answers))))
    parts = ("Ada wrote it.", "Dr. Babbage built it.", "It never ran.")
    assert questions == [Question("Who?", parts, right)]
    assert notes == []


def test_what_cannot_be_ranked_is_left_out_and_counted(write: Any) -> None:
    entries = [
        entry(CONTEXT, "Ada"),
        entry(CONTEXT, "it. Dr. Babbage"),
        entry(CONTEXT, "Ada", "Babbage"),
        entry(CONTEXT, "Ada", is_impossible=True),
        entry(CONTEXT),
        {"question": "Who?", "answers": [{"text": "Ada", "answer_start": 3}]},
    ]
    questions, notes = read_questions(write(squad(CONTEXT, *entries)))
    assert len(questions) == 1
    assert notes == [
        "2 questions whose answers do not lie in one sentence",
        "2 questions without an answer",
        "1 question whose answer is not where the file says",
    ]
    single = squad("Ada wrote it.", entry("Ada wrote it.", "Ada"))
    with pytest.raises(InfolmError, match=r"\(1 question with a single candidate\)"):
        read_questions(write(single))


@pytest.mark.data
def test_xquad_has_the_known_counts(real: Callable[[str], None]) -> None:
    real("xquad")
    path = Path(os.environ["INFOLM_DATA"]) / "xquad" / "xquad.en.json"
    questions, notes = read_questions(path)
    assert notes == [
        "42 questions with a single candidate",
        "1 question whose answers do not lie in one sentence",
    ]
    assert len(questions) == 1_190 - 42 - 1
    entries = {
        (entry["question"].strip(), entry["answers"][0]["text"])
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for entry in paragraph["qas"]
    }
    held = [
        any(
            each.question == question and text in each.answers[each.right]
            for question, text in entries
        )
        for each in questions[:100]
    ]
    assert all(held)
    candidates = {answer for each in questions for answer in each.answers}
    assert len(candidates) == 1_165  # and 1,193 if every mark before a capital were an end
    endings = sum(answer.rstrip("\"'”)]").endswith((".", "!", "?")) for answer in candidates)
    assert endings >= 0.98 * len(candidates)
