"""SQuAD 1.1: questions whose answer is a span of a paragraph, and the windows an encoder reads.

An encoder reads

    [CLS] question [SEP] part of the paragraph [SEP]

at once. A paragraph that is too long for that is read in windows that overlap, as in BERT: each
begins `stride` tokens behind the one before, and the last ends with the paragraph.

Of these, the ones without the answer teach an encoder to point to [CLS]. They are few where an
encoder reads 512 tokens (2.4 % of XQuAD's windows), and at 128 tokens more than half (54 %). Hence
in training the windows that hold the answer can be taken alone; to find an answer, all are read.
"""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from infolm.data.answers import SquadEntry, read_text, squad_articles, squad_line
from infolm.data.tokens import Special
from infolm.errors import InfolmError

Ints = npt.NDArray[np.int64]
Pieces = Callable[[str], tuple[Ints, Ints]]
"""Cuts a text: the numbers of its n tokens (n,), and where each begins and ends in it (n, 2)."""

TRAIN = ("train-v1.1.json", "train.json")
DEV = ("dev-v1.1.json", "dev.json")

# The files


@dataclass(frozen=True)
class SquadQuestion:
    """A question on a paragraph, its context.

    answers: one or more, each (s, text) with text = context[s : s + len(text)]; several are several
    people's, and the first is the one to learn. article: its number in the file.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[int, str], ...]
    article: int


def read_squad(path: Path) -> list[SquadQuestion]:
    """The questions of a file in SQuAD 1.1's JSON, in its order.

    A file with a single invalid question is refused. So are questions without an answer,
    which make SQuAD 2.0 another task, with another metric.
    """
    text = read_text(path)
    questions = dict[str, SquadQuestion]()
    for number, article in enumerate(squad_articles(text, path)):
        for paragraph in article.paragraphs:
            for entry in paragraph.qas:
                if not entry.id:
                    line = squad_line(text, "question", entry.question)
                    raise InfolmError(
                        f"the question on line {line:,} of {path} has no id: give it one of its own"
                    )
                fault = _fault(entry, paragraph.context)
                if entry.id in questions:
                    fault = "has the id of a question before it: give each one of its own"
                if fault:
                    line = squad_line(text, "id", entry.id)
                    raise InfolmError(f"the question {entry.id} on line {line:,} of {path} {fault}")
                answers = tuple((answer.answer_start, answer.text) for answer in entry.answers)
                questions[entry.id] = SquadQuestion(
                    entry.id, entry.question, paragraph.context, answers, number
                )
    if not questions:
        raise InfolmError(f"{path} has no question: give a file with some, in SQuAD's format")
    return list(questions.values())


def _fault(entry: SquadEntry, context: str) -> str | None:
    """What is wrong with the answers to a question, if anything is."""
    if entry.is_impossible or not entry.answers:
        return (
            "has no answer, which is SQuAD 2.0's: give files of SQuAD 1.1, where each question has "
            "one"
        )
    for answer in entry.answers:
        start, text = answer.answer_start, answer.text
        if not text.strip():
            return "has an empty answer: write one, or delete the question"
        if start < 0 or not context.startswith(text, start):
            places = [found.start() for found in re.finditer(f"(?={re.escape(text)})", context)]
            nearest = min(places, key=lambda place: abs(place - start), default=None)
            there = "it is nowhere in it" if nearest is None else f"it stands at {nearest:,}"
            return (
                f"has the answer '{text}', which is not in its paragraph at answer_start "
                f"{start:,} ({there}): correct the file"
            )
    return None


def read_folder(
    folder: Path, held_out: float = 0.2
) -> tuple[list[SquadQuestion], list[SquadQuestion]]:
    """The questions to learn from, and those to measure by (dev).

    They are `train-v1.1.json` and `dev-v1.1.json`, or `train.json` and `dev.json`. A folder with
    one other JSON file, as XQuAD's, is split by article, so that no paragraph is on both sides: of
    A articles with questions the last round(held_out A) in the file's order are dev, and at least
    one is on each side.
    """
    train, dev = (_first_there(folder, names) for names in (TRAIN, DEV))
    if train and dev:
        return read_squad(train), read_squad(dev)
    others = sorted(folder.glob("*.json"))
    if train or dev or len(others) != 1:
        found = ", ".join(path.name for path in others) or "no JSON file"
        raise InfolmError(
            f"{folder} has {found}: it needs {TRAIN[0]} and {DEV[0]} (or {TRAIN[1]} and {DEV[1]}), "
            "or one other file of SQuAD's format, to be split by article"
        )
    questions = read_squad(others[0])
    articles = sorted({question.article for question in questions})
    if len(articles) < 2:
        raise InfolmError(
            f"{others[0]} has questions on only one article, and is split by article: give two "
            f"or more, or a file {TRAIN[0]} and a file {DEV[0]}"
        )
    measured = min(max(round(held_out * len(articles)), 1), len(articles) - 1)
    first = articles[-measured]
    learnt = [question for question in questions if question.article < first]
    return learnt, [question for question in questions if question.article >= first]


def _first_there(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


# The windows


@dataclass(frozen=True, eq=False)
class Window:
    """What an encoder reads at once, L tokens: [CLS] question [SEP] part of the paragraph [SEP].

    question: its number in the list. tokens (L,). segments (L,): 0 up to the first [SEP], then 1.
    offsets (L, 2): where a token of the paragraph begins and ends in it, in characters; -1 for the
    other tokens. start, end: the first and the last token of the answer; both 0, the place of
    [CLS], where it does not lie wholly in this window. best (L,): the tokens of the paragraph that
    have more context in this window than in any other.
    """

    question: int
    tokens: Ints
    segments: Ints
    offsets: Ints
    start: int
    end: int
    best: npt.NDArray[np.bool_]


def windows(
    questions: Sequence[SquadQuestion],
    pieces: Pieces,
    special: Special,
    length: int,
    stride: int = 128,
    longest_question: int = 64,
    answered: bool = False,
) -> list[Window]:
    """The windows of all questions, each at most `length` tokens, in order.

    Each token of a paragraph is in one at least. Of a question longer than `longest_question` the
    beginning is kept. answered: only those of `holding`, for training.
    """
    paragraph_pieces = functools.cache(pieces)  # several questions are on one paragraph
    found = list[Window]()
    for number, question in enumerate(questions):
        asked = pieces(question.question)[0][:longest_question]
        room = length - len(asked) - 3
        if room < 1:
            raise InfolmError(
                f"{length:,} tokens have no room for a paragraph beside [CLS], two [SEP] and a "
                f"question of {len(asked):,}: use longer windows, or shorter questions"
            )
        ids, offsets = paragraph_pieces(question.context)
        if not len(ids):
            raise InfolmError(
                f"the paragraph of the question {question.id} has no token in this vocabulary: "
                "choose another vocabulary, or delete the question"
            )
        first, last = covering(offsets, *question.answers[0]) or (-1, -1)
        parts = bounds(len(ids), room, stride)
        if answered:
            parts = holding(parts, first, last, len(ids), room)
            if not len(parts):
                continue
        best = most_context(parts, len(ids))
        before = np.concatenate([[special.cls], asked, [special.sep]])
        head = len(before)
        for window, (a, b) in enumerate(parts.tolist()):
            held = a <= first and last < b
            found.append(
                Window(
                    number,
                    tokens=np.concatenate([before, ids[a:b], [special.sep]]),
                    segments=np.repeat([0, 1], [head, b - a + 1]),
                    offsets=np.pad(offsets[a:b], ((head, 1), (0, 0)), constant_values=-1),
                    start=head + first - a if held else 0,
                    end=head + last - a if held else 0,
                    best=np.pad(best[a:b] == window, (head, 1)),
                )
            )
    return found


def covering(offsets: Ints, start: int, text: str) -> tuple[int, int] | None:
    """The first and the last token that have a character of the answer: those that cover it.

    An answer may begin or end inside a token ("308" in "1308"), and then the tokens say more than
    it. None where no token has any of it.
    """
    held = np.flatnonzero((offsets[:, 0] < start + len(text)) & (offsets[:, 1] > start))
    return (int(held[0]), int(held[-1])) if len(held) else None


def bounds(tokens: int, room: int, stride: int) -> Ints:
    """Where the windows on so many tokens begin and end, (W, 2), with room for `room` in each.

    A stride beyond the room would leave tokens out; the room is then the stride.
    """
    step = min(stride, room)
    count = 1 + max(0, -(-(tokens - room) // step))
    starts = step * np.arange(count)
    return np.stack([starts, np.minimum(starts + room, tokens)], axis=1)


def holding(parts: Ints, first: int, last: int, tokens: int, room: int) -> Ints:
    """Of windows (W, 2) those that hold the tokens from `first` to `last`, (V, 2).

    Where none does, one with these tokens in its middle, as far as the paragraph's ends allow; none
    at all where there is not room enough, or no such tokens (`first` below 0).
    """
    held = parts[(parts[:, 0] <= first) & (last < parts[:, 1])]
    size = last - first + 1
    if len(held) or first < 0 or size > room:
        return held
    start = min(max(first - (room - size) // 2, 0), max(tokens - room, 0))
    return np.array([[start, min(start + room, tokens)]])


def most_context(parts: Ints, tokens: int) -> Ints:
    """The number of the window where each token has most context, (tokens,); BERT's rule.

    Token i of window w, which goes from a to b - 1, has context min(i - a, b - 1 - i). To that 0.01
    of the window's length is added, which matters for the last one, if it is shorter; of equals the
    first counts. Each window is the best one of some token.
    """
    token = np.arange(tokens)
    a, b = parts[:, :1], parts[:, 1:]
    context = np.minimum(token - a, b - 1 - token)  # (W, tokens), negative outside
    return np.argmax(np.where(context >= 0, context + 0.01 * (b - a), -1.0), axis=0)
