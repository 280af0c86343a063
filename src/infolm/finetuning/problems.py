"""The problems of fine-tuning: classes and scores of sequences, and spans."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from infolm.errors import InfolmError
from infolm.finetuning import metrics, networks, spans, submission
from infolm.finetuning.articles import ARTICLES, read_articles
from infolm.finetuning.inputs import Inputs, Ints, halves, read_examples, share_of
from infolm.finetuning.networks import Head, Pretrained
from infolm.finetuning.squad import SquadQuestion, Window, read_folder, windows
from infolm.finetuning.tasks import TASKS, Example, Labelled, Task, read_task
from infolm.section import nearest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SQUAD = "squad"
GLUE_LENGTH, SQUAD_LENGTH = 128, 512
"""Maximum tokens of a sequence (appendix B)."""
SQUAD_EPOCHS = 4
STRIDE = 128
"""BERT's, of windows of 384; shorter windows begin every third of their length."""

SAME = 0.01
"""Scores of STS-B that are nearer than this count as the same answer."""

Scores = dict[str, dict[str, float]]
"""Of each part (dev, or MNLI's matched and mismatched) each metric."""
ChooseOn = Literal["half", "dev"]
"""Whether models are chosen on half of dev and reported on the other half, or both on all of it."""
Windows = Literal["answer", "all"]
"""Which windows of SQuAD are learnt: those that hold the answer, or all."""


@dataclass(frozen=True)
class Options:
    """The settings of a problem, besides its files.

    length: most tokens of a sequence; None: the paper's, or as many as the encoder takes. share: of
    the training examples, see `share_of`. head: of GLUE's tasks. windows: of SQuAD's training.
    """

    length: int | None = None
    share: float = 1.0
    choose_on: ChooseOn = "half"
    head: Head = "pooler"
    windows: Windows = "answer"


@dataclass(frozen=True)
class Measured:
    """A network's results. choice: its metrics on the examples that models are chosen by. dev: on
    those that are reported. answers: of each part, how many different ones it gives in both."""

    choice: Scores
    dev: Scores
    answers: dict[str, int]


@dataclass(frozen=True)
class Choice:
    """The numbers of the examples of a part that models are chosen by, and of those reported."""

    choosing: Ints
    reported: Ints

    @classmethod
    def of(cls, groups: Ints, strata: npt.NDArray[Any], choose_on: ChooseOn) -> "Choice":
        """groups, strata: (n,) each, see `halves`."""
        if choose_on == "dev":
            everything = np.arange(len(groups))
            return cls(everything, everything)
        choosing, reported = halves(groups, strata)
        if not len(choosing):
            raise InfolmError(
                "dev has too few examples to choose on one half and to measure on the other: "
                "give more, or set --choose-on dev"
            )
        return cls(choosing, reported)

    @property
    def counts(self) -> dict[str, int]:
        return {"choosing": len(self.choosing), "reported": len(self.reported)}


class Problem(Protocol):
    """A problem to fine-tune on.

    metrics: names; a model is chosen by the first. epochs: the paper's. train: what is learnt from.
    counts: of each part the number of examples, and what was done to them. choice: of each part of
    dev, what is chosen by and what is reported. put: how it was put, for the results.
    """

    metrics: tuple[str, ...]
    epochs: int
    length: int
    choose_on: ChooseOn
    choice: dict[str, Choice]
    put: dict[str, str]

    @property
    def train(self) -> Inputs: ...
    @property
    def digest(self) -> str:
        """The SHA-256 of all that its numbers depend on, but for the network."""
        ...

    @property
    def counts(self) -> dict[str, dict[str, int]]: ...
    @property
    def cut(self) -> list[str]:
        """Where the examples stand of which a part is not read."""
        ...

    @property
    def majority(self) -> Scores | None:
        """The metrics of the training part's most frequent answer, on what is reported."""
        ...

    @property
    def best_constant(self) -> dict[str, tuple[str, dict[str, float]]] | None:
        """The same answer to all that is best on what is reported, and its metrics."""
        ...

    def network(self, encoder: Pretrained) -> "PreTrainedModel":
        """A network for it, whose new weights PyTorch's global generator draws."""
        ...

    def loss(self, network: "PreTrainedModel", numbers: Ints) -> Tensor:
        """The mean loss of these training sequences, (), in nats or squared."""
        ...

    def measure(self, network: "PreTrainedModel") -> Measured:
        """The metrics on dev."""
        ...

    def measure_test(self, network: "PreTrainedModel") -> Scores:
        """The metrics on what has public labels of test, often nothing."""
        ...

    def files(self, network: "PreTrainedModel") -> dict[str, str]:
        """Predictions for the official programs: of each file its name and what is in it."""
        ...


