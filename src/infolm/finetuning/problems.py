"""What is learnt and measured in fine-tuning: classes and scores of sequences, and spans."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from infolm.errors import InfolmError
from infolm.finetuning import metrics, networks, spans
from infolm.finetuning.inputs import Inputs, Ints, read_examples, share_of
from infolm.finetuning.networks import Pretrained
from infolm.finetuning.squad import SquadQuestion, Window, read_folder, windows
from infolm.finetuning.tasks import TASKS, Example, Task, read_task
from infolm.section import nearest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SQUAD = "squad"
GLUE_LENGTH, SQUAD_LENGTH = 128, 512
"""Most tokens of a sequence (appendix B)."""
SQUAD_EPOCHS = 4
STRIDE = 128
"""BERT's, of windows of 384; shorter windows begin every third of their length."""

Scores = dict[str, dict[str, float]]
"""Of each part (dev, or MNLI's matched and mismatched) each metric."""


class Problem(Protocol):
    """Something to fine-tune on.

    metrics: names; a model is chosen by the first. epochs: the paper's. train: what is learnt from.
    counts: of each part the number of examples, and what was done to them.
    """

    metrics: tuple[str, ...]
    epochs: int
    length: int

    @property
    def train(self) -> Inputs: ...
    @property
    def counts(self) -> dict[str, dict[str, int]]: ...
    @property
    def cut(self) -> list[str]:
        """Where the examples stand of which a part is not read."""
        ...

    @property
    def majority(self) -> Scores | None: ...
    def network(self, encoder: Pretrained) -> "PreTrainedModel":
        """A network for it, whose new weights PyTorch's global generator draws."""
        ...

    def loss(self, network: "PreTrainedModel", numbers: Ints) -> Tensor:
        """The mean loss of these training sequences, (), in nats or squared."""
        ...

    def measure(self, network: "PreTrainedModel") -> Scores:
        """The metrics on dev."""
        ...

    def measure_test(self, network: "PreTrainedModel") -> Scores:
        """The metrics on what has public labels of test, often nothing."""
        ...


def read_problem(
    task: str, folder: Path, encoder: Pretrained, length: int | None = None, share: float = 1.0
) -> Problem:
    """All files of a task, read and checked.

    length: most tokens of a sequence; None: the paper's, or as many as the encoder takes. share: of
    the training examples, see `share_of`.
    """
    if task not in (*TASKS, SQUAD):
        raise InfolmError(
            f"there is no task '{task}'{nearest(task, [*TASKS, SQUAD])} (there are "
            f"{', '.join(TASKS)} and {SQUAD})"
        )
    if length is not None and length > encoder.length:
        raise InfolmError(
            f"--length {length:,} is more than the encoder reads at once, {encoder.length:,} "
            "tokens: take fewer, or an encoder with a larger model.length"
        )
    if task == SQUAD:
        train, dev = read_folder(folder)
        train = [train[number] for number in share_of(len(train), share)]
        return Spans(train, dev, encoder, length or min(SQUAD_LENGTH, encoder.length))
    labelled = read_task(task, folder)
    learnt = [labelled.train[number] for number in share_of(len(labelled.train), share)]
    length = length or min(GLUE_LENGTH, encoder.length)
    return Classification(TASKS[task], learnt, labelled.dev, labelled.test, encoder, length)


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
        train: Sequence[Example],
        dev: Mapping[str, Sequence[Example]],
        test: Mapping[str, Sequence[Example]],
        encoder: Pretrained,
        length: int,
    ) -> None:
        def part(examples: Sequence[Example]) -> Part:
            inputs, cut = read_examples(examples, encoder.tokenizer, length)
            return Part(inputs, np.array([example.label for example in examples]), cut)

        self.task, self.length = task, length
        self.metrics, self.epochs = task.metrics, task.epochs
        self._train, self._dev = part(train), {name: part(found) for name, found in dev.items()}
        self._test = {name: part(found) for name, found in test.items()}
        self.majority: Scores | None = {
            name: metrics.majority(task, train, found) for name, found in dev.items()
        }

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

    def network(self, encoder: Pretrained) -> "PreTrainedModel":
        return networks.classifier(encoder, self.task.labels)

    @cached_property
    def _targets(self) -> Tensor:
        labels = torch.from_numpy(self._train.labels)
        return labels.long() if self.task.labels else labels.float()

    def loss(self, network: "PreTrainedModel", numbers: Ints) -> Tensor:
        logits = run(network, self.train, numbers).logits
        targets = self._targets[torch.from_numpy(numbers)].to(logits.device)
        if self.task.labels:
            return functional.cross_entropy(logits, targets)
        return functional.mse_loss(logits[:, 0], targets)

    def predict(self, network: "PreTrainedModel", inputs: Inputs) -> npt.NDArray[np.float64]:
        """The likeliest class of each sequence, or its score, (S,)."""
        answers = np.empty(len(inputs))
        for numbers in inputs.sorted():
            logits = run(network, inputs, numbers).logits
            found = logits.argmax(1) if self.task.labels else logits[:, 0]
            answers[numbers] = found.cpu().numpy()
        return answers

    def measure(self, network: "PreTrainedModel") -> Scores:
        return self._measure(network, self._dev)

    def measure_test(self, network: "PreTrainedModel") -> Scores:
        return self._measure(network, self._test)

    def _measure(self, network: "PreTrainedModel", parts: Mapping[str, Part]) -> Scores:
        return {
            name: metrics.scores(self.task, self.predict(network, part.inputs), part.labels)
            for name, part in parts.items()
        }


class Spans:
    """SQuAD: the mean of two cross entropies, of the answer's first token and of its last one, over
    the tokens of a window; [CLS] where the answer is not wholly in it."""

    metrics: tuple[str, ...] = ("f1", "exact_match")
    epochs = SQUAD_EPOCHS
    majority: Scores | None = None  # there are no classes
    cut: list[str] = []  # noqa: RUF012  (windows lose nothing)

    def __init__(
        self,
        train: Sequence[SquadQuestion],
        dev: Sequence[SquadQuestion],
        encoder: Pretrained,
        length: int,
    ) -> None:
        def cut(questions: Sequence[SquadQuestion]) -> list[Window]:
            tokenizer = encoder.tokenizer
            stride = min(STRIDE, length // 3)
            return windows(questions, tokenizer.pieces, tokenizer.special, length, stride)

        pad = encoder.tokenizer.special.pad
        self.length, self._questions = length, dev
        learnt, self._windows = cut(train), cut(dev)
        self.train, self._dev = _inputs(learnt, pad), _inputs(self._windows, pad)
        self._targets = torch.tensor([[window.start, window.end] for window in learnt])
        answered = len({window.question for window in learnt if window.end})
        self.counts = {
            "train": {
                "examples": len(train),
                "windows": len(learnt),
                "in no window": len(train) - answered,
            },
            "dev": {"examples": len(dev), "windows": len(self._windows)},
        }

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

    def measure(self, network: "PreTrainedModel") -> Scores:
        measured = spans.evaluate(self.answers(network), self._questions)
        return {"dev": {name: measured[name] for name in self.metrics}}

    def measure_test(self, network: "PreTrainedModel") -> Scores:
        return {}


def _inputs(found: Sequence[Window], pad: int) -> Inputs:
    second = [int(window.segments.argmax()) for window in found]
    return Inputs.of([window.tokens for window in found], second, pad)
