"""SQuAD 1.1: files read or refused, and windows from which every answer is found back."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infolm.data.tokens import Special, Tokenizer
from infolm.errors import InfolmError
from infolm.finetuning.squad import (
    SquadQuestion,
    Window,
    bounds,
    covering,
    holding,
    most_context,
    read_folder,
    read_squad,
    windows,
)

SPECIAL = Special(pad=0, unk=1, cls=2, sep=3, mask=4)
REAL = Path(os.environ.get("INFOLM_DATA", "nowhere")) / "xquad" / "xquad.en.json"


def pieces(text: str) -> Any:
    """Words and marks; a word's number tells its length, which is enough here."""
    spans = [found.span() for found in re.finditer(r"\w+|[^\w\s]", text)]
    numbers = np.array([5 + end - first for first, end in spans], dtype=np.int64)
    return numbers, np.array(spans, dtype=np.int64).reshape(-1, 2)


# The files

CONTEXT = "Ada wrote 1308 lines. Babbage built it, and Ada left."


def entry(id: str, *answers: Any, **more: Any) -> dict[str, Any]:
    found = [{"answer_start": start, "text": text} for start, text in answers]
    return {"question": f"Who is {id}?", "id": id, "answers": found, **more}


def squad(*articles: list[dict[str, Any]]) -> dict[str, Any]:
    """A paragraph an article."""
    data = [{"paragraphs": [{"context": CONTEXT, "qas": entries}]} for entries in articles]
    return {"version": "1.1", "data": data}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(content: Any, name: str = "squad.json", **how: Any) -> Path:
        path = tmp_path / name
        if not isinstance(content, bytes):
            content = json.dumps(content, **{"indent": 1, **how}).encode()
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("how", [{"indent": 1}, {"indent": None}, {"ensure_ascii": False}])
def test_questions_come_in_the_order_of_the_file(write: Any, how: dict[str, Any]) -> None:
    path = write(
        squad([entry("é1", (0, "Ada"), (44, "Ada"))], [], [entry("2", (11, "308"))]), **how
    )
    assert read_squad(path) == [
        SquadQuestion("é1", "Who is é1?", CONTEXT, ((0, "Ada"), (44, "Ada")), 0),
        SquadQuestion("2", "Who is 2?", CONTEXT, ((11, "308"),), 2),
    ]


def test_a_mark_of_byte_order_is_no_part_of_the_file(write: Any) -> None:
    content = b"\xef\xbb\xbf" + json.dumps(squad([entry("1", (0, "Ada"))])).encode()
    assert len(read_squad(write(content))) == 1


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (
            entry("bad", (1, "Ada")),
            r"the question bad on line LINE of .*squad.json has the answer 'Ada', which is not in "
            r"its paragraph at answer_start 1 \(it stands at 0\): correct the file",
        ),
        (entry("bad", (40, "Ada")), r"at answer_start 40 \(it stands at 44\)"),
        (entry("bad", (0, "Ada"), (-9, "Ada")), r"at answer_start -9 \(it stands at 0\)"),
        (entry("bad", (9_999, "Ada")), r"at answer_start 9,999 \(it stands at 44\)"),
        (entry("bad", (0, "Eve")), r"at answer_start 0 \(it is nowhere in it\)"),
        (entry("bad", (3, " ")), "the question bad on line LINE of .* has an empty answer"),
        (entry("bad", (0, "")), "has an empty answer"),
        (entry("bad"), "the question bad on line LINE of .* has no answer, which is SQuAD 2.0's"),
        (entry("bad", (0, "Ada"), is_impossible=True), "has no answer, which is SQuAD 2.0's"),
        (entry("good", (0, "Ada")), "the question good on line LINE .* the id of a question befo"),
        (entry("", (0, "Ada")), "the question on line QUESTION of .* has no id"),
        (
            {"id": "bad", "question": "Who?"},
            r"not of SQuAD's format \(data\[1\]\.paragraphs\[0\]\.qas\[1\]\.answers: Field required"
            r"; the question is on line LINE\)",
        ),
        ({"id": "bad", "answers": []}, r"\.question: Field required; .* line LINE\)"),
        (entry("bad", ("3", "Ada")), r"answers\[0\]\.answer_start: .* valid integer"),
        (entry("bad", (3, None)), r"answers\[0\]\.text: .* valid string"),
        ({"id": 3, "question": "Who?", "answers": []}, r"qas\[1\]\.id: .* valid string\)"),
        ("bad", r"qas\[1\]: Input should be a valid dictionary"),
    ],
)
def test_a_bad_question_is_refused_with_its_line(write: Any, bad: Any, match: str) -> None:
    # What an id looks like inside a text is not taken for one.
    told = entry("good", (0, "Ada"), note='"id": "bad"')
    path = write(squad([entry("other", (0, "Ada"))], [told, bad]))
    lines = path.read_text().splitlines()
    ids = [n for n, line in enumerate(lines, 1) if re.match(r'\s*"id": "(bad|good)"', line)]
    asked = [n for n, line in enumerate(lines, 1) if re.match(r'\s*"question"', line)]
    match = match.replace("LINE", str(ids[-1])).replace("QUESTION", str(asked[-1]))
    with pytest.raises(InfolmError, match=match):
        read_squad(path)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is empty"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b'{"data":\n [', "is not whole JSON .* on line 2"),
        (b"[]", r"not of SQuAD's format \(all of it: "),
        (b'{"data": [{"title": "x"}]}', r"\(data\[0\]\.paragraphs: Field required\)"),
        (b'{"data": [{"paragraphs": [{"qas": []}]}]}', r"paragraphs\[0\]\.context: Field required"),
        (b'{"data": []}', "has no question: give"),
    ],
)
def test_a_bad_file_is_one_sentence(write: Any, content: bytes, match: str) -> None:
    with pytest.raises(InfolmError, match=match):
        read_squad(write(content))


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InfolmError, match="none cannot be read: No such file"):
        read_squad(tmp_path / "none")


