"""Eight tasks of GLUE (Wang et al. 2019) and their files, as they are distributed.

A file is tab-separated UTF-8, an example a line, with a header that names the columns; CoLA's have
none. Columns are found by their names, whatever their order, and what a task does not need is not
looked at. There are no quotes and no escapes: a quotation mark is a character of its sentence.

    read_task("mnli", Path("glue_data"))          # its files are in glue_data/MNLI
    read_task("mnli", Path("glue_data/MNLI"))     # or here

An incomplete line is refused, never skipped. QQP as GLUE first gave it out (QQP.zip) has
such lines, halves of records with a line break inside a question; QQP-clean.zip has replaced it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from infolm.errors import InfolmError
from infolm.section import nearest


@dataclass(frozen=True)
class Example:
    """One or two sentences and their label: a class number or a score.

    where: "line 3 of train.tsv", for messages. index: the number that the file gives it, if any; by
    it GLUE's server knows an answer. An example that has no label has NaN.
    """

    text: str
    pair: str | None
    label: float
    where: str = field(default="", compare=False)
    index: str = field(default="", compare=False)


@dataclass(frozen=True)
class Labelled:
    """The examples of a task. MNLI's dev has the parts matched and mismatched, the others' one,
    `dev`. Of test there are only the parts whose labels are public; `asked` has each part's first
    test file that is there, without labels: what GLUE's server wants answers to."""

    train: list[Example]
    dev: dict[str, list[Example]]
    test: dict[str, list[Example]]
    asked: dict[str, list[Example]] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Names of files.

    dev: the files that make up each part together. test: for each part the files it may be in; the
    first that has labels is read. held_out: names of a list of pairs of `train`, their two IDs a
    line, that are the part `dev`; one of the names is enough.
    """

    train: str
    dev: Mapping[str, tuple[str, ...]]
    test: Mapping[str, tuple[str, ...]]
    held_out: tuple[str, ...] = ()


_USUAL = Layout("train.tsv", {"dev": ("dev.tsv",)}, {"test": ("test.tsv",)})
_MNLI = Layout(
    "train.tsv",
    {"matched": ("dev_matched.tsv",), "mismatched": ("dev_mismatched.tsv",)},
    {"matched": ("test_matched.tsv",), "mismatched": ("test_mismatched.tsv",)},
)
# As CoLA's authors give it out: GLUE's dev is their two parts together.
_COLA = Layout("in_domain_train.tsv", {"dev": ("in_domain_dev.tsv", "out_of_domain_dev.tsv")}, {})
# As MRPC's authors give it out, without a dev part: GLUE cuts it from train, by a list. Their test
# file may stand beside GLUE's, which has no labels.
_MRPC = Layout(
    "msr_paraphrase_train.txt",
    {},
    {"test": ("msr_paraphrase_test.txt",)},
    held_out=("dev_ids.tsv", "mrpc_dev_ids.tsv"),
)
_MRPC_IN_GLUE = Layout(_USUAL.train, _USUAL.dev, {"test": ("test.tsv", "msr_paraphrase_test.txt")})
_IDS = ("#1 ID", "#2 ID")
_INDEX = ("index", "id")


@dataclass(frozen=True)
class Task:
    """A task, how it is scored, and where its files have what.

    title: GLUE's name of it, and of its folder. texts: the columns of the sentence, or of both.
    label: the column of the label. labels: the classes as the files write them, in the order of
    their numbers; none where a score is to be told. metrics: names in `metrics.METRICS`; a model is
    chosen by the first. epochs: the paper's (appendix B). unnamed: the columns of files without a
    header. remedy: what to do about a line that is not whole.
    """

    name: str
    title: str
    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    epochs: int = 10
    layouts: tuple[Layout, ...] = (_USUAL,)
    unnamed: tuple[str, ...] = ()
    remedy: str = "correct the line or delete it"


_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")

TASKS = {
    task.name: task
    for task in (
        Task(
            name="cola",
            title="CoLA",
            texts=("sentence",),
            label="label",
            labels=_BINARY,
            metrics=("matthews",),
            epochs=4,
            layouts=(_USUAL, _COLA),
            unnamed=("source", "label", "mark", "sentence"),
        ),
        Task("sst2", "SST-2", ("sentence",), "label", _BINARY, ("accuracy",)),
        Task(
            name="mrpc",
            title="MRPC",
            texts=("#1 String", "#2 String"),
            label="Quality",
            labels=_BINARY,
            metrics=("f1", "accuracy"),
            layouts=(_MRPC_IN_GLUE, _MRPC),
        ),
        Task(
            name="qqp",
            title="QQP",
            texts=("question1", "question2"),
            label="is_duplicate",
            labels=_BINARY,
            metrics=("f1", "accuracy"),
            remedy="correct the line or delete it, or use GLUE's QQP-clean.zip",
        ),
        Task(
            name="mnli",
            title="MNLI",
            texts=_PAIR,
            label="gold_label",
            labels=("entailment", "neutral", "contradiction"),
            metrics=("accuracy",),
            layouts=(_MNLI,),
        ),
        Task("qnli", "QNLI", ("question", "sentence"), "label", _ENTAILMENT, ("accuracy",)),
        Task("rte", "RTE", _PAIR, "label", _ENTAILMENT, ("accuracy",)),
        Task("stsb", "STS-B", _PAIR, "score", (), ("pearson", "spearman")),
    )
}


def read_task(name: str, folder: Path) -> Labelled:
    """The examples of a task, from the folder of its files or the one that has GLUE's folders."""
    if name not in TASKS:
        raise InfolmError(
            f"there is no task '{name}'{nearest(name, TASKS)} (there are {', '.join(TASKS)})"
        )
    task = TASKS[name]
    if not folder.is_dir():
        raise InfolmError(f"there is no folder {folder}: give the one with {task.title}'s files")
    home = folder / task.title if (folder / task.title).is_dir() else folder
    train = _present(home, [layout.train for layout in task.layouts], "train", task)
    layout = next(layout for layout in task.layouts if layout.train == train.name)
    if layout.held_out:
        return Labelled(
            *_parted(train, _present(home, layout.held_out, "dev", task), task),
            _test(home, layout, task),
            _asked(home, layout, task),
        )
    dev = {
        part: [_present(home, [name], "dev", task) for name in names]
        for part, names in layout.dev.items()
    }
    return Labelled(
        _examples(train, task),
        {part: [e for path in paths for e in _examples(path, task)] for part, paths in dev.items()},
        _test(home, layout, task),
        _asked(home, layout, task),
    )


