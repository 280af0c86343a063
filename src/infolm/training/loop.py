"""The training loop: a sum of terms, an optimiser, an averager, a state that can be resumed."""

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from lightning_fabric import Fabric
from pydantic import BeforeValidator, Field
from torch import nn, optim

from infolm.averaging.base import MEAN, RAW, Averager
from infolm.averaging.tail import worse_than_recent
from infolm.data.feed import Feed
from infolm.errors import InfolmError, Interrupted, RunError
from infolm.nn.draws import drawing
from infolm.objectives.base import Estimate, Learner, Objective, Stateful
from infolm.optimisation.schedule import Schedule
from infolm.section import Section, count, in_short
from infolm.training import checkpoint, processes
from infolm.training.parts import Parts
from infolm.training.run import Log, RunFolder
from infolm.training.strategy import Kind, Replicate, Strategy

Precision = Literal["32-true", "bf16-mixed"]
BLOWN_UP = 1.0
"""A validation loss this many nats above the best so far is divergence, as is a non-finite one."""
RECOVERY_RATE = 0.9
"""The factor of the learning rate after each divergence (Melis 2023, section 4.4)."""
RECOVERIES = 50
"""Maximum recoveries: after so many the rate is 1/200, and something else is wrong."""


TICK = time.get_clock_info("monotonic").resolution
"""Least seconds of a measured time: a step of a small model may take less."""
COUNT = "count"
SAVE, STOP = 1, 2
"""Requests of a process after a step: a checkpoint, or a checkpoint and the end."""


class TrainConfig(Section):
    """Length, device and validation interval of training."""

    epochs: int = Field(750, ge=1, description="passes over the training split")
    max_steps: int | None = Field(None, ge=1, description="stop after this many steps")
    validate_every: int | None = Field(
        None, ge=1, description="steps between validations; none: every epoch"
    )
    validation_streams: int = Field(
        20, ge=1, description="parallel streams of validation during training; 1: exact"
    )
    stop_patience: int | None = Field(
        None, ge=1, description="stop by the non-monotone criterion with this interval n"
    )
    checkpoint_seconds: float = Field(
        300, ge=0, description="maximum seconds between checkpoints; 0: after every step"
    )
    recover: bool = Field(
        False, description="after divergence resume from the best validation, at 0.9 of the rate"
    )
    samples: int = Field(
        0,
        ge=0,
        description="number of samples that a language model writes to the log at each validation",
    )
    exposure: tuple[Annotated[int, BeforeValidator(count), Field(ge=1)], ...] = Field(
        (),
        description="numbers of words read, such as [1M, 2M], after which the weights are kept for "
        "`infolm export --at`; words are separated by white space",
    )
    log_every: int = Field(20, ge=1, description="steps between records in metrics.jsonl")
    accumulate: int = Field(
        1, ge=1, description="parts of a batch, read one after another to save memory"
    )
    strategy: Kind = Field(
        "replicate",
        description="of several processes; with fully_shard each holds a share of every layer",
    )
    accelerator: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: cuda if available"
    )
    precision: Precision = Field("32-true", description="bf16-mixed needs hardware for it")

    def reached(self, step: int, epoch: int) -> bool:
        """Whether training has reached the end set here."""
        return epoch >= self.epochs or (self.max_steps is not None and step >= self.max_steps)

    def fault(self, recipe: Any) -> str | None:
        """Why the model cannot be trained with these settings, in a sentence."""
        if self.strategy != "fully_shard":
            return None
        if not recipe.model.shards:
            return (
                "train.strategy fully_shard divides the layers of Transformers and encoders, "
                f"and model.kind is {recipe.model.kind}: leave train.strategy at replicate"
            )
        if recipe.averaging.copies:
            return (
                "train.strategy fully_shard keeps no averages of weights: set averaging.kind=none, "
                "or leave train.strategy at replicate"
            )
        return None


@dataclass
class Term:
    """One term of the training loss: its own feed, objective and weight.

    carries: the objective's carried state, by the part of the batch.
    """

    name: str
    feed: Feed
    objective: Objective
    weight: float = 1.0
    carries: dict[int, Any] = field(default_factory=dict)


