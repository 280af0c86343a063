"""One fine-tuning: a network trained for some epochs, measured on dev after each.

AdamW with weight decay 0.01 on matrices, a rate that rises over the first tenth of the steps and
falls on a line to 0, gradients of norm 1 at most: as BERT is fine-tuned (Devlin et al. 2019).

It is a training like any other (`training.loop`), with a feed of labelled examples. So one that is
killed resumes from its checkpoint, and ends with the same bytes as an uninterrupted one.
"""

import json
import math
import shutil
from collections.abc import Callable, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy.typing as npt
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from infolm import files
from infolm.averaging.tail import NoAverage
from infolm.data.passes import Passes
from infolm.errors import InfolmError, RunError
from infolm.finetuning.inputs import Inputs, Ints
from infolm.finetuning.networks import Pretrained
from infolm.finetuning.problems import Problem, Scores
from infolm.objectives.base import Estimate, Stateful
from infolm.optimisation.optimisers import AdamWConfig
from infolm.optimisation.schedule import Schedule, ScheduleConfig
from infolm.training import checkpoint
from infolm.training.device import one_device
from infolm.training.loop import Diverged, Loop, Term, TrainConfig, Validation
from infolm.training.run import RunFolder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CLIP = 1.0
DECAY = 0.01
WARM_UP = 0.1
"""The share of the steps in which the rate rises."""
CHECKPOINT_SECONDS = 300.0
"""At most so long between checkpoints; one is written after each epoch, too."""
ENDED = "trial.json"
"""The record of a finished trial, beside its weights."""

Watch = Callable[[int, float], None]
"""Called with the number of steps done, and the loss of the last."""


@dataclass(frozen=True)
class Settings:
    """seed: of the new layer's weights, of dropout and of the order of the examples."""

    learning_rate: float
    batch: int
    epochs: int
    seed: int


@dataclass(frozen=True)
class Epoch:
    """loss: the mean over the training sequences, while they were learnt. The rest is `Measured`
    after it."""

    loss: float
    choice: Scores
    dev: Scores
    answers: dict[str, int]


_EPOCHS = TypeAdapter(Annotated[list[Epoch], Field(min_length=1)])


@dataclass(frozen=True)
class Trial:
    """best: the number of the epoch, from 0 on, that is best on the examples to choose by."""

    settings: Settings
    epochs: list[Epoch]
    best: int


def score(scores: Scores, metric: str) -> float:
    """What is to be as high as possible: the metric, the mean of MNLI's two parts."""
    return sum(part[metric] for part in scores.values()) / len(scores)


def steps_of(problem: Problem, settings: Settings) -> int:
    return settings.epochs * -(-len(problem.train) // settings.batch)


class Numbered(NamedTuple):
    """A batch: the numbers of its training sequences, (B,)."""

    numbers: Ints
    rate_scale: float = 1.0


class Labelled(Passes):
    """The feed: the training sequences, each once an epoch, in an order that the seed draws."""

    def __init__(self, inputs: Inputs, settings: Settings) -> None:
        self._inputs, self._settings = inputs, settings
        self._draw()

    def _draw(self) -> None:
        self._batches = self._inputs.drawn(self._settings.batch, self._settings.seed, self.epoch)

    def next(self) -> Numbered:
        batch = Numbered(self._batches[self._position])
        self._advance()
        return batch


class Supervised(Stateful):
    """The objective: the problem's loss. It adds up the losses of an epoch, and keeps what was
    measured after each."""

    def __init__(self, problem: Problem, network: "PreTrainedModel") -> None:
        self.problem, self.network = problem, network
        self.loss, self.total = 0.0, 0.0  # of the last step, and of the epoch
        self.epochs: list[Epoch] = []

    def __call__(self, model: Any, batch: Any, carry: Any) -> Estimate:
        numbers: npt.NDArray[Any] = batch.numbers.cpu().numpy()
        loss = self.problem.loss(self.network, numbers)
        self.loss = loss.item()
        if not math.isfinite(self.loss):
            raise Diverged
        self.total += self.loss * len(numbers)
        return Estimate(loss, {"nll": loss.detach()}, len(numbers))

    def measure(self) -> Validation:
        """After an epoch: its record is kept; the loss is minus the score that trials are chosen
        by."""
        with torch.inference_mode():
            measured = self.problem.measure(self.network)
        self.epochs.append(Epoch(self.total / len(self.problem.train), **vars(measured)))
        self.total = 0.0
        return Validation(-score(measured.choice, self.problem.metrics[0]), per="example")

    def state_dict(self) -> dict[str, Any]:
        epochs = [asdict(epoch) for epoch in self.epochs]
        return {"total": self.total, "epochs": epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]
        self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]