# Folders


@pytest.mark.parametrize("name", ["{}-v1.1.json", "{}.json"])
def test_files_of_train_and_dev_are_taken_as_they_are(
    write: Any, tmp_path: Path, name: str
) -> None:
    write(squad([entry("1", (0, "Ada"))], [entry("2", (0, "Ada"))]), name.format("train"))
    write(squad([entry("3", (0, "Ada"))]), name.format("dev"))
    write([], "predictions.json")
    train, dev = read_folder(tmp_path)
    assert [[each.id for each in side] for side in (train, dev)] == [["1", "2"], ["3"]]


@pytest.mark.parametrize(
    ("articles", "held_out", "dev"),
    [(10, 0.2, 2), (48, 0.2, 10), (2, 0.2, 1), (3, 0.01, 1), (3, 0.99, 2), (4, 0.5, 2)],
)
def test_one_file_is_split_by_article_the_last_are_dev(
    write: Any, tmp_path: Path, articles: int, held_out: float, dev: int
) -> None:
    entries = [[entry(f"{n}{part}", (0, "Ada")) for part in "ab"] for n in range(articles)]
    write(squad([], *entries, []))  # those without a question do not count
    train, measured = read_folder(tmp_path, held_out)
    assert [each.article for each in measured[::2]] == list(range(articles - dev + 1, articles + 1))
    assert [each.id for each in [*train, *measured]] == [e["id"] for pair in entries for e in pair]
    assert not {each.article for each in train} & {each.article for each in measured}


@pytest.mark.parametrize(
    ("names", "match"),
    [
        ([], r"has no JSON file: it needs train-v1\.1\.json and dev-v1\.1\.json \(or train\.json"),
        (["a.json", "b.json"], "has a.json, b.json: it needs"),
        (["train.json"], "has train.json: it needs"),
        (["dev-v1.1.json"], "has dev-v1.1.json: it needs"),
        (["a.json"], "has questions on only one article"),
    ],
)
def test_a_folder_that_cannot_be_split_is_refused(
    write: Any, tmp_path: Path, names: list[str], match: str
) -> None:
    for name in names:
        write(squad([entry("1", (0, "Ada"))]), name)
    with pytest.raises(InfolmError, match=match):
        read_folder(tmp_path)


# Windows


def question(context: str, start: int, text: str, asked: str = "Who is it ?") -> SquadQuestion:
    return SquadQuestion("id", asked, context, ((start, text),), 0)


def told(window: Window, context: str) -> str:
    """The text of the answer's tokens."""
    return context[window.offsets[window.start, 0] : window.offsets[window.end, 1]]


def test_a_window_is_what_the_encoder_reads() -> None:
    (window,) = windows([question(CONTEXT, 22, "Babbage")], pieces, SPECIAL, 64)
    asked, read = [8, 7, 7, 6], [8, 10, 9, 10, 6, 12, 10, 7, 6, 8, 8, 9, 6]
    assert window.tokens.tolist() == [2, *asked, 3, *read, 3]
    assert window.segments.tolist() == [0] * 6 + [1] * 14
    assert window.offsets[:6].tolist() == [[-1, -1]] * 6
    assert window.offsets[6:8].tolist() == [[0, 3], [4, 9]]
    assert window.offsets[-1].tolist() == [-1, -1]
    assert (window.question, window.start, window.end) == (0, 11, 11)
    assert told(window, CONTEXT) == "Babbage"
    assert window.best.tolist() == [False] * 6 + [True] * 13 + [False]