class Validation(NamedTuple):
    """The result of the current weights on the validation split.

    loss: nats per token, or per unit `per`; smaller is better. terms: its parts and other
    quantities, by name; if there are none, the loss is that of the text itself, and e^loss a
    perplexity.
    """

    loss: float
    terms: Mapping[str, float] = {}
    per: str = "token"

    def __str__(self) -> str:
        said = ", ".join(f"{name} {value:.4g}" for name, value in self.terms.items())
        said = said or f"perplexity {math.exp(min(self.loss, 700)):.2f}"
        return f"{self.loss:.4f} nats per {self.per}, {said}"


class Watcher(Protocol):
    """An observer of training, such as the progress bar."""

    def step(self, progress: float, nll: float, tokens: int) -> None:
        """After each step: the share of training done, nats per token, tokens of this step."""
        ...

    def validated(self, step: int, progress: float, loss: float) -> None:
        """After each validation, in nats per token. An exception from here ends the training."""
        ...

    def say(self, text: str) -> None: ...


class Nobody:
    """A watcher that does nothing, for all processes but the first."""

    def step(self, progress: float, nll: float, tokens: int) -> None:
        return

    def validated(self, step: int, progress: float, loss: float) -> None:
        return

    def say(self, text: str) -> None:
        return


class Taken(NamedTuple):
    """A step taken: its loss, and the first term's nats per token and tokens."""

    loss: float
    nll: float
    tokens: int


class Diverged(RunError):
    """The loss, or its gradient, is no longer a finite number."""


