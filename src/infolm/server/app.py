"""The application: OpenAI's paths and our own, on the models of runs."""

import asyncio
import base64
import json
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from infolm.errors import InfolmError
from infolm.server.engine import BusyError, Continuation, Token
from infolm.server.limits import Doors, Guard, Limits, error_body
from infolm.server.metrics import Metrics
from infolm.server.schemas import (
    Body,
    CompletionRequest,
    EmbeddingRequest,
    InterpolateRequest,
    NeighboursRequest,
    ReconstructRequest,
    SampleRequest,
    ScoreRequest,
)
from infolm.server.services import Prompt, RequestError, Service

Result = TypeVar("Result")
KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
BUSY = "the server is busy: as many requests wait as may"
PAGE = {
    "/": ("index.html", "text/html"),
    "/page/page.js": ("page.js", "text/javascript"),
    "/page/style.css": ("style.css", "text/css"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""The files of the page: there are no others to ask for."""


def create_app(
    services: Mapping[str, Service], limits: Limits | None = None, doors: Doors | None = None
) -> FastAPI:
    """An ASGI application that serves these models; it closes their engines when it ends."""
    limits, doors, metrics = limits or Limits(), doors or Doors(), Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        for service in services.values():
            await asyncio.to_thread(service.engine.close, limits.seconds)

    app = FastAPI(
        title="infolm", docs_url=None, redoc_url=None, lifespan=lifespan, redirect_slashes=False
    )
    _errors(app)
    _observe(services, metrics)
    _page(app)
    _plain(app, services, metrics)
    _completions(app, services, metrics, limits)
    _other(app, services, limits)
    if doors.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(doors.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
        )
    paths = [route.path for route in app.routes if hasattr(route, "path")]
    app.add_middleware(Guard, limits=limits, doors=doors, metrics=metrics, paths=paths)
    return app


# -- errors ----------------------------------------------------------------------------------


def _failed(status: int, message: str, code: str | None = None, param: str | None = None) -> Any:
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    headers = {"retry-after": "1"} if status == 429 else None
    return JSONResponse(error_body(message, kind, param, code), status, headers)


def _errors(app: FastAPI) -> None:
    """Whatever goes wrong is answered in OpenAI's schema, and never with a stack trace."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return _failed(400, f"{where}: {first['msg']}" if where else first["msg"], None, where)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return _failed(error.status_code, str(error.detail))

    @app.exception_handler(RequestError)
    async def wrong(request: Request, error: RequestError) -> Response:
        return _failed(error.status, str(error), error.code)

    @app.exception_handler(InfolmError)
    async def unable(request: Request, error: InfolmError) -> Response:
        return _failed(400, str(error))

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> Response:
        return _failed(429, BUSY, "overloaded")

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        return _failed(500, "this should not have happened: the server's log says more")


# -- what is the same for all ----------------------------------------------------------------


def _observe(services: Mapping[str, Service], metrics: Metrics) -> None:
    for name, service in services.items():
        engine = service.engine
        metrics.gauge("infolm_active", lambda e=engine: e.active, model=name)  # type: ignore[misc]
        metrics.gauge("infolm_waiting", lambda e=engine: e.waiting, model=name)  # type: ignore[misc]


def _plain(app: FastAPI, services: Mapping[str, Service], metrics: Metrics) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> Response:
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")

    def listed(name: str) -> dict[str, Any]:
        service = services[name]
        return {
            "id": name,
            "object": "model",
            "created": service.created,
            "owned_by": "infolm",
            "capability": service.run.kind,
            "answers": sorted(service.does),
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [listed(name) for name in services]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        return listed(_service(services, name).name)


def _page(app: FastAPI) -> None:
    for path, (name, kind) in PAGE.items():
        content = (files("infolm.server") / "page" / name).read_bytes()

        app.add_route(path, _constant(content, kind))


def _constant(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def given(request: Request) -> Response:
        return Response(content, media_type=kind)

    return given


def _service(services: Mapping[str, Service], name: str, what: str = "") -> Any:
    if name not in services:
        known = ", ".join(services)
        raise RequestError(f"there is no model '{name}': take {known}", 404, "model_not_found")
    if what:
        services[name].check(what)
    return services[name]


async def _computed(service: Service, limits: Limits, function: Callable[[], Result]) -> Result:
    """In the model's own thread, between two tokens; a refusal names the model, not its folder."""
    future = service.engine.call(function)
    try:
        async with asyncio.timeout(limits.seconds):
            return await asyncio.wrap_future(future)
    except TimeoutError:
        future.cancel()
        raise _late(limits) from None
    except InfolmError as error:
        message = str(error).replace(str(service.run.folder.path), f"'{service.name}'")
        raise RequestError(message) from error


def _late(limits: Limits) -> RequestError:
    return RequestError(f"not done within {limits.seconds:g} s: ask for less", 408, "timeout")


async def _while_there(request: Request, work: Awaitable[Result]) -> Result | None:
    """What `work` gives; None, and it is cancelled, if the client goes away."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        leaving.cancel()
        working.cancel()


# -- completions -----------------------------------------------------------------------------


def _completions(
    app: FastAPI, services: Mapping[str, Service], metrics: Metrics, limits: Limits
) -> None:
    @app.post("/v1/completions", response_model=None)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        service = _service(services, body.model, "completions")
        prompts = service.prompts(body)
        asked = service.continuations(body, prompts)
        writing = Writing(body, service, prompts, asked, metrics)
        service.engine.submit(asked)
        if body.stream:
            return StreamingResponse(writing.events(limits), media_type="text/event-stream")
        result = await _while_there(request, writing.whole(limits))
        return JSONResponse(result) if result else Response(status_code=400)


class Writing:
    """The continuations of one request on their way to the client."""

    def __init__(
        self,
        request: CompletionRequest,
        service: Any,
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
        loop = asyncio.get_running_loop()
        for each in asked:
            each.heard = lambda each=each: self._heard(each, loop)  # type: ignore[misc]

    def _heard(self, each: Continuation, loop: asyncio.AbstractEventLoop) -> None:
        """In the engine's thread."""
        if len(each.written) == 1 and each.limit:
            seconds = time.monotonic() - each.asked
            self._metrics.observe("infolm_first_token_seconds", seconds, model=self._service.name)
        if each.finish is None and not self._request.stream:
            return
        try:
            loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:  # the loop has ended, and nobody listens
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
                raise _late(limits)

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
                for number, each in enumerate(self._asked):
                    choice = self._part(number, each, sent[number])
                    if choice:
                        yield _event({**self._head, "choices": [choice]})
                self._check(limits)
                if all(done for *_, done in sent):
                    break
                await self._more()
            options = self._request.stream_options
            if options and options.include_usage:
                yield _event({**self._head, "choices": [], "usage": self._usage()})
            yield "data: [DONE]\n\n"
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


# -- scores, vectors, codes ------------------------------------------------------------------


def _other(app: FastAPI, services: Mapping[str, Service], limits: Limits) -> None:
    @app.post("/v1/score")
    async def score(body: ScoreRequest) -> dict[str, Any]:
        service = _service(services, body.model, "score")
        data = await _computed(service, limits, service.score(body))
        return {"object": "list", "model": body.model, "data": data}

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingRequest) -> dict[str, Any]:
        service = _service(services, body.model, "embeddings")
        texts = service.lines_of(body.input)
        vectors, tokens = await _computed(service, limits, lambda: service.embed(texts))

        def given(vector: Any) -> Any:
            if body.encoding_format == "base64":
                return base64.b64encode(vector.astype("<f4").tobytes()).decode()
            return np.asarray(vector, np.float64).tolist()

        data = [
            {"object": "embedding", "index": i, "embedding": given(vector)}
            for i, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "model": body.model, "data": data, "usage": usage}

    async def latent(body: Body, what: str, function: Callable[[Any], Any]) -> dict[str, Any]:
        service = _service(services, body.model, f"latent/{what}")
        data = await _computed(service, limits, lambda: function(service))
        return {"object": "list", "model": body.model, "data": data}

    @app.post("/v1/latent/interpolate")
    async def interpolate(body: InterpolateRequest) -> dict[str, Any]:
        return await latent(
            body, "interpolate", lambda s: s.interpolate(body.a, body.b, body.steps, body.unknown)
        )

    @app.post("/v1/latent/neighbours")
    async def neighbours(body: NeighboursRequest) -> dict[str, Any]:
        return await latent(
            body, "neighbours", lambda s: s.neighbours(body.sentence, body.num, body.unknown)
        )

    @app.post("/v1/latent/reconstruct")
    async def reconstruct(body: ReconstructRequest) -> dict[str, Any]:
        return await latent(
            body, "reconstruct", lambda s: s.reconstruct(body.sentences, body.seed, body.unknown)
        )

    @app.post("/v1/latent/sample")
    async def sample(body: SampleRequest) -> dict[str, Any]:
        return await latent(body, "sample", lambda s: s.sample(body))
