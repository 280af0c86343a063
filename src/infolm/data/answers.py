"""Questions with candidate answers, one of them right, from files of two formats.

Tab-separated text, the format of YahooCQA (Tay et al. 2017): UTF-8, one candidate per line,

    question <TAB> answer <TAB> label

where the label is 1 for the right answer and 0 for a wrong one. Lines of one question follow each
other, and exactly one of them has label 1. A first line whose third column is the word `label` is
a header; blank lines are skipped; there are no quotes and no escapes.

JSON in SQuAD's format, 1.1 or 2.0, gives a choice among sentences: the candidates are the sentences
of the paragraph in order, and the right one contains the answer.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import getitem, itemgetter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from infolm.errors import InfolmError
from infolm.trees import fits


@dataclass(frozen=True)
class Question:
    """A question and its candidates, two or more; `answers[right]` is the right one."""

    question: str
    answers: tuple[str, ...]
    right: int


def one_line(text: str) -> str:
    """The text in one line: a line's end would be an <eos>."""
    return " ".join(text.split())


# Why a question is left out.
_SINGLE = "with a single candidate"
_UNANSWERABLE = "without an answer"
_CROSSING = "whose answers do not lie in one sentence"
_MISPLACED = "whose answer is not where the file says"


def read_questions(path: Path) -> tuple[list[Question], list[str]]:
    """The questions of a file, and the number of questions left out for each reason.

    A file that begins with a brace is JSON.
    """
    text = read_text(path)
    first = text.lstrip().partition("\n")[0]
    found = _squad(text, path) if first[0] in "{[" and "\t" not in first else _table(text, path)
    questions, reasons = [], Counter[str]()
    for each in found:
        if isinstance(each, Question):
            questions.append(each)
        else:
            reasons[each] += 1
    notes = [f"{count:,} question{'s'[: count != 1]} {why}" for why, count in reasons.items()]
    if not questions:
        told = f" ({', '.join(notes)})" if notes else ""
        raise InfolmError(f"{path} has no question to rank answers of{told}: give another file")
    return questions, notes


def read_text(path: Path) -> str:
    """The text of a file of questions, which must not be blank."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InfolmError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InfolmError(
            f"{path} is not UTF-8 text (byte {error.start}): give a file of questions and answers "
            "in UTF-8"
        ) from error
    if not text.strip():
        raise InfolmError(f"{path} is empty: give a file of questions and answers")
    return text


# The parts of SQuAD's JSON that are used, under the file's names.


class SquadAnswer(BaseModel):
    text: str
    answer_start: int


class SquadEntry(BaseModel):
    """A question. Version 2.0 has impossible ones."""

    id: str = ""
    question: str
    answers: list[SquadAnswer]
    is_impossible: bool = False


class SquadParagraph(BaseModel):
    context: str
    qas: list[SquadEntry]


class SquadArticle(BaseModel):
    paragraphs: list[SquadParagraph]


class SquadFile(BaseModel):
    data: list[SquadArticle]


def squad_articles(text: str, path: Path) -> list[SquadArticle]:
    """What SQuAD's JSON holds; `path` is for the errors."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InfolmError(
            f"{path} is not whole JSON ({error.msg} on line {error.lineno:,}): get the file again"
        ) from error
    except (RecursionError, ValueError) as error:  # too deep, or a number of too many digits
        raise InfolmError(f"{path} is not of SQuAD's format ({error}): get it again") from error
    try:
        return SquadFile.model_validate(data, strict=True).data
    except ValidationError as error:
        raise InfolmError(
            f"{path} is JSON but not of SQuAD's format ({_misfit(error, data, text)}): it needs "
            "data, paragraphs, context, qas, question and answers with text and answer_start"
        ) from error


def squad_line(text: str, key: str, value: str) -> int:
    """The line of SQuAD's JSON that has this value of "id" or "question", the last if several."""
    pairs = re.finditer(rf'"{key}"\s*:\s*("(?:[^"\\]|\\.)*")', text)
    places = [found.start() for found in pairs if json.loads(found[1]) == value]
    return text.count("\n", 0, places[-1]) + 1


def _misfit(error: ValidationError, data: Any, text: str) -> str:
    """Where and how JSON is not of SQuAD's format, with the line where the question has an id."""
    fault = error.errors()[0]
    place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in fault["loc"])
    told = f"{place.lstrip('.') or 'all of it'}: {fault['msg']}"
    question = fault["loc"][:6]  # data, its number, paragraphs, its number, qas, its number
    if len(fault["loc"]) > len(question):
        id = reduce(getitem, question, data).get("id")
        if fits(str, id):
            told += f"; the question is on line {squad_line(text, 'id', id):,}"
    return told


def _table(text: str, path: Path) -> Iterator[Question | str]:
    """Each question, or why it is left out; like `_squad`."""
    for question, group in groupby(_rows(text, path), key=itemgetter(0)):
        rows = list(group)
        answers = tuple(answer for _, answer, _, _ in rows)
        right = [place for place, row in enumerate(rows) if row[2]]
        if len(right) != 1:
            many = "no right answer" if not right else f"{len(right)} right answers"
            raise InfolmError(
                f"the question on line {rows[0][3]:,} of {path} has {many}: label one answer of "
                "each question 1 and the others 0, with the lines of a question together"
            )
        yield Question(question, answers, right[0]) if len(answers) > 1 else _SINGLE