def read_problem(
    task: str, folder: Path, encoder: Pretrained, options: Options | None = None
) -> Problem:
    """All files of a task, read and checked."""
    options = options or Options()
    length, share = options.length, options.share
    names = [*TASKS, SQUAD, ARTICLES.name]
    if task not in names:
        raise InfolmError(
            f"there is no task '{task}'{nearest(task, names)} (there are "
            f"{', '.join(names[:-1])} and {names[-1]})"
        )
    if length is not None and length > encoder.length:
        raise InfolmError(
            f"--length {length:,} is more than the encoder reads at once, {encoder.length:,} "
            "tokens: lower it, or choose an encoder with a larger model.length"
        )
    if task == SQUAD:
        train, dev = read_folder(folder)
        train = [train[number] for number in share_of(len(train), share)]
        length = length or min(SQUAD_LENGTH, encoder.length)
        return Spans(train, dev, encoder, length, options.choose_on, options.windows)
    labelled = read_articles(folder) if task == ARTICLES.name else read_task(task, folder)
    learnt = [labelled.train[number] for number in share_of(len(labelled.train), share)]
    length = length or min(GLUE_LENGTH, encoder.length)
    return Classification(
        TASKS.get(task, ARTICLES),
        replace(labelled, train=learnt),
        encoder,
        length,
        options.choose_on,
        options.head,
    )


