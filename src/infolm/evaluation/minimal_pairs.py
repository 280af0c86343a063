"""Minimal pairs: is the grammatical sentence of two the likelier one?

As in BLiMP (Warstadt et al. 2020): the probabilities of the whole sentences are compared, including
`<eos>` unless it does not count. A pair of equal probability counts as half: if both sentences have
the same tokens, for instance because the differing word is unknown, the model cannot choose.
"""

import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from infolm.errors import InfolmError
from infolm.evaluation.scoring import ScoredSentence
from infolm.trees import fits, mapping

GOOD, BAD = "sentence_good", "sentence_bad"
PHENOMENA = ("linguistics_term", "phenomenon", "field")
"""Fields that may name a pair's phenomenon; the first present one is used."""
HEADINGS = ([GOOD, BAD], ["good", "bad"])
"""Header lines of a .tsv file."""
SUFFIXES = (".jsonl", ".tsv")
VERSION = 1


class Pair(NamedTuple):
    """good, bad: the sentences. where: 'FILE, line 3'. file: its name without the suffix."""

    good: str
    bad: str
    where: str
    file: str
    phenomenon: str


@dataclass(frozen=True)
class Accuracy:
    """Accuracy over pairs; a tie counts as half.

    stderr: the sample standard deviation of 0, 1/2 and 1 over the root of their number; None for
    one pair. unknown: the share of pairs in which a word is not in the vocabulary.
    """

    accuracy: float
    stderr: float | None
    pairs: int
    ties: int
    unknown: float

    @classmethod
    def of(cls, judged: Sequence["Judged"]) -> "Accuracy":
        count = len(judged)
        mean = math.fsum(each.credit for each in judged) / count
        spread = math.fsum((each.credit - mean) ** 2 for each in judged)
        stderr = math.sqrt(spread / (count - 1) / count) if count > 1 else None
        ties = sum(each.credit == 0.5 for each in judged)
        return cls(mean, stderr, count, ties, sum(each.unknown for each in judged) / count)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Judged(NamedTuple):
    """A pair, how much likelier the good sentence is in nats, and whether a word is unknown."""

    pair: Pair
    margin: float
    unknown: bool

    @property
    def credit(self) -> float:
        return 0.5 if self.margin == 0 else float(self.margin > 0)


@dataclass(frozen=True)
class PairResult:
    """Accuracies in all, by file and by phenomenon, and each pair."""

    overall: Accuracy
    files: dict[str, Accuracy]
    phenomena: dict[str, Accuracy]
    judged: list[Judged]
    convention: str

    def to_dict(self, model: str = "") -> dict[str, Any]:
        """`accuracy`, `stderr`, `pairs`, `ties`, `unknown`, the same under `files` and `phenomena`,
        and the keys of an lm-evaluation-harness result: `results`, `versions`, `n-shot`,
        `n-samples`, `higher_is_better`, `config`."""
        tasks = {"pairs": self.overall, **self.files} if len(self.files) > 1 else self.files
        return {
            **self.overall.to_dict(),
            "files": {name: found.to_dict() for name, found in self.files.items()},
            "phenomena": {name: found.to_dict() for name, found in self.phenomena.items()},
            "convention": self.convention,
            "results": {
                name: {
                    "alias": name,
                    "acc,none": found.accuracy,
                    "acc_stderr,none": "N/A" if found.stderr is None else found.stderr,
                }
                for name, found in tasks.items()
            },
            "group_subtasks": {"pairs": list(self.files)} if len(self.files) > 1 else {},
            "versions": dict.fromkeys(tasks, VERSION),
            "n-shot": dict.fromkeys(self.files, 0),
            "higher_is_better": {name: {"acc": True} for name in tasks},
            "n-samples": {
                name: {"original": found.pairs, "effective": found.pairs}
                for name, found in self.files.items()
            },
            "config": {"model": "infolm", "model_args": model, "batch_size": "auto"},
        }


def judge(pairs: Sequence[Pair], scored: Sequence[ScoredSentence]) -> PairResult:
    """`scored`: the good and the bad sentence of each pair, one after the other."""
    judged = [
        Judged(pair, good.log_prob - bad.log_prob, bool(good.unknown or bad.unknown))
        for pair, good, bad in zip(pairs, scored[::2], scored[1::2], strict=True)
    ]

    def by(key: Callable[[Pair], str]) -> dict[str, Accuracy]:
        groups: dict[str, list[Judged]] = {}
        for each in judged:
            groups.setdefault(key(each.pair), []).append(each)
        return {name: Accuracy.of(group) for name, group in groups.items()}

    return PairResult(
        Accuracy.of(judged),
        by(lambda pair: pair.file),
        by(lambda pair: pair.phenomenon),
        judged,
        scored[0].convention,
    )


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a .jsonl file with `sentence_good` and `sentence_bad`, as BLiMP's, of a .tsv
    file with the good and the bad sentence, or of all such files in a folder, by name."""
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES)
        if not found:
            raise InfolmError(f"{path} has no .jsonl or .tsv file: give a folder with pairs")
    else:
        found = [path]
    return [pair for each in found for pair in _read(each)]


def _read(path: Path) -> list[Pair]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise InfolmError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InfolmError(f"{path} is not UTF-8 text: convert it") from error
    pairs = list((_of_tsv if path.suffix == ".tsv" else _of_jsonl)(path, lines))
    if not pairs:
        raise InfolmError(f"{path} has no pair of sentences: write one pair per line")
    return pairs


def _of_jsonl(path: Path, lines: Sequence[str]) -> Iterator[Pair]:
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            entry = mapping(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise InfolmError(
                f"{where} is not JSON ({error}): write one object per line"
            ) from error
        if entry is None:
            raise InfolmError(f"{where} is not an object with {GOOD} and {BAD}")
        for field in (GOOD, BAD):
            if not fits(str, entry.get(field)):
                raise InfolmError(f"{where} has no {field}: each line needs {GOOD} and {BAD}")
        named = (entry[name] for name in PHENOMENA if fits(str, entry.get(name)))
        yield Pair(entry[GOOD], entry[BAD], where, path.stem, next(named, path.stem))


def _of_tsv(path: Path, lines: Sequence[str]) -> Iterator[Pair]:
    for number, row in enumerate(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE), 1):
        if not any(cell.strip() for cell in row) or (number == 1 and row in HEADINGS):
            continue
        if len(row) != 2:
            raise InfolmError(
                f"{path}, line {number} has {len(row)} columns, not two: the good sentence, a tab, "
                "the bad one"
            )
        good, bad = row
        yield Pair(good, bad, f"{path}, line {number}", path.stem, path.stem)
