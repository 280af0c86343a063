"""Lines of questions and answers: which a model is trained on, and which it never reads."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from infolm.data.answers import Question
from infolm.data.corpora import DataConfig, load
from infolm.data.questions import asked, line, part_of, parts, splits
from infolm.errors import InfolmError


def made(number: int) -> Question:
    answers = tuple(f"Sentence {number} of kind {kind}." for kind in "abc")
    return Question(f"What is number {number}?", answers, number % 3)


def test_one_question_mark_is_between_question_and_answer() -> None:
    assert asked("Who was  he?? ") == "Who was he ?"
    assert asked("Who was he") == "Who was he ?"
    assert line(Question("Who?", ("I.", "You\nwere."), 1)) == "Who ? You were."


def test_parts_have_their_shares_and_are_the_same_everywhere() -> None:
    divided = parts([made(number) for number in range(4000)])
    assert sum(map(len, divided.values())) == 4000
    for part, share in (("seen", 0.5), ("chosen", 0.1), ("unseen", 0.4)):
        sigma = (share * (1 - share) / 4000) ** 0.5
        assert len(divided[part]) / 4000 == pytest.approx(share, abs=4 * sigma)
    assert [part_of(f"What is number {n}?") for n in range(4)] == ["seen", "seen", "seen", "unseen"]


def test_a_model_reads_every_sentence_and_only_the_pairs_it_may(tmp_path: Path) -> None:
    questions = [made(number) for number in range(60)]
    rows = [
        f"{each.question}\t{answer}\t{int(place == each.right)}\n"
        for each in questions
        for place, answer in enumerate(each.answers)
    ]
    path = tmp_path / "questions.tsv"
    path.write_text("".join(rows))
    lines = {split: text.splitlines() for split, text in splits(path).items()}
    divided = parts(questions)
    sentences = [answer for each in questions for answer in each.answers]
    assert lines["train"] == [*sentences, *map(line, divided["seen"])]
    assert lines["valid"] == [line(each) for each in divided["chosen"]]
    assert lines["test"] == [line(each) for each in divided["unseen"]]
    assert not set(lines["train"]) & {*lines["valid"], *lines["test"]}


def test_the_corpus_xquad(real: Callable[[str], None]) -> None:
    real("xquad")
    corpus = load(DataConfig(corpus="xquad"))
    assert {name: split.lines for name, split in corpus.splits.items()} == {
        "train": 1737,
        "valid": 124,
        "test": 451,
    }
    assert len(corpus.tokenizer) == 7755


def test_a_damaged_file_is_refused(folders: Path) -> None:
    path = folders / "data" / "xquad" / "xquad.en.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"data": [{"paragraphs": 3}]}))
    with pytest.raises(InfolmError, match="not of SQuAD's format"):
        load(DataConfig(corpus="xquad"))
