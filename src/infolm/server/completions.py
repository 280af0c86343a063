"""The completions of one request on their way to the client: at once, or as they are written."""

import asyncio
import json
import sys
import time
import traceback
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from infolm.server.engine import Continuation, Token
from infolm.server.limits import Limits, error_body
from infolm.server.metrics import Metrics
from infolm.server.schemas import CompletionRequest
from infolm.server.service import RequestError, late
from infolm.server.services import LanguageService, Prompt

PACE = 0.05
"""Seconds between two events of a stream, at the least: what was written since comes in one. The
first token and the end do not wait. An event for each token takes longer than the token itself."""


class Writing:
    """The continuations of one request on their way to the client."""

    def __init__(
        self,
        request: CompletionRequest,
        service: LanguageService,
        prompts: list[Prompt],
        asked: list[Continuation],
        metrics: Metrics,
    ) -> None:
        self._request, self._service, self._metrics = request, service, metrics
        self._prompts, self._asked = prompts, asked
        self._head = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.name,
        }
        self._changed = asyncio.Event()
        self._next = 0.0  # when the client may hear of more, by `time.monotonic`
        loop = asyncio.get_running_loop()
        for each in asked:
            each.heard = lambda each=each: self._heard(each, loop)  # type: ignore[misc]

    def _heard(self, each: Continuation, loop: asyncio.AbstractEventLoop) -> None:
        """In the engine's thread."""
        now, first = time.monotonic(), len(each.written) == 1 and each.limit > 0
        if first:
            name = self._service.name
            self._metrics.observe("infolm_first_token_seconds", now - each.asked, model=name)
        if each.finish is None:
            if not self._request.stream or (now < self._next and not first):
                return
            self._next = now + PACE
        self._service.engine.bell.add(self._changed, loop)
        if loop.is_closed():
            each.cancelled = True

    def _prompt(self, number: int) -> Prompt:
        return self._prompts[number // (self._request.n or 1)]

    async def _more(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def _check(self, limits: Limits) -> None:
        for each in self._asked:
            if each.finish == "error":
                assert each.error is not None
                traceback.print_exception(each.error, file=sys.stderr)
                raise RequestError("the model failed on this request", 500)
            if each.finish == "timeout":
                raise late(limits)

    async def whole(self, limits: Limits) -> dict[str, Any]:
        """The answer at once."""
        try:
            while any(each.finish is None for each in self._asked):
                await self._more()
            self._check(limits)
        finally:
            self._leave()
        choices = [self._choice(i, each) for i, each in enumerate(self._asked)]
        return {**self._head, "choices": choices, "usage": self._usage()}

    async def events(self, limits: Limits) -> AsyncIterator[str]:
        """The answer as server-sent events."""
        sent = [[0, 0, False] for _ in self._asked]
        try:
            while True:
                news = ""  # of one write: each is a call of the system, and a wait for the engine
                for number, each in enumerate(self._asked):
                    choice = self._part(number, each, sent[number])
                    if choice:
                        news += _event({**self._head, "choices": [choice]})
                self._check(limits)
                if all(done for *_, done in sent):
                    break
                if news:
                    yield news
                await self._more()
            options = self._request.stream_options
            if options and options.include_usage:
                news += _event({**self._head, "choices": [], "usage": self._usage()})
            yield news + "data: [DONE]\n\n"
        except RequestError as error:
            yield _event(error_body(str(error), code=error.code))
        finally:
            self._leave()

    def _part(self, number: int, each: Continuation, sent: list[Any]) -> dict[str, Any] | None:
        """What is new since the last event: characters, tokens, and whether it is the end."""
        characters, tokens, done = sent
        finish, count = each.finish, len(each.written)
        if done or finish in ("error", "timeout", "cancelled"):
            sent[2] = True
            return None
        text = each.text.text
        settled = len(text) if finish else each.text.settled
        if finish is None and settled <= characters:
            return None
        sent[:] = [settled, count, finish is not None]
        begins = characters == tokens == 0
        echo = self._prompt(number).text if self._request.echo and begins else ""
        logprobs = None
        if self._request.logprobs is not None:
            logprobs = self._logprobs(number, each, tokens, count, bool(begins))
        return {
            "index": number,
            "text": echo + text[characters:settled],
            "logprobs": logprobs,
            "finish_reason": finish,
        }

    def _leave(self) -> None:
        for each in self._asked:
            each.cancelled = True
        name = self._service.name
        usage = self._usage()
        self._metrics.add("infolm_prompt_tokens_total", usage["prompt_tokens"], model=name)
        self._metrics.add("infolm_completion_tokens_total", usage["completion_tokens"], model=name)

    def _usage(self) -> dict[str, int]:
        read = sum(len(p.ids) - p.first for p in self._prompts)
        written = sum(len(each.written) for each in self._asked)
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }

    def _choice(self, number: int, each: Continuation) -> dict[str, Any]:
        logprobs = None
        if self._request.logprobs is not None:
            logprobs = self._logprobs(number, each, 0, len(each.written), True)
        echo = self._prompt(number).text if self._request.echo else ""
        return {
            "index": number,
            "text": echo + each.text.text,
            "logprobs": logprobs,
            "finish_reason": each.finish,
        }

    def _logprobs(
        self, number: int, each: Continuation, first: int, end: int, begins: bool
    ) -> dict[str, Any]:
        """Of the tokens [first, end), and of the prompt's where it is echoed."""
        prompt, tokenizer = self._prompt(number), self._service.run.tokenizer
        tokens, offsets = each.written[first:end], each.offsets[first:end]
        if self._request.echo:
            offsets = [len(prompt.text) + offset for offset in offsets]
            if begins:
                own = each.echoed if prompt.first else [Token(prompt.ids[0]), *each.echoed]
                tokens = [*own, *tokens]
                ids = [token.id for token in own]
                places = [len(tokenizer.decode(ids[:i])) for i in range(len(ids))]
                offsets = [*(min(place, len(prompt.text)) for place in places), *offsets]
        name = tokenizer.token
        return {
            "tokens": [name(token.id) for token in tokens],
            "token_logprobs": [token.log_prob for token in tokens],
            "top_logprobs": [
                None if token.top is None else {name(id): p for id, p in token.top.items()}
                for token in tokens
            ],
            "text_offset": offsets,
        }


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"
