"""`infolm serve`: trained models over HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from infolm.cli.app import app
from infolm.errors import InfolmError


@app.command()
def serve(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs' folders.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="INFOLM_API_KEY",
            help="What clients must send as a bearer token; better in the variable than here, "
            "where other users of the machine can read it.",
            show_default=False,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name by which clients reach the server; repeatable."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="A site whose pages may ask, https://...; repeatable."),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Texts written side by side.")] = 64,
    waiting: Annotated[int, typer.Option(min=0, help="Texts that may wait for a slot.")] = 256,
    longest: Annotated[int, typer.Option(min=1, help="Tokens of a prompt or text.")] = 2048,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a completion.")] = 2048,
    texts: Annotated[int, typer.Option(min=1, help="Texts of a request.")] = 128,
    body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 2**20,
    rate: Annotated[
        int, typer.Option(min=0, help="Requests a minute of one client; 0: any number.")
    ] = 0,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time for a request.")] = 120.0,
    connections: Annotated[int, typer.Option(min=1, help="Connections at a time.")] = 512,
) -> None:
    """Serve trained models over HTTP, as OpenAI's clients expect it.

    \b
    infolm serve runs/demo
    curl -s localhost:8000/v1/completions -H 'Content-Type: application/json' \\
         -d '{"model": "demo", "prompt": "The", "max_tokens": 20}'

    \b
    /v1/models, /v1/completions, /v1/embeddings, /v1/score, /v1/latent/..., /healthz, /metrics
    """
    try:
        import uvicorn

        from infolm.server.app import PAGE, create_app
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "fastapi", "starlette"):
            raise
        raise InfolmError(
            "this needs FastAPI and uvicorn: install them with `pip install 'infolm[serve]'`"
        ) from None
    from infolm.console import err
    from infolm.server.limits import Limits, doors
    from infolm.server.services import open_services

    limits = Limits(
        slots=slots,
        waiting=waiting,
        longest=longest,
        tokens=tokens,
        texts=texts,
        body=body,
        rate=rate,
        seconds=seconds,
        connections=connections,
    )
    services = open_services(runs, limits)
    let_in = doors(host, allow_host or (), allow_origin or (), api_key, set(PAGE))
    err.print(f"Serving {', '.join(services)} at http://{host}:{port}/ (Ctrl-C ends it).")
    uvicorn.run(
        create_app(services, limits, let_in),
        host=host,
        port=port,
        log_level="warning",
        limit_concurrency=connections,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=int(seconds) + 1,
        server_header=False,
    )