def _present(home: Path, names: Sequence[str], part: str, task: Task) -> Path:
    """The first of these files that is there."""
    for name in names:
        if (home / name).is_file():
            return home / name
    raise InfolmError(
        f"{home} has no {' or '.join(names)}, which the {part} part of {task.title} needs: put it "
        f"there, or give the folder that has it or has a folder {task.title}"
    )


def _parted(
    train: Path, listed: Path, task: Task
) -> tuple[list[Example], dict[str, list[Example]]]:
    """Train and dev from one file: dev are the pairs whose IDs are listed."""
    ids = {tuple(cells) for _, cells in _lines(listed)}
    kept: list[Example] = []
    held: list[Example] = []
    for where, row in _rows(train, (*task.texts, task.label, *_IDS), task):
        part = held if tuple(row[name] for name in _IDS) in ids else kept
        part.append(_example(row, where, task))
    if not held or not kept:
        raise InfolmError(
            f"{listed} lists {'all pairs' if held else 'no pair'} of {train}: get both files again"
        )
    return kept, {"dev": held}


def _test(home: Path, layout: Layout, task: Task) -> dict[str, list[Example]]:
    """The parts whose labels are there: GLUE keeps those of its test files to itself."""
    test = {}
    for part, names in layout.test.items():
        labelled = [home / name for name in names if _has_labels(home / name, task)]
        if labelled:
            test[part] = _examples(labelled[0], task)
    return test


def _asked(home: Path, layout: Layout, task: Task) -> dict[str, list[Example]]:
    """The test files as GLUE's server has them. A sentence may be empty: it is asked all the
    same."""
    asked = {}
    for part, names in layout.test.items():
        if there := [home / name for name in names if (home / name).is_file()]:
            rows = _rows(there[0], task.texts, task)
            asked[part] = [_read(row, where, math.nan, task) for where, row in rows]
    return {part: examples for part, examples in asked.items() if examples}


def _has_labels(path: Path, task: Task) -> bool:
    if not path.is_file():
        return False
    first = next(_lines(path), None)
    return first is not None and task.label in _columns(first[1], task)


def _examples(path: Path, task: Task) -> list[Example]:
    needed = (*task.texts, task.label)
    examples = [_example(row, where, task) for where, row in _rows(path, needed, task)]
    if not examples:
        raise InfolmError(f"{path} has no examples: get the file again")
    return examples


def _example(row: Mapping[str, str], where: str, task: Task) -> Example:
    for column in task.texts:
        if not row[column]:
            raise InfolmError(f"the {column} on {where} is empty: {task.remedy}")
    return _read(row, where, _label(row[task.label], where, task), task)


def _read(row: Mapping[str, str], where: str, label: float, task: Task) -> Example:
    text, *pair = (row[column] for column in task.texts)
    index = next((row[column] for column in _INDEX if column in row), "")
    return Example(text, pair[0] if pair else None, label, where, index)


def _label(cell: str, where: str, task: Task) -> float:
    if not cell:
        raise InfolmError(f"{where} has no {task.label}: {task.remedy}")
    if task.labels:
        if cell not in task.labels:
            *most, last = task.labels
            raise InfolmError(
                f"{where} has the {task.label} '{cell}': {task.title} has {', '.join(most)} and "
                f"{last}"
            )
        return float(task.labels.index(cell))
    try:
        score = float(cell)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InfolmError(
            f"{where} has the {task.label} '{cell}', which is not a finite number: {task.remedy}"
        )
    return score


def _rows(path: Path, needed: tuple[str, ...], task: Task) -> Iterator[tuple[str, dict[str, str]]]:
    """Where each example stands, and its cells by their columns, the needed ones among them."""
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        return
    columns = _columns(first[1], task)
    for name in needed:
        if name not in columns:
            raise InfolmError(
                f"line {first[0]:,} of {path} names no column '{name}': write a header there, with "
                f"{', '.join(needed)} and tabs between"
            )
    if columns != first[1]:
        lines = chain([first], lines)
    for number, cells in lines:
        where = f"line {number:,} of {path}"
        if len(cells) != len(columns):
            many = f"{len(cells)} column{'s'[: len(cells) != 1]}"
            raise InfolmError(f"{where} has {many} and not {len(columns)}: {task.remedy}")
        yield where, dict(zip(columns, cells, strict=True))


def _columns(first: list[str], task: Task) -> list[str]:
    """The columns of a file whose first line has these cells."""
    headed = not task.unnamed or any(name in first for name in task.texts)
    return first if headed else list(task.unnamed)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number and the cells of each line that is not empty.

    A line ends with a line feed and nothing else: a sentence may hold other characters that Python
    takes for the end of a line, such as U+2028.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if text:
                    yield number, [cell.strip() for cell in text.split("\t")]
    except OSError as error:
        raise InfolmError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InfolmError(
            f"line {number:,} of {path} is not UTF-8 text: convert the file, or get it again"
        ) from error
