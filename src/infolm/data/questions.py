"""Lines of questions and answers, to train sentence models that answer (SentenceMIM, section 4.6).

A line is "question ? answer", where the answer is the sentence of a paragraph that contains it. A
hash of the question decides whether a model is trained on its line:

    seen    a half, in train, with every sentence of the paragraphs (without a question) before it
    chosen  a tenth, in valid
    unseen  the others, in test

A model that is trained on `train` has read the right answer of every question, and every wrong one,
but only the seen questions together with their answer.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

from infolm.data.answers import Question, one_line, read_questions

Part = Literal["seen", "chosen", "unseen"]
VERSION = 1  # raise it when other lines come out

_SPLITS: dict[str, Part] = {"train": "seen", "valid": "chosen", "test": "unseen"}


def part_of(question: str) -> Part:
    """A uniform number below ten, the same on every machine: 5 : 1 : 4."""
    side = int.from_bytes(hashlib.sha256(question.encode()).digest()) % 10
    return "seen" if side < 5 else "chosen" if side == 5 else "unseen"


def parts(questions: Iterable[Question]) -> dict[Part, list[Question]]:
    """The questions of each part, in their order."""
    found: dict[Part, list[Question]] = {part: [] for part in get_args(Part)}
    for each in questions:
        found[part_of(each.question)].append(each)
    return found


def splits(path: Path) -> dict[str, str]:
    """The lines of each split, from a file of questions that `data.answers` reads."""
    questions, _ = read_questions(path)
    divided = parts(questions)
    lines = {split: [line(each) for each in divided[part]] for split, part in _SPLITS.items()}
    lines["train"] = [*_sentences(questions), *lines["train"]]
    return {split: "".join(f"{each}\n" for each in found) for split, found in lines.items()}


def line(question: Question) -> str:
    """The question with its right answer. There is one "?" between them, written or not."""
    return f"{asked(question.question)} {one_line(question.answers[question.right])}"


def asked(question: str) -> str:
    """The question, ended by one question mark."""
    return f"{one_line(question).rstrip(' ?')} ?"


def _sentences(questions: Sequence[Question]) -> list[str]:
    """Every candidate once, in the order of the file."""
    return list(dict.fromkeys(one_line(answer) for each in questions for answer in each.answers))