def _digest(*parts: object) -> str:
    """The SHA-256 of arrays, and of other things as they are printed."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()


def run(network: "PreTrainedModel", inputs: Inputs, numbers: Ints) -> Any:
    """What the network makes of the sequences with these numbers."""
    tokens, mask, segments = (
        torch.from_numpy(array).to(network.device) for array in inputs.padded(numbers)
    )
    return network(input_ids=tokens, attention_mask=mask, token_type_ids=segments)


@dataclass(frozen=True, eq=False)
class Part:
    """Examples as an encoder reads them. labels (S,): class numbers or scores. cut: where those
    stand that are longer than it reads."""

    inputs: Inputs
    labels: npt.NDArray[np.float64]
    cut: list[str]

    @property
    def counts(self) -> dict[str, int]:
        return {"examples": len(self.inputs), "cut": len(self.cut)}


class Classification:
    """A task of GLUE: cross entropy of the class, or, where scores are told, the squared error."""

    def __init__(
        self,
        task: Task,
        labelled: Labelled,
        encoder: Pretrained,
        length: int,
        choose_on: ChooseOn = "half",
        head: Head = "pooler",
    ) -> None:
        def part(examples: Sequence[Example]) -> Part:
            inputs, cut = read_examples(examples, encoder.tokenizer, length)
            return Part(inputs, np.array([example.label for example in examples]), cut)

        self.task, self.length, self.head = task, length, head
        self.metrics, self.epochs = task.metrics, task.epochs
        self.choose_on = choose_on
        self.put: dict[str, str] = {"head": head}
        self._train = part(labelled.train)
        self._dev = {name: part(found) for name, found in labelled.dev.items()}
        self._test = {name: part(found) for name, found in labelled.test.items()}
        self._asked, self._tokenizer = labelled.asked, encoder.tokenizer
        self.choice = {
            name: Choice.of(
                np.arange(len(part.labels)),
                part.labels if task.labels else np.zeros(len(part.labels)),
                choose_on,
            )
            for name, part in self._dev.items()
        }
        reported = {
            name: [found[number] for number in self.choice[name].reported]
            for name, found in labelled.dev.items()
        }
        self.majority: Scores | None = {
            name: metrics.majority(task, labelled.train, found) for name, found in reported.items()
        }
        self.best_constant = (
            {name: metrics.best_constant(task, found) for name, found in reported.items()}
            if task.labels
            else None  # a constant has no correlation
        )

    @property
    def train(self) -> Inputs:
        return self._train.inputs

    @property
    def _parts(self) -> dict[str, Part]:
        tests = {f"test {name}".replace("test test", "test"): p for name, p in self._test.items()}
        return {"train": self._train, **self._dev, **tests}

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        return {name: part.counts for name, part in self._parts.items()}

    @property
    def cut(self) -> list[str]:
        return [where for part in self._parts.values() for where in part.cut]

    @property
    def digest(self) -> str:
        parts = [
            each for part in self._parts.values() for each in (*part.inputs.arrays, part.labels)
        ]
        return _digest(self.task.metrics, self.length, self.choose_on, self.put, *parts)

    def network(self, encoder: Pretrained) -> "PreTrainedModel":
        return networks.classifier(encoder, self.task.labels, self.head)

    def _logits(self, network: "PreTrainedModel", inputs: Inputs, numbers: Ints) -> Tensor:
        """The scores of the classes, (B, C)."""
        logits: Tensor = run(network, inputs, numbers).logits
        return logits if self.head == "pooler" else logits[:, 0]

    @cached_property
    def _targets(self) -> Tensor:
        labels = torch.from_numpy(self._train.labels)
        return labels.long() if self.task.labels else labels.float()

    def loss(self, network: "PreTrainedModel", numbers: Ints) -> Tensor:
        logits = self._logits(network, self.train, numbers)
        targets = self._targets[torch.from_numpy(numbers)].to(logits.device)
        if self.task.labels:
            return functional.cross_entropy(logits, targets)
        return functional.mse_loss(logits[:, 0], targets)

    def predict(self, network: "PreTrainedModel", inputs: Inputs) -> npt.NDArray[np.float64]:
        """The likeliest class of each sequence, or its score, (S,)."""
        answers = np.empty(len(inputs))
        for numbers in inputs.sorted():
            logits = self._logits(network, inputs, numbers)
            found = logits.argmax(1) if self.task.labels else logits[:, 0]
            answers[numbers] = found.cpu().numpy()
        return answers

    def measure(self, network: "PreTrainedModel") -> Measured:
        found = {name: self.predict(network, part.inputs) for name, part in self._dev.items()}

        def scores(name: str, numbers: Ints) -> dict[str, float]:
            truth = self._dev[name].labels
            return metrics.scores(self.task, found[name][numbers], truth[numbers])

        return Measured(
            {name: scores(name, each.choosing) for name, each in self.choice.items()},
            {name: scores(name, each.reported) for name, each in self.choice.items()},
            {name: self._different(answers) for name, answers in found.items()},
        )

    def _different(self, answers: npt.NDArray[np.float64]) -> int:
        return len(np.unique(answers if self.task.labels else np.rint(answers / SAME)))

    def measure_test(self, network: "PreTrainedModel") -> Scores:
        return {
            name: metrics.scores(self.task, self.predict(network, part.inputs), part.labels)
            for name, part in self._test.items()
        }

    def files(self, network: "PreTrainedModel") -> dict[str, str]:
        made = {}
        for part, examples in self._asked.items():
            inputs, _ = read_examples(examples, self._tokenizer, self.length)
            answers = self.predict(network, inputs)
            name = submission.glue_name(self.task, part)
            made[name] = submission.glue_file(self.task, examples, answers)
        return made


class Spans:
    """SQuAD: the mean of two cross entropies, of the answer's first token and of its last one, over
    the tokens of a window; [CLS] where the answer is not wholly in it.

    All windows of dev are read. Questions on one paragraph are on one side of the choice.
    """

    metrics: tuple[str, ...] = ("f1", "exact_match")
    epochs = SQUAD_EPOCHS
    majority: Scores | None = None  # there are no classes
    best_constant: dict[str, tuple[str, dict[str, float]]] | None = None
    cut: list[str] = []  # noqa: RUF012  (windows lose nothing)

    def __init__(
        self,
        train: Sequence[SquadQuestion],
        dev: Sequence[SquadQuestion],
        encoder: Pretrained,
        length: int,
        choose_on: ChooseOn = "half",
        learn: Windows = "answer",
    ) -> None:
        def cut(questions: Sequence[SquadQuestion], answered: bool) -> list[Window]:
            tokenizer, stride = encoder.tokenizer, min(STRIDE, length // 3)
            return windows(
                questions, tokenizer.pieces, tokenizer.special, length, stride, answered=answered
            )

        pad = encoder.tokenizer.special.pad
        self.length, self._questions = length, dev
        self.put: dict[str, str] = {"windows": learn}
        learnt, self._windows = cut(train, learn == "answer"), cut(dev, answered=False)
        if not learnt:
            raise InfolmError(
                f"no window of {length:,} tokens holds the answer to its question: use longer "
                "windows with --length, or set --windows all"
            )
        self.choose_on = choose_on
        _, paragraphs = np.unique([question.context for question in dev], return_inverse=True)
        self.choice = {"dev": Choice.of(paragraphs, np.zeros(len(dev)), choose_on)}
        self.train, self._dev = _inputs(learnt, pad), _inputs(self._windows, pad)
        self._targets = torch.tensor([[window.start, window.end] for window in learnt])
        answered = len({window.question for window in learnt if window.end})
        self.counts = {
            "train": {
                "examples": len(train),
                "windows": len(learnt),
                "without the answer": sum(not window.end for window in learnt),
                "in no window": len(train) - answered,
            },
            "dev": {"examples": len(dev), "windows": len(self._windows)},
        }

    @property
    def digest(self) -> str:
        arrays = (*self.train.arrays, *self._dev.arrays, self._targets.numpy())
        return _digest(self.length, self.choose_on, self.put, self._questions, *arrays)

    def network(self, encoder: Pretrained) -> "PreTrainedModel":
        return networks.span_finder(encoder)

    def _scores(
        self, network: "PreTrainedModel", inputs: Inputs, numbers: Ints
    ) -> tuple[Tensor, Tensor]:
        """Of each token as the first and as the last of the answer, (B, L) each."""
        found = run(network, inputs, numbers)
        starts, ends = found.start_logits, found.end_logits
        lengths = torch.from_numpy(inputs.lengths[numbers, None])
        padding = (torch.arange(starts.shape[1]) >= lengths).to(network.device)
        return starts.masked_fill(padding, -torch.inf), ends.masked_fill(padding, -torch.inf)

    def loss(self, network: "PreTrainedModel", numbers: Ints) -> Tensor:
        starts, ends = self._scores(network, self.train, numbers)
        first, last = self._targets[torch.from_numpy(numbers)].to(starts.device).unbind(1)
        return (functional.cross_entropy(starts, first) + functional.cross_entropy(ends, last)) / 2

    def answers(self, network: "PreTrainedModel") -> dict[str, str]:
        """The best legal span of each dev question, by its id."""
        found: list[list[tuple[Window, tuple[Any, Any]]]] = [[] for _ in self._questions]
        scores: dict[int, tuple[Any, Any]] = {}
        for numbers in self._dev.sorted():
            starts, ends = (s.cpu().numpy() for s in self._scores(network, self._dev, numbers))
            for row, number in enumerate(numbers.tolist()):
                length = self._dev.lengths[number]
                scores[number] = starts[row, :length], ends[row, :length]
        for number, window in enumerate(self._windows):
            found[window.question].append((window, scores[number]))
        return {
            question.id: spans.answer(question.context, *zip(*each, strict=True))
            for question, each in zip(self._questions, found, strict=True)
        }

    def measure(self, network: "PreTrainedModel") -> Measured:
        answers, choice = self.answers(network), self.choice["dev"]

        def scores(numbers: Ints) -> Scores:
            measured = spans.evaluate(answers, [self._questions[number] for number in numbers])
            return {"dev": {name: measured[name] for name in self.metrics}}

        different = {"dev": len(set(answers.values()))}
        return Measured(scores(choice.choosing), scores(choice.reported), different)

    def measure_test(self, network: "PreTrainedModel") -> Scores:
        return {}

    def files(self, network: "PreTrainedModel") -> dict[str, str]:
        return {submission.SQUAD_FILE: submission.squad_file(self.answers(network))}


def _inputs(found: Sequence[Window], pad: int) -> Inputs:
    second = [int(window.segments.argmax()) for window in found]
    return Inputs.of([window.tokens for window in found], second, pad)
