"""Continuous batching: concurrent continuations are generated together.

One thread owns a model. Between two tokens, continuations join and leave the batch, and anything
else that is asked of the model (a score, a code) takes its turn. Each continuation has its own
random numbers, so its text does not depend on the others in the batch, up to rounding.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

from infolm.evaluation.scoring import View
from infolm.generation.sampling import SamplingSettings, draw
from infolm.models.language import LanguageModel, State
from infolm.server.bell import Bell
from infolm.server.text import Text

Result = TypeVar("Result")

READ_TOGETHER = 2048
"""Tokens of prompts that begin to be read before the next token is written."""
READ_ON = 64
"""Tokens of each of them that are read before it is: who is being served waits for no long prompt,
and neither does a short prompt that comes after one."""


class BusyError(Exception):
    """All slots are taken, and the queue is full."""


class Token(NamedTuple):
    """A token with ln p, and the likeliest in its place, in nats; None: not asked for, or the first
    of a text, which nothing predicts."""

    id: int
    log_prob: float | None = None
    top: dict[int, float] | None = None


@dataclass(eq=False)
class Continuation:
    """One text to generate.

    prompt: begins with `<eos>`. uniforms: random numbers, one a token, `limit` of them.
    alternatives: how many likely tokens to give for each; None: no probabilities at all. echo:
    those of the prompt too. deadline: by `time.monotonic`. heard: called in the engine's thread
    after each token and at the end.
    """

    prompt: Sequence[int]
    settings: SamplingSettings
    uniforms: Sequence[float]
    text: Text
    deadline: float
    alternatives: int | None = None
    echo: bool = False
    heard: Callable[[], None] = lambda: None
    asked: float = field(default_factory=time.monotonic)

    echoed: list[Token] = field(default_factory=list)
    written: list[Token] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    """Characters of the text before each written token."""
    finish: str | None = None
    """"length", "stop", "timeout" or "cancelled"; "error" with what went wrong."""
    error: Exception | None = None
    cancelled: bool = False

    @property
    def limit(self) -> int:
        return len(self.uniforms)

    @property
    def last(self) -> int:
        """The token that predicts the next one."""
        return self.written[-1].id if self.written else self.prompt[-1]

    def write(self, token: Token) -> None:
        """Take a token; it may be the last."""
        self.offsets.append(len(self.text.text))
        self.written.append(token)
        self.text.add(token.id)
        if self.text.stopped:
            self.end("stop")
        elif len(self.written) == self.limit:
            self.end("length")
        else:
            self.heard()

    def end(self, finish: str, error: Exception | None = None) -> None:
        if self.finish is None:
            self.text.end()
            if self.text.stopped:
                finish = "stop"
            self.finish, self.error = finish, error
            self.heard()

    def overdue(self, now: float) -> bool:
        """End it where nobody waits for it any more; now: by `time.monotonic`."""
        if self.cancelled:
            self.end("cancelled")
        elif now > self.deadline:
            self.end("timeout")
        return self.finish is not None


@dataclass(eq=False)
class Reading:
    """Prompts that are being read up to their last token, the longest first, and their state behind
    `read` tokens."""

    asked: list[Continuation]
    state: State = None
    read: int = 0


class Engine:
    """A model and the thread that it computes in.

    A step reads one token of each continuation in the batch and writes the next: the last of a
    prompt first, then those that were written. What comes before the last token of a prompt is read
    before the continuation joins the batch, so one with an empty prompt joins at once.

    slots: continuations written side by side; waiting: those that may wait for a slot, and calls.
    """

    def __init__(self, model: Any, slots: int = 64, waiting: int = 256) -> None:
        self._model, self.slots, self.most_waiting = model, slots, waiting
        self._device = model.device
        self._waiting: deque[Continuation] = deque()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._reading: deque[Reading] = deque()
        self._active: list[Continuation] = []
        self._state: State = None  # before each one's last token
        self.bell = Bell()  # for `Continuation.heard`: it rings after each step
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="infolm-engine", daemon=True)
        self._thread.start()

    # -- for other threads ------------------------------------------------------------------

    @property
    def active(self) -> int:
        return len(self._active) + sum(len(group.asked) for group in list(self._reading))

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._calls)

    def submit(self, continuations: Sequence[Continuation]) -> None:
        """Queue continuations, all or none."""
        with self._changed:
            free = self.slots + self.most_waiting - self.active - self.waiting
            if self._closing or len(continuations) > free:
                raise BusyError
            self._waiting.extend(continuations)
            self._changed.notify()

    def call(self, function: Callable[[], Result]) -> "Future[Result]":
        """Run a function between two tokens."""
        with self._changed:
            if self._closing or self.waiting >= self.most_waiting:
                raise BusyError
            future: Future[Result] = Future()
            self._calls.append((future, function))
            self._changed.notify()
        return future

    def close(self, seconds: float = 30) -> None:
        """Finish the present work, refuse new work."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)

    # -- the thread -------------------------------------------------------------------------

    @torch.inference_mode()
    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._calls or self._reading or self._active):
                    if self._closing:
                        return
                    self._changed.wait()
                call = self._calls.popleft() if self._calls else None
                new = self._joining()
                self._reading.extendleft(new)
                # After what is new one of those groups has its turn that are not read to the end.
                turn = list(self._reading)[: len(new) + 1]
            if call:
                self._answer(*call)
            for group in turn:
                self._read_on(group)
            try:
                if self._active:
                    self._step()
            except Exception as error:  # the thread must outlive a request that goes wrong
                for each in self._active:
                    each.end("error", error)
                self._active, self._state = [], None
            self.bell.ring()

    def _joining(self) -> list[Reading]:
        """Those whose turn it is, as far as there are slots and their prompts are not too long;
        those apart of whose prompts there is nothing to read."""
        joining: list[Continuation] = []
        tokens, now = 0, time.monotonic()
        while self._waiting and self.active + len(joining) < self.slots:
            each = self._waiting[0]
            if not each.overdue(now):
                tokens += len(each.prompt)
                if joining and tokens > READ_TOGETHER:
                    break
                joining.append(each)
            self._waiting.popleft()
        joining.sort(key=lambda each: -len(each.prompt))
        longer = sum(len(each.prompt) > 1 for each in joining)
        return [Reading(part) for part in (joining[:longer], joining[longer:]) if part]

    @staticmethod
    def _answer(future: "Future[Any]", function: Callable[[], Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            with torch.inference_mode(False):  # adapting to a text needs gradients
                future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    def _read_on(self, group: Reading) -> None:
        """Read some more of prompts; what is wrong with them ends them alone."""
        try:
            self._read(group)
        except Exception as error:  # the thread must outlive a request that goes wrong
            for each in group.asked:
                each.end("error", error)
            group.asked = []
        if group.asked:
            self._reading.append(group)  # first, so that it is counted all the time
        self._reading.remove(group)

    def _read(self, group: Reading) -> None:
        """Those whose prompts are read up to the last token join the batch."""
        model: LanguageModel = self._model
        if group.state is None:
            group.state = model.initial_state(len(group.asked))
        now = time.monotonic()
        kept = [row for row, each in enumerate(group.asked) if not each.overdue(now)]
        if len(kept) < len(group.asked):
            group.state = model.selected(group.state, torch.tensor(kept, device=self._device))
            group.asked = [group.asked[row] for row in kept]
            if not kept:
                return
        end = group.read + READ_ON
        if len(group.asked[-1].prompt) > 1:
            self._read_part(group, end)
        left = sum(len(each.prompt) - 1 > end for each in group.asked)
        columns = torch.arange(len(group.asked), device=self._device)
        if left < len(group.asked):
            self._join(group.asked[left:], model.selected(group.state, columns[left:]))
        group.asked, group.read = group.asked[:left], end
        if left:
            group.state = model.selected(group.state, columns[:left])

    def _read_part(self, group: Reading, end: int) -> None:
        """Read tokens [group.read, end) of each prompt but its last, which the next step reads."""
        model, first = self._model, group.read
        rows = [each.prompt[first : min(end, len(each.prompt) - 1)] for each in group.asked]
        packed = pack_sequence([torch.tensor(row, device=self._device) for row in rows])
        output = model(packed, group.state)
        group.state = output.state
        if not any(each.echo and each.alternatives is not None for each in group.asked):
            return
        hidden, _ = pad_packed_sequence(PackedSequence(output.hidden, packed.batch_sizes))
        for column, (each, row) in enumerate(zip(group.asked, rows, strict=True)):
            if each.echo and each.alternatives is not None:
                targets = each.prompt[first + 1 : first + 1 + len(row)]
                numbers = torch.tensor(targets, device=self._device)
                each.echoed += _echoed(model, hidden[: len(row), column], numbers, each)

    def _join(self, joining: list[Continuation], state: State) -> None:
        """Put those whose prompts are read beside those that are there."""
        for each in joining:
            if not each.limit:
                each.end("length")
        self._state = self._model.joined([self._state, state]) if self._active else state
        self._active = [*self._active, *joining]
        self._keep([each.finish is None for each in self._active])

    def _step(self) -> None:
        """Read the last token of each continuation, and write its next."""
        now = time.monotonic()
        self._keep([not each.overdue(now) for each in self._active])
        if not self._active:
            return
        last = torch.tensor([[each.last for each in self._active]], device=self._device)
        output = self._model(last, self._state)
        self._state = output.state
        log_probs = self._model.log_probs(output.hidden[-1])
        tokens = self._tokens(log_probs, self._drawn(log_probs))
        for each, token in zip(self._active, tokens, strict=True):
            each.write(token)
        self._keep([each.finish is None for each in self._active])

    def _drawn(self, log_probs: Tensor) -> Tensor:
        """A word of each row, (B,): rows with the same settings are filtered together."""
        chances = [each.uniforms[len(each.written)] for each in self._active]
        uniforms = torch.tensor(chances, dtype=torch.float64, device=log_probs.device)
        first = self._active[0].settings
        if all(each.settings == first for each in self._active):
            return draw(first(log_probs), uniforms)
        groups: dict[SamplingSettings, list[int]] = {}
        for row, each in enumerate(self._active):
            groups.setdefault(each.settings, []).append(row)
        words = torch.empty(len(log_probs), dtype=torch.long, device=log_probs.device)
        for settings, rows in groups.items():
            words[rows] = draw(settings(log_probs[rows]), uniforms[rows])
        return words

    def _tokens(self, log_probs: Tensor, words: Tensor) -> list[Token]:
        """With the probabilities that were asked for: of the model as it is, before any filter."""
        ids: list[int] = words.tolist()
        wanted = [each.alternatives for each in self._active]
        if all(num is None for num in wanted):
            return [Token(id) for id in ids]
        own = log_probs.gather(1, words[:, None])[:, 0].tolist()
        most = min(max(num or 0 for num in wanted), log_probs.shape[1])
        top = log_probs.topk(most, 1)
        numbers, values = top.indices.tolist(), top.values.tolist()
        return [
            Token(id)
            if num is None
            else Token(id, own[row], dict(zip(numbers[row][:num], values[row], strict=False)))
            for row, (id, num) in enumerate(zip(ids, wanted, strict=True))
        ]

    def _keep(self, kept: list[bool]) -> None:
        """Let the others leave the batch."""
        if all(kept):
            return
        self._active = [each for each, stays in zip(self._active, kept, strict=True) if stays]
        if not self._active:
            self._state = None
            return
        columns = [row for row, stays in enumerate(kept) if stays]
        numbers = torch.tensor(columns, device=self._device)
        self._state = self._model.selected(self._state, numbers)


def _echoed(
    model: LanguageModel, hidden: Tensor, targets: Tensor, asked: Continuation
) -> list[Token]:
    """Tokens (P,) of a prompt with ln p; hidden (P, H) predicts them."""
    if not len(targets):
        return []
    most = min(asked.alternatives or 0, model.vocabulary)
    scores = View(top=most).of_model(model, hidden, targets, 1.0)
    assert scores.top is not None
    assert scores.top_log_probs is not None
    rows = zip(
        targets.tolist(),
        scores.log_probs.tolist(),
        scores.top.tolist(),
        scores.top_log_probs.tolist(),
        strict=True,
    )
    return [
        Token(id, log_p, dict(zip(ids, values, strict=True))) for id, log_p, ids, values in rows
    ]
