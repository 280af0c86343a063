"""The application: OpenAI's paths and our own, on the models of runs."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, TypeVar

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from infolm.errors import InfolmError
from infolm.server.completions import Writing
from infolm.server.engine import BusyError
from infolm.server.limits import Doors, Guard, Limits, error_body
from infolm.server.metrics import Metrics
from infolm.server.runs import Runs
from infolm.server.schemas import (
    Body,
    CompletionRequest,
    DiagnosisRequest,
    EmbeddingRequest,
    InterpolateRequest,
    MapRequest,
    NeighboursRequest,
    ReconstructRequest,
    SampleRequest,
    ScoreRequest,
    WalkRequest,
    several,
)
from infolm.server.service import RequestError, Service, late

Result = TypeVar("Result")
KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
BUSY = "the server is busy and its queue is full: try again later"
SCRIPTS = ("page", "asking", "plot", "writing", "surprisal", "codes", "runs")
PAGE = {
    "/": ("index.html", "text/html"),
    **{f"/page/{name}.js": (f"{name}.js", "text/javascript") for name in SCRIPTS},
    "/page/style.css": ("style.css", "text/css"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""The files of the page; no others are served."""


def create_app(
    services: Mapping[str, Service],
    limits: Limits | None = None,
    doors: Doors | None = None,
    runs: Runs | None = None,
) -> FastAPI:
    """An ASGI application that serves these models and the state of `runs`; it closes the models'
    engines when it ends."""
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
    _latent(app, services, limits)
    _runs(app, services, runs)
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
    """Errors are answered in OpenAI's schema, never with a stack trace."""

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
        return _failed(500, "this should not have happened: see the server's log")


# -- shared routes ---------------------------------------------------------------------------


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
        known = f"choose {', '.join(services)}" if services else "no model is served"
        raise RequestError(f"there is no model '{name}': {known}", 404, "model_not_found")
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
        raise late(limits) from None
    except InfolmError as error:
        message = str(error).replace(str(service.run.folder.path), f"'{service.name}'")
        raise RequestError(message) from error


async def _while_there(receive: Receive, work: Awaitable[Result]) -> Result | None:
    """The result of `work`; None, and it is cancelled, if the client disconnects."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        leaving.cancel()
        working.cancel()


# -- completions -----------------------------------------------------------------------------


class EventStream(StreamingResponse):
    """Server-sent events. Whether the client is still there is watched by a task of asyncio's own:
    a group of tasks of anyio, as Starlette has it, takes twice as long."""

    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _while_there(receive, self.stream_response(send))


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
            return EventStream(writing.events(limits))
        result = await _while_there(request.receive, writing.whole(limits))
        return JSONResponse(result) if result else Response(status_code=400)


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
        texts = service.within_limits(several(body.input))
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


def _latent(app: FastAPI, services: Mapping[str, Service], limits: Limits) -> None:
    """The methods of a latent-variable service, under the same names."""

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

    @app.post("/v1/latent/map")
    async def map_of_codes(body: MapRequest) -> dict[str, Any]:
        return await latent(body, "map", lambda s: s.map(body.num))

    @app.post("/v1/latent/walk")
    async def walk(body: WalkRequest) -> dict[str, Any]:
        return await latent(body, "walk", lambda s: s.walk(body))

    @app.post("/v1/latent/diagnosis")
    async def diagnosis(body: DiagnosisRequest) -> dict[str, Any]:
        return await latent(body, "diagnosis", lambda s: s.diagnosis())


# -- runs ------------------------------------------------------------------------------------


def _runs(app: FastAPI, services: Mapping[str, Service], runs: Runs | None) -> None:
    @app.get("/v1/runs")
    async def rows() -> dict[str, Any]:
        """Every run below the folder that the server watches."""
        data = await asyncio.to_thread(runs.rows) if runs else []
        return {"object": "list", "watching": runs is not None, "data": data}

    @app.get("/v1/runs/curves")
    async def curves(run: str, version: int = -1, after: int = -1) -> dict[str, Any]:
        """The curves of a run behind step `after`, where `version` is still the one; else all."""
        try:
            if runs is None:
                raise KeyError(run)
            return await asyncio.to_thread(runs.curves, run, version, after)
        except KeyError:
            raise RequestError("there is no such run: /v1/runs lists them", 404) from None