class _Watcher:
    def __init__(self, watch: Watch, steps: int) -> None:
        self._watch, self._steps = watch, steps

    def step(self, progress: float, nll: float, tokens: int) -> None:
        self._watch(round(progress * self._steps), nll)

    def validated(self, step: int, progress: float, loss: float) -> None:
        pass

    def say(self, text: str) -> None:
        pass


def fine_tune(
    problem: Problem, encoder: Pretrained, settings: Settings, watch: Watch, folder: Path
) -> Trial:
    """The trial in `folder`, begun or resumed; `best_weights` are then those after its best epoch,
    of equals the earlier.

    The rest is a function of the arguments: PyTorch's global generator is left as it was.
    """
    ended = folder / ENDED
    if not ended.exists():
        files.make_folder(folder)
        with torch.random.fork_rng(), RunFolder(folder).locked():
            torch.manual_seed(settings.seed)
            found = [asdict(epoch) for epoch in _train(problem, encoder, settings, watch, folder)]
        checkpoint.atomically(ended, lambda path: path.write_text(json.dumps(found)))
    forget(folder, but={ENDED, RunFolder(folder).model.name})
    try:
        epochs = _EPOCHS.validate_json(ended.read_bytes())
    except ValidationError:
        raise InfolmError(
            f"{ended} is damaged: move {folder} away, and this trial is trained again"
        ) from None
    values = [score(epoch.choice, problem.metrics[0]) for epoch in epochs]
    return Trial(settings, epochs, values.index(max(values)))


def best_weights(folder: Path) -> dict[str, Tensor]:
    """Of a trial that has ended."""
    return checkpoint.load(RunFolder(folder).model)


def forget(folder: Path, but: Set[str]) -> None:
    """Remove what a trial has left, but for these files."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in but:
            path.unlink()


def _train(
    problem: Problem, encoder: Pretrained, settings: Settings, watch: Watch, folder: Path
) -> list[Epoch]:
    fabric = one_device("auto")
    network = problem.network(encoder)
    network.to(fabric.device)
    objective = Supervised(problem, network)
    steps = steps_of(problem, settings)
    optimiser = AdamWConfig(learning_rate=settings.learning_rate, weight_decay=DECAY, clip=CLIP)
    loop = Loop(
        fabric,
        network,
        [Term("supervised", Labelled(problem.train, settings), objective)],
        optimiser.build(network.parameters()),
        Schedule(ScheduleConfig(kind="linear", warm_up=math.ceil(WARM_UP * steps))),
        NoAverage(network),
        objective.measure,
        # Progress counts in steps: an epoch is no more than one.
        TrainConfig(epochs=steps, max_steps=steps, checkpoint_seconds=CHECKPOINT_SECONDS),
        optimiser.clip,
        RunFolder(folder),
        _Watcher(watch, steps),
    )
    loop.resume()
    if not loop.finished():
        try:
            loop.run()
        except Diverged:
            shutil.rmtree(folder)
            raise _diverged(loop.step + 1, objective.loss, settings) from None
    return objective.epochs


def _diverged(step: int, loss: float, settings: Settings) -> RunError:
    what = "gradient" if math.isfinite(loss) else "loss"
    value = "not finite" if math.isfinite(loss) else loss
    return RunError(
        f"the {what} of step {step:,} is {value} (learning rate {settings.learning_rate:g}, batch "
        f"{settings.batch}, seed {settings.seed}): lower --learning-rate; nothing was "
        "written"
    )