@pytest.mark.parametrize(
    ("answer", "covered"),
    [
        ("1308", "1308"),
        ("308", "1308"),
        ("130", "1308"),
        ("30", "1308"),
        ("rote 13", "wrote 1308"),
        (". Bab", ". Babbage"),
        ("Ada left.", "Ada left."),
        (" ", None),
    ],
)
def test_the_tokens_that_cover_an_answer_are_learnt(answer: str, covered: str | None) -> None:
    start = CONTEXT.index(answer)
    (window,) = windows([question(CONTEXT, start, answer)], pieces, SPECIAL, 64)
    if covered is None:  # where no token has any of it
        assert covering(pieces(CONTEXT)[1], start, answer) is None
        assert (window.start, window.end) == (0, 0)
    else:
        assert told(window, CONTEXT) == covered


def test_a_long_question_keeps_its_beginning() -> None:
    asked = "one three eleven ."
    (window,) = windows([question("Ada", 0, "Ada", asked)], pieces, SPECIAL, 8, longest_question=2)
    assert window.tokens.tolist() == [2, 8, 10, 3, 8, 3]
    (window,) = windows([question("Ada", 0, "Ada", "")], pieces, SPECIAL, 8)
    assert window.tokens.tolist() == [2, 3, 8, 3]


def test_windows_without_room_for_the_paragraph_are_refused() -> None:
    asked = question(CONTEXT, 0, "Ada")
    assert len(windows([asked], pieces, SPECIAL, 8)) == 13  # one token each
    with pytest.raises(InfolmError, match=r"7 tokens have no room .* and a question of 4: use"):
        windows([asked], pieces, SPECIAL, 7)
    with pytest.raises(InfolmError, match="the paragraph of the question id has no token"):
        windows([question("\t\n", 0, "\t")], pieces, SPECIAL, 64)


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 30))
def test_windows_cover_the_paragraph_and_begin_a_stride_apart(
    tokens: int, room: int, stride: int
) -> None:
    expected = [(0, min(room, tokens))]
    while expected[-1][1] < tokens:
        start = expected[-1][0] + min(stride, room)
        expected.append((start, min(start + room, tokens)))
    parts = bounds(tokens, room, stride)
    assert [tuple(part) for part in parts.tolist()] == expected
    assert {i for a, b in expected for i in range(a, b)} == set(range(tokens))

    def context(window: int, token: int) -> float:
        a, b = expected[window]
        inside = a <= token < b
        return min(token - a, b - 1 - token) + 0.01 * (b - a) if inside else -1.0

    slow = [max(range(len(parts)), key=lambda w: context(w, i)) for i in range(tokens)]
    assert most_context(parts, tokens).tolist() == slow
    assert set(slow) == set(range(len(parts)))  # no window is read for nothing


def test_most_context_is_that_of_berts_example() -> None:
    # "the man went to the store and bought a gallon of milk" in windows of 5 tokens, 3 apart: in
    # the second "bought" has 4 tokens before it and none behind, in the third 1 and 3.
    assert most_context(bounds(12, 5, 3), 12)[7] == 2


def test_a_short_last_window_needs_more_context_to_be_the_best() -> None:
    # Windows of 384 and 262 tokens. Token 256 has context 127 in the first and 128 in the second,
    # to which 3.84 and 2.62 are added; token 257 has 126 and 129.
    assert most_context(bounds(390, 384, 128), 390)[255:258].tolist() == [0, 0, 1]


@given(
    st.lists(st.text("ab.1 ", min_size=1, max_size=5), min_size=1, max_size=20),
    st.integers(8, 20),
    st.integers(1, 12),
    st.data(),
)
def test_every_answer_is_found_back_from_its_tokens(
    words: list[str], length: int, stride: int, data: st.DataObject
) -> None:
    context = " ".join(["x", *words])
    start = data.draw(st.integers(0, len(context) - 1))
    answer = data.draw(st.integers(start + 1, len(context)).map(lambda end: context[start:end]))
    asked = question(context, start, answer)
    found = windows([asked, asked], pieces, SPECIAL, length, stride)
    own = [window for window in found if window.question == 0]
    assert [window.question for window in found] == [0] * len(own) + [1] * len(own)
    ids, offsets = pieces(context)
    held = [i for i, (a, b) in enumerate(offsets) if a < start + len(answer) and b > start]
    for window in own:
        inside = window.offsets[:, 0] >= 0
        assert len(window.tokens) <= length
        assert {len(a) for a in (window.segments, window.offsets, window.best)} == {
            len(window.tokens)
        }
        assert not window.best[~inside].any()
        if window.start == 0:
            assert window.end == 0
            read = {tuple(pair) for pair in window.offsets[inside].tolist()}
            assert not held or not {tuple(offsets[i]) for i in (held[0], held[-1])} <= read
        else:
            assert told(window, context) == context[offsets[held[0], 0] : offsets[held[-1], 1]]
            assert answer.strip() in told(window, context)
    # Each token stands in some window, and has most context in exactly one.
    seen = np.concatenate([w.offsets[w.best] for w in own])
    assert sorted(map(tuple, seen.tolist())) == list(map(tuple, offsets.tolist()))
    numbers = {(*w.offsets[i].tolist(), w.tokens[i]) for w in own for i in np.flatnonzero(w.best)}
    assert numbers == {(*span, n) for span, n in zip(offsets.tolist(), ids, strict=True)}