def _rows(text: str, path: Path) -> Iterator[tuple[str, str, bool, int]]:
    """Question, answer, whether that is right, and the number of the line."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        place = f"line {number:,} of {path}"
        if len(cells) != 3:
            many = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
            raise InfolmError(
                f"{place} has {many} and not three: write question, answer and label with a tab "
                "between, or give SQuAD's JSON"
            )
        question, answer, label = cells
        if number == 1 and label.lower() == "label":
            continue
        if label not in ("0", "1"):
            raise InfolmError(f"{place} has the label '{label}': write 1 for right, 0 for wrong")
        if not question or not answer:
            what = "answer" if question else "question"
            raise InfolmError(f"the {what} on {place} is empty: write one, or delete the line")
        yield question, answer, label == "1", number


def _squad(text: str, path: Path) -> Iterator[Question | str]:
    for article in squad_articles(text, path):
        for paragraph in article.paragraphs:
            spans = sentences(paragraph.context)
            for entry in paragraph.qas:
                yield _choice(entry, paragraph.context, spans)


def _choice(entry: SquadEntry, context: str, spans: list[tuple[int, int]]) -> Question | str:
    """An entry's choice among the sentences `spans` of the context.

    Several answers come from several people: if they lie in different sentences, the question has
    no right one.
    """
    answers = [(answer.answer_start, answer.text) for answer in entry.answers]
    if entry.is_impossible or not answers:
        return _UNANSWERABLE
    if not all(context.startswith(text, start) for start, text in answers):
        return _MISPLACED
    if len(spans) < 2:
        return _SINGLE
    holding = [
        place
        for place, (first, end) in enumerate(spans)
        if all(first <= start and start + len(text) <= end for start, text in answers)
    ]
    if not holding:
        return _CROSSING
    return Question(entry.question.strip(), tuple(context[a:b] for a, b in spans), holding[0])


# Sentences of English prose. A full stop ends one unless the text before or after it shows
# otherwise.

_END = re.compile(
    r"(?P<mark>[.!?…]+)[\"'”’)\]]*(?:\[[^\]\s]{1,4}\])*\s+"  # a mark, closing quotes, [4], a blank
    r"|\n\s*\n"
)
_LAST = re.compile(r"[\w.]+$")
_NEXT = re.compile(r"\W*(\w+)(\.?)")
_ABBREVIATED = re.compile(r"[a-z]|(?:[a-z]{1,2}\.)+[a-z]{1,2}")  # initials, u.s, a.m, ph.d

_TITLES = frozenset(
    "mr mrs ms messrs dr prof rev hon gen sen rep gov capt lt col maj sgt st mt vs v cf e.g i.e "
    "viz".split()
)
"""Never the last word of a sentence."""
_COUNTED = frozenset(
    "no nos vol vols fig figs pp ch eq sec art jan feb mar apr jun jul aug sep sept oct nov "
    "dec".split()
)
"""Abbreviations before a number, else words."""
_SHORTENED = frozenset("jr sr inc ltd co corp bros al ca approx dept est".split())
"""Like initials: the last word of a sentence now and then."""
_OPENING = frozenset(
    "A After All Although An And Another As At Because Before Both But By Despite During Each "
    "Even Every For From He Her Here His How However I If In Instead It Its Many Most No Nor Of "
    "On Once One Only Or Other Our Several She Since So Some Such That The Their Then There "
    "Therefore These They This Those Though Through Thus To Today Under Until Upon We What When "
    "Where Whether Which While Who Why With Within Yet You".split()
)
"""Words with a capital only at the beginning of a sentence."""


def sentences(text: str) -> list[tuple[int, int]]:
    """Where the sentences of English prose begin and end, without the blanks around them.

    A sentence ends with . ! ? or an ellipsis, closing quotes and brackets with it, where a capital
    or a digit follows behind a blank; and with a paragraph. It contains a word: three dots are not
    a sentence. It does not end after a title (Dr.), nor after an abbreviation before a number (No.
    5), nor after the number of a list's item. After initials and other abbreviations (J. F.
    Kennedy, the U.S. Navy, Smith Jr.) it ends only if the next word is one that otherwise has no
    capital.
    """
    cuts = [0]
    for found in _END.finditer(text):
        if _ends(text, cuts[-1], found):
            cuts.append(found.end())
    parts = [(first, text[first:end]) for first, end in zip(cuts, [*cuts[1:], None], strict=True)]
    return [
        (first + len(part) - len(part.lstrip()), first + len(part.rstrip()))
        for first, part in parts
        if part.strip()
    ]


def _ends(text: str, first: int, found: re.Match[str]) -> bool:
    """Whether the sentence that began at `first` ends with this match."""
    before, following = text[first : found.start()].strip(), _NEXT.match(text, found.end())
    if not following or not _NEXT.match(before):
        return False
    word, stop = following.groups()
    if found["mark"] is None:
        return True
    if not (word[0].isupper() or word[0].isdigit()):
        return False
    if found["mark"] != ".":
        return True
    if before.isdigit():
        return False
    last = _LAST.search(before)
    abbreviation = last[0].lower() if last else ""
    if abbreviation in _TITLES:
        return False
    if abbreviation in _COUNTED:
        return not word[0].isdigit()
    if abbreviation in _SHORTENED or _ABBREVIATED.fullmatch(abbreviation):
        return word in _OPENING and not stop
    return True