class Loop:
    """Trains `model` on the sum of `terms` and leaves the best weights in the run's folder.

    A step draws a batch from each term's feed, adds the weighted losses, and takes one step of the
    optimiser and of the optimiser of each term with its own parameters. `validate` measures the
    current weights; `judge`, if given, provides the averager's losses instead; `sampler` generates
    texts with the weights that a validation chose; `words` is the number of words in a pass over
    the main feed's text, for `config.exposure`. The complete state is in `state_dict`, so a run
    that is killed and resumed ends with the same bytes as an uninterrupted one.

    With `config.recover`, a loss that is no longer finite, or a validation loss that has blown up,
    does not end training: weights, optimiser and averager go back to the best validation (or to the
    start), the learning rate is lowered, and training continues with the next batch.
    """

    def __init__(
        self,
        fabric: Fabric,
        model: nn.Module,
        terms: Sequence[Term],
        optimiser: optim.Optimizer,
        schedule: Schedule,
        averager: Averager,
        validate: Callable[[], Validation],
        config: TrainConfig,
        clip: float | None,
        run: RunFolder,
        watcher: Watcher,
        judge: Callable[[], float] | None = None,
        l2_penalty: float = 0.0,
        sampler: Callable[[], list[str]] | None = None,
        words: int = 0,
        strategy: Strategy | None = None,
    ) -> None:
        self.fabric, self.model, self.optimiser = fabric, model, optimiser
        self.parts, self.strategy = Parts(config.accumulate), strategy or Replicate(model)
        self.terms, self.schedule, self.averager = terms, schedule, averager
        self.stateful = {
            term.name: term.objective for term in terms if isinstance(term.objective, Stateful)
        }
        self.learners = {
            name: each for name, each in self.stateful.items() if isinstance(each, Learner)
        }
        self.validate, self.config, self.clip = validate, config, clip or math.inf
        self.judge, self.l2_penalty, self.sampler = judge, l2_penalty, sampler
        self.run_folder, self.watcher, self.words = run, watcher, words
        self.base_rates = [group["lr"] for group in optimiser.param_groups]
        self.step = 0
        self.losses: list[float] = []  # of every validation
        self.window: dict[str, dict[str, float]] = {}  # each term's sums since the last record
        self.stopped = False
        self.recoveries = 0

    # -- the loop ---------------------------------------------------------------------------

    def run(self) -> float:
        """Train to the end; returns the best validation loss."""
        clock = last_saved = time.monotonic()
        if self.config.recover and not self.run_folder.best.exists():
            self._save_best()
        with self.run_folder.log(self.step) as log, _interruptible() as interrupted:
            while not self.finished():
                epoch, words = self.terms[0].feed.epoch, self.words_read()
                taken = self._take_step()
                self._keep_exposed(words)
                if taken is None:
                    self._recover(log, "the loss was no longer a finite number")
                    continue
                self.watcher.step(self.progress(), taken.nll, taken.tokens)
                if self.step % self.config.log_every == 0:
                    clock = self._record(log, clock)
                every = self.config.validate_every
                due = self.step % every == 0 if every else self.terms[0].feed.epoch > epoch
                due = due or self.finished()
                if due:
                    self._validate(log)
                pause = time.monotonic() - last_saved
                save = due or pause >= self.config.checkpoint_seconds
                wanted = processes.largest(STOP if interrupted else SAVE if save else 0)
                if wanted:
                    log.flush()
                    self.save()
                    last_saved = time.monotonic()
                if wanted == STOP and not self.finished():
                    raise Interrupted
        if (unused := self.averager.unused()) is not None:
            self.watcher.say(unused)
        if missed := [each for each in self.config.exposure if each > self.words_read()]:
            self.watcher.say(
                f"training ended after {self.words_read():,} words, so no weights were kept at "
                f"{', '.join(map(in_short, missed))}"
            )
        return min(self.losses)

    def finished(self) -> bool:
        return self.stopped or self.config.reached(self.step, self.terms[0].feed.epoch)

    def progress(self) -> float:
        """The share of training that is done."""
        feed = self.terms[0].feed
        share = (feed.epoch + feed.fraction()) / self.config.epochs
        if self.config.max_steps:
            share = max(share, self.step / self.config.max_steps)
        return min(share, 1.0)

    def words_read(self) -> int:
        """Words of the main feed's text read so far: its passes times the words of a pass. This
        depends only on the feed's state, which a resumed run has too."""
        feed = self.terms[0].feed
        return int((feed.epoch + feed.fraction()) * self.words)

    def _keep_exposed(self, before: int) -> None:
        """Keep the weights if this step reached one of `config.exposure`: the longest average, else
        the iterate."""
        for words in self.config.exposure:
            if before < words <= self.words_read():
                with self.averager.swapped_in(self.averager.candidates()[-1]):
                    self.run_folder.save_exposed(words, self.strategy.weights())
                self.watcher.say(f"step {self.step:,}: {in_short(words)} words read, weights kept")

    def _take_step(self) -> Taken | None:
        """One step of the optimiser on the sum of the terms.

        None if the loss or its gradient is not finite and `recover` is on: no step was taken.
        """
        self.model.train()
        progress = self.progress()  # before the feeds advance
        batches = [term.feed.next() for term in self.terms]
        estimates = self._gradients(batches)
        taken = self._together(estimates)
        if self.l2_penalty:
            self._penalise()
        norm = self.strategy.clip(self.fabric, self.optimiser, self.clip)
        if not (math.isfinite(taken.loss) and torch.isfinite(norm)):
            # Before the optimiser's step: the weights, and so the next checkpoint, stay finite.
            if self.config.recover:
                return None
            raise Diverged(
                f"the loss is no longer a finite number at step {self.step + 1} (loss "
                f"{taken.loss}, gradient norm {norm.item()}): lower optimiser.learning_rate "
                "or optimiser.clip, or set train.recover=true; the last checkpoint in "
                f"{self.run_folder.path} is intact"
            )
        for group, rate in zip(self.optimiser.param_groups, self.base_rates, strict=True):
            scale = self.schedule.at(self.step + 1, progress) * RECOVERY_RATE**self.recoveries
            group["lr"] = rate * scale * batches[0].rate_scale
        self.optimiser.step()
        self.optimiser.zero_grad()
        for learner in self.learners.values():
            learner.step()
        self.step += 1
        self.averager.update(self.step)
        for term, parts in zip(self.terms, estimates, strict=True):
            for estimate in parts:
                self._add_up(term.name, estimate)
        return taken

    def _gradients(self, batches: Sequence[Any]) -> list[list[Estimate]]:
        """Accumulate the gradient of the sum of the terms; returns each term's estimates of its
        parts."""
        estimates: list[list[Estimate]] = [[] for _ in self.terms]
        for number in self.parts:
            losses = []
            for term, batch, parts in zip(self.terms, batches, estimates, strict=True):
                own, random = self.parts.of(batch, number)
                with drawing(random), self.fabric.autocast():
                    own = tensors(own, self.fabric.device)
                    estimate = term.objective(self.model, own, term.carries.get(number))
                term.carries[number] = estimate.carry
                losses.append(term.weight * estimate.loss)
                parts.append(replace(estimate, loss=losses[-1].detach()))
            self.fabric.backward(torch.stack(losses).sum())
        return estimates

    def _together(self, estimates: Sequence[Sequence[Estimate]]) -> Taken:
        """Sum gradients, losses and the objectives' statistics over the processes."""
        learners = self.learners.values()
        self.strategy.sum_gradients(chain(*(e.parameters() for e in learners)))
        main = estimates[0]
        nll = sum(float(each.terms["nll"]) * each.count for each in main)
        loss = sum(float(each.loss) for each in chain(*estimates))
        sums = [[*map(sum, zip(*(e.sums for e in parts), strict=True))] for parts in estimates]
        numbers = [loss, nll, sum(each.count for each in main), *chain(*sums)]
        loss, nll, tokens, *rest = processes.summed(numbers)
        for term, own in zip(self.terms, sums, strict=True):
            told, rest = rest[: len(own)], rest[len(own) :]
            if stateful := self.stateful.get(term.name):
                stateful.stepped(told)
        return Taken(loss, nll / max(tokens, 1), int(tokens))

    @torch.no_grad()
    def _penalise(self) -> None:
        """Add the gradient of l2/2 sum w^2; the penalty itself is in no record."""
        weights = [
            weight
            for group in self.optimiser.param_groups
            for weight in group["params"]
            if weight.grad is not None
        ]
        torch._foreach_add_([w.grad for w in weights], weights, alpha=self.l2_penalty)

    def _validate(self, log: Log) -> None:
        found = {}
        judged = {}
        self.model.eval()
        for candidate in self.averager.candidates():
            with self.averager.swapped_in(candidate), self.strategy.gathered():
                found[candidate] = self.validate()
                if self.judge:
                    judged[candidate] = self.judge()
        losses = {candidate: validation.loss for candidate, validation in found.items()}
        answer = self.averager.answer(judged or losses)
        loss = losses[answer]
        best = not self.losses or loss < min(self.losses)
        if self.config.recover and self._blown_up(losses.get(RAW, loss)):
            self._recover(log, f"the validation loss was {losses.get(RAW, loss):.4g}")
            return
        with self.averager.swapped_in(answer):
            with self.strategy.gathered():
                held_out = {
                    f"{name}/{term}": value
                    for name, each in self.stateful.items()
                    for term, value in each.held_out(self.model).items()
                }
                samples = self.sampler() if self.sampler else []
            if best:
                self.run_folder.save_model(self.strategy.weights())
        if best:
            for name, learner in self.learners.items():
                self.run_folder.save_learner(name, learner.state_dict())
        lengths = {f"{name}_length": length for name, length in self.averager.lengths().items()}
        events = self.averager.validated(judged or losses, self.progress())
        events += self.schedule.validated(loss)
        for each in self.stateful.values():
            events += each.validated(events, self.progress(), found[answer].terms)
        patience = self.config.stop_patience
        if patience and worse_than_recent(loss, self.losses, patience):
            self.stopped = True
            events.append("stopped")
        self.losses.append(loss)
        if best and self.config.recover:
            self._save_best()
        epoch = self.terms[0].feed.epoch
        self.watcher.say(
            f"step {self.step:,}, epoch {epoch}: validation {found[answer]}"
            + ("" if answer == RAW else f" ({_mean(answer)} of the iterates)")
            + (", the best so far" if best else "")
            + "".join(f"; {event}" for event in events)
        )
        values = losses | lengths | dict(found[answer].terms) | held_out
        values |= {f"train_{candidate}": value for candidate, value in judged.items()}
        log.write("validation", self.step, epoch=epoch, loss=loss, answer=answer, **values)
        for event in events:
            log.write("event", self.step, name=event)
        for i, text in enumerate(samples):
            log.write_text(f"sample/{i + 1}", self.step, text)
            self.watcher.say(f"  {' / '.join(text.split(chr(10)))}")
        self.watcher.validated(self.step, self.progress(), loss)

    # -- divergence -------------------------------------------------------------------------

    def _blown_up(self, loss: float) -> bool:
        best = min(self.losses, default=math.inf)
        return not math.isfinite(loss) or loss > best + BLOWN_UP

    def _save_best(self) -> None:
        """Keep the state that `_recover` goes back to."""
        self.run_folder.save_best(self._weights_and_optimiser())

    def _recover(self, log: Log, why: str) -> None:
        """Go back to the best validation with a lower rate. The feeds continue with the next
        batch."""
        if self.recoveries == RECOVERIES:
            raise RunError(
                f"training has diverged {RECOVERIES + 1} times, last at step {self.step} ({why}): "
                f"lower optimiser.learning_rate; the last checkpoint in {self.run_folder.path} is "
                "intact"
            )
        self._load_weights_and_optimiser(
            self.run_folder.best, checkpoint.load(self.run_folder.best)
        )
        self.optimiser.zero_grad()
        for learner in self.learners.values():
            learner.discard()
        self.recoveries += 1
        for term in self.terms:
            term.carries.clear()
        self.watcher.say(
            f"step {self.step:,}: diverged ({why}); back to the best validation, the learning rate "
            f"is now {RECOVERY_RATE**self.recoveries:.3g} times the recipe's"
        )
        log.write("event", self.step, name="diverged")

    # -- records ----------------------------------------------------------------------------

    def _add_up(self, name: str, estimate: Estimate) -> None:
        sums = self.window.setdefault(name, {COUNT: 0.0})
        sums[COUNT] += estimate.count
        for term, value in estimate.terms.items():
            count = estimate.per.get(term, estimate.count)
            sums[term] = sums.get(term, 0.0) + float(value) * count
            # Each term has its own sums: one may start in the middle of a window, with a phase.
            sums[f"{term} {COUNT}"] = sums.get(f"{term} {COUNT}", 0.0) + count

    def _record(self, log: Log, since: float) -> float:
        """Write the means since the last record, written at time `since`; returns the present
        time."""
        now = time.monotonic()
        window = self._whole_window()
        values = {
            f"{name}/{term}": total / sums.get(f"{term} {COUNT}", sums[COUNT])
            for name, sums in window.items()
            for term, total in sums.items()
            if not term.endswith(COUNT)
        }
        tokens = window[self.terms[0].name][COUNT]
        values["tokens_per_second"] = tokens / max(now - since, TICK)
        self.window = {}
        done = {"epoch": self.terms[0].feed.epoch, "progress": round(self.progress(), 6)}
        log.write("step", self.step, **done, **values)
        return now

    def _whole_window(self) -> dict[str, dict[str, float]]:
        """The sums since the last record, of all processes."""
        whole, *others = processes.everyones(self.window)
        for name, sums in chain(*(window.items() for window in others)):
            for term, total in sums.items():
                whole[name][term] = whole[name].get(term, 0.0) + total
        return whole

    # -- checkpoints ------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of all processes, in every one of them."""
        shared, own = self.parts.state_dict()
        carries = {term.name: [*term.carries.values()] for term in self.terms}
        parts: dict[str, Any] = {}
        if self.parts.count > 1:
            every = processes.everyones({"random": own, "carries": carries})
            parts = {"accumulate": self.config.accumulate, "processes": every}
        return {
            "step": self.step,
            "losses": self.losses,
            "stopped": self.stopped,
            "window": self._whole_window(),
            "recoveries": self.recoveries,
            "schedule": self.schedule.state_dict(),
            **self._weights_and_optimiser(),
            "feeds": {term.name: term.feed.state_dict() for term in self.terms},
            "carries": {} if parts else {n: c[0] if c else None for n, c in carries.items()},
            "random": shared,
            **parts,
        }

    def _weights_and_optimiser(self) -> dict[str, Any]:
        return {
            "model": self.strategy.weights(),
            "optimiser": self.strategy.optimiser_state(self.optimiser),
            "averager": self.averager.state_dict(),
            "learners": {name: each.state_dict() for name, each in self.stateful.items()},
        }

    def _load_weights_and_optimiser(self, path: Path, state: dict[str, Any]) -> None:
        weights = checkpoint.part(path, state, "model")
        self.strategy.load_weights(path, weights)
        self.strategy.load_optimiser(self.optimiser, state["optimiser"])
        self.averager.load_state_dict(self.fabric.to_device(state["averager"]))
        for name, each in self.stateful.items():
            each.load_state_dict(state["learners"][name])

    def save(self) -> None:
        """Write a checkpoint of the present state."""
        self.run_folder.save_checkpoint(self.step, self.state_dict())

    def resume(self) -> bool:
        """Go back to the newest checkpoint of the run, if it has one."""
        paths = checkpoint.checkpoints(self.run_folder.checkpoints)
        if not paths:
            return False
        state = checkpoint.load(paths[-1])
        try:
            self._go_back(paths[-1], state)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise InfolmError(
                f"{paths[-1]} is intact, but not a state of this training ({error!r}): restore the "
                "right one, or delete it to resume from the one before"
            ) from error
        if processes.first():  # the process may have been killed before it removed them
            checkpoint.remove_old(self.run_folder.checkpoints)
        return True

    def _go_back(self, path: Path, state: dict[str, Any]) -> None:
        self._load_weights_and_optimiser(path, state)
        self.step, self.losses = state["step"], state["losses"]
        self.window = state["window"] if processes.first() else {}
        patience, (*before, newest) = self.config.stop_patience, self.losses or [math.nan]
        # Use the present patience: a stopped run may be given more.
        self.stopped = bool(
            state["stopped"] and patience and worse_than_recent(newest, before, patience)
        )
        self.recoveries = state.get("recoveries", 0)  # absent in older runs
        self.schedule.load_state_dict(state["schedule"])
        for term in self.terms:
            term.feed.load_state_dict(state["feeds"][term.name])
        self._take_up_parts(state)

    def _take_up_parts(self, state: dict[str, Any]) -> None:
        """Restore the state of the parts of a batch; say so if the number of parts has changed."""
        carries = {name: [carry] for name, carry in state["carries"].items()}
        every = state.get("processes", [{"random": {}, "carries": carries}])
        accumulate = state.get("accumulate", 1)
        own: dict[str, Any] = {"random": {}, "carries": {}}
        if (len(every), accumulate) == (self.parts.processes, self.config.accumulate):
            own = every[self.parts.rank]
        else:
            self.watcher.say(
                f"batches were in {len(every) * accumulate} parts and are now in "
                f"{self.parts.count}: training resumes with other rounding, and streams start "
                "from a "
                "state of zeros, so the bytes will differ"
            )
        self.parts.load_state_dict(state["random"], own["random"])
        for term in self.terms:
            kept = self.fabric.to_device(own["carries"].get(term.name, []))
            term.carries = dict(zip(self.parts.numbers, kept, strict=False))


def _mean(answer: str) -> str:
    """The name of an average, in words."""
    return answer if answer == MEAN else f"{answer} {MEAN}"


def tensors(batch: Any, device: torch.device) -> Any:
    """A feed's named tuple with its arrays as tensors on `device`."""
    return type(batch)(
        *(torch.from_numpy(x).to(device) if isinstance(x, np.ndarray) else x for x in batch)
    )


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Inside, the first SIGINT or SIGTERM is only recorded in the list, so that the step finishes.

    A second one acts at once.
    """
    noted: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield noted
    finally:
        restore()