@pytest.mark.data
@pytest.mark.skipif(not REAL.is_file(), reason="xquad is not in $INFOLM_DATA")
def test_all_answers_of_xquad_are_found_back() -> None:
    train, dev = read_folder(REAL.parent)
    questions = [*train, *dev]
    assert questions == read_squad(REAL)
    assert (len(questions), len({q.context for q in questions})) == (1_190, 240)
    assert [len({q.article for q in side}) for side in (train, dev)] == [38, 10]
    assert not {q.context for q in train} & {q.context for q in dev}

    tokenizer = Tokenizer.from_wordpiece(sorted({q.context for q in questions}), 4_000)
    found = windows(questions, tokenizer.pieces, tokenizer.special, 128, 64)
    assert len(found) > 2 * len(questions)
    exact, back = 0, set[int]()
    for window in found:
        if window.start:
            asked = questions[window.question]
            start, text = asked.answers[0]
            first, end = window.offsets[window.start, 0], window.offsets[window.end, 1]
            assert first <= start
            assert start + len(text) <= end
            if window.question not in back:
                exact += asked.context[first:end] == text
            back.add(window.question)
    assert len(back) == len(questions)
    assert exact >= 0.99 * len(questions)  # the others begin or end inside a token


# Windows for training


@given(st.data())
def test_windows_for_training_hold_the_answer(data: st.DataObject) -> None:
    tokens, room = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 20))
    stride = data.draw(st.integers(1, 20))
    first = data.draw(st.integers(0, tokens - 1))
    last = data.draw(st.integers(first, min(tokens - 1, first + 24)))
    parts = bounds(tokens, room, stride)
    found = [tuple(part) for part in holding(parts, first, last, tokens, room).tolist()]
    slow = [(a, b) for a, b in parts.tolist() if set(range(first, last + 1)) <= set(range(a, b))]
    if slow:
        assert found == slow
    elif last - first + 1 > room:
        assert found == []
    else:  # one, around the answer
        ((a, b),) = found
        assert b - a == min(room, tokens)
        assert 0 <= a <= first <= last < b <= tokens
        before, after = first - a, b - 1 - last
        assert abs(before - after) <= 1 or a == 0 or b == tokens
    assert len(holding(parts, -1, -1, tokens, room)) == 0


def test_of_long_paragraphs_only_windows_with_the_answer_are_learnt() -> None:
    """Answers at the beginning, in the middle and at the end of a hundred words; one that is longer
    than two windows share; one that no window has room for."""
    words = [f"w{i}" for i in range(100)]
    context = " ".join(words)

    def asked(first: int, count: int) -> SquadQuestion:
        text = " ".join(words[first : first + count])
        start = len(" ".join(words[:first])) + (first > 0)
        return SquadQuestion(f"{first}-{count}", "Who ?", context, ((start, text),), 0)

    questions = [asked(0, 1), asked(48, 2), asked(97, 3), asked(17, 14), asked(10, 60)]
    length, stride = 25, 10  # room for 20 beside [CLS] Who ? [SEP] and [SEP]
    every = windows(questions, pieces, SPECIAL, length, stride)
    learnt = windows(questions, pieces, SPECIAL, length, stride, answered=True)
    per = np.bincount([w.question for w in learnt], minlength=5).tolist()
    assert per == [1, 2, 1, 1, 0]
    for window in learnt:
        assert len(window.tokens) <= length
        begin, end = window.offsets[window.start, 0], window.offsets[window.end, 1]
        (start, text), *_ = questions[window.question].answers
        assert (begin, end) == (start, start + len(text))
    # All but the one that was placed around its answer are among those that dev would read.
    there = {(w.question, w.start, w.end, *w.tokens.tolist()) for w in every if w.end}
    here = {(w.question, w.start, w.end, *w.tokens.tolist()) for w in learnt}
    assert there <= here
    assert {each[0] for each in here - there} == {3}
    short = [question for question in questions if question.id != "10-60"]
    whole = windows(short, pieces, SPECIAL, 512, 128, answered=True)
    # Where a paragraph is one window, nothing changes.
    for one, two in zip(whole, windows(short, pieces, SPECIAL, 512, 128), strict=True):
        assert (one.tokens == two.tokens).all()
        assert (one.start, one.end) == (two.start, two.end)
