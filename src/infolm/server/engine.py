"""Continuous batching: continuations that are asked for together are written together.

One thread owns a model. Between two tokens, continuations join and leave the batch, and anything
else that is asked of the model (a score, a code) takes its turn. Each continuation has random
numbers of its own, so its text does not depend on what is written beside it, but for rounding.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from infolm.evaluation.scoring import View
from infolm.generation.sampling import SamplingSettings, draw
from infolm.models.language import LanguageModel, State
from infolm.server.text import Text

Result = TypeVar("Result")

READ_TOGETHER = 2048
"""Tokens of prompts that begin to be read before the next token is written."""
READ_ON = 64
"""Tokens of each of them that are read before it is: who is being served waits for no long prompt,
and neither does a short prompt that comes after one."""


class BusyError(Exception):
    """All slots are taken, and as many wait as may."""


@dataclass(frozen=True)
class Token:
    """A token with ln p, and the likeliest in its place, in nats; None: not asked for, or the first
    of a text, which nothing predicts."""

    id: int
    log_prob: float | None = None
    top: dict[int, float] | None = None


@dataclass(eq=False)
class Continuation:
    """One text to be written.

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

    def overdue(self) -> bool:
        """End it where nobody waits for it any more."""
        if self.cancelled:
            self.end("cancelled")
        elif time.monotonic() > self.deadline:
            self.end("timeout")
        return self.finish is not None


@dataclass(eq=False)
class Reading:
    """Prompts that are being read, the longest first, and their state behind `read` tokens."""

    asked: list[Continuation]
    state: State = None
    read: int = 0


class Engine:
    """A model and the thread that it computes in.

    slots: continuations written side by side; waiting: those that may wait for a slot, and calls.
    """

    def __init__(self, model: Any, slots: int = 64, waiting: int = 256) -> None:
        self._model, self.slots, self.most_waiting = model, slots, waiting
        self._waiting: deque[Continuation] = deque()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._reading: deque[Reading] = deque()
        self._active: list[Continuation] = []
        self._hidden: Tensor | None = None  # (B, H), which predict the next tokens
        self._state: State = None
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
        """Have something computed between two tokens."""
        with self._changed:
            if self._closing or self.waiting >= self.most_waiting:
                raise BusyError
            future: Future[Result] = Future()
            self._calls.append((future, function))
            self._changed.notify()
        return future

    def close(self, seconds: float = 30) -> None:
        """Finish what is under way, refuse what is new."""
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
                joining = self._joining()
                if joining:
                    joining.sort(key=lambda each: -len(each.prompt))
                    self._reading.appendleft(Reading(joining))
                # After what is new one of those groups has its turn that are not read to the end.
                turn = list(self._reading)[: 2 if joining else 1]
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
                self._active, self._hidden, self._state = [], None, None

    def _joining(self) -> list[Continuation]:
        """Those whose turn it is, as far as there are slots and their prompts are not too long."""
        joining: list[Continuation] = []
        tokens = 0
        while self._waiting and self.active + len(joining) < self.slots:
            each = self._waiting[0]
            if not each.overdue():
                tokens += len(each.prompt)
                if joining and tokens > READ_TOGETHER:
                    break
                joining.append(each)
            self._waiting.popleft()
        return joining

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
        """Those whose prompts are read to the end join the batch."""
        model: LanguageModel = self._model
        if group.state is None:
            group.state = model.initial_state(len(group.asked))
        kept = [row for row, each in enumerate(group.asked) if not each.overdue()]
        if len(kept) < len(group.asked):
            group.state = model.selected(group.state, torch.tensor(kept, device=model.device))
            group.asked = [group.asked[row] for row in kept]
            if not kept:
                return
        first, end = group.read, group.read + READ_ON
        parts = [torch.tensor(each.prompt[first:end], device=model.device) for each in group.asked]
        packed = pack_sequence(parts)
        output = model(packed, group.state)
        rows = PackedSequence(output.hidden, packed.batch_sizes)
        hidden, lengths = torch.nn.utils.rnn.pad_packed_sequence(rows)
        for column, each in enumerate(group.asked):
            if each.echo and each.alternatives is not None:
                targets = torch.tensor(each.prompt[first + 1 : end + 1], device=model.device)
                each.echoed += _echoed(model, hidden[: len(targets), column], targets, each)
        left = sum(len(each.prompt) > end for each in group.asked)
        columns = torch.arange(len(group.asked), device=model.device)
        whole, here = group.asked[left:], columns[left:]
        last = hidden[lengths[left:].to(model.device) - 1, here]
        if whole:
            self._join(whole, last, model.selected(output.state, here))
        group.asked, group.read = group.asked[:left], end
        if left:
            group.state = model.selected(output.state, columns[:left])

    def _join(self, joining: list[Continuation], last: Tensor, state: State) -> None:
        """Put those whose prompts are read beside those that are there; last: (B, H)."""
        for each in joining:
            if not each.limit:
                each.end("length")
        if self._hidden is None:
            self._active, self._hidden, self._state = joining, last, state
        else:
            self._active = [*self._active, *joining]
            self._hidden = torch.cat([self._hidden, last])
            self._state = self._model.joined([self._state, state])
        self._keep([each.finish is None for each in self._active])

    def _step(self) -> None:
        """Write a token of each continuation, and read those of all that are not at their end."""
        self._keep([not each.overdue() for each in self._active])
        if self._hidden is None:
            return
        log_probs = self._model.log_probs(self._hidden)
        words = self._drawn(log_probs)
        for each, token in zip(self._active, self._tokens(log_probs, words), strict=True):
            each.write(token)
        kept = [each.finish is None for each in self._active]
        words = words[torch.tensor(kept, device=words.device)]
        self._keep(kept)
        if self._active:
            output = self._model(words[None], self._state)
            self._hidden, self._state = output.hidden[-1], output.state

    def _drawn(self, log_probs: Tensor) -> Tensor:
        """A word of each row, (B,): rows with the same settings are filtered together."""
        chances = [each.uniforms[len(each.written)] for each in self._active]
        uniforms = torch.tensor(chances, dtype=torch.float64, device=log_probs.device)
        groups: dict[SamplingSettings, list[int]] = {}
        for row, each in enumerate(self._active):
            groups.setdefault(each.settings, []).append(row)
        if len(groups) == 1:
            return draw(self._active[0].settings(log_probs), uniforms)
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
            self._hidden, self._state = None, None
            return
        assert self._hidden is not None
        columns = torch.tensor(kept, device=self._hidden.device).nonzero()[:, 0]
        self._hidden = self._hidden[columns]
        self._state = self._model.selected(self._state, columns)


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
