"""`infolm serve`: trained models over HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from infolm.cli.app import app
from infolm.errors import InfolmError


@app.command()
def serve(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN...]", help="Folders of the runs to serve."),
    ] = None,
    watched: Annotated[
        Path | None,
        typer.Option(
            "--runs",
            metavar="FOLDER",
            help="Show the runs below a folder, with live learning curves.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="INFOLM_API_KEY",
            help="The bearer token that clients must send. Set the variable instead: other users "
            "of "
            "this machine can read the option.",
            show_default=False,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name of the server; repeatable."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN", help="A site whose pages may send requests, https://...; repeatable."
        ),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Texts generated at once.")] = 64,
    waiting: Annotated[int, typer.Option(min=0, help="Texts that may wait for a slot.")] = 256,
    longest: Annotated[int, typer.Option(min=1, help="Maximum tokens of a prompt or text.")] = 2048,
    tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens of a completion.")] = 2048,
    texts: Annotated[int, typer.Option(min=1, help="Maximum texts of a request.")] = 128,
    body: Annotated[int, typer.Option(min=1, help="Maximum bytes of a request.")] = 2**20,
    rate: Annotated[
        int, typer.Option(min=0, help="Maximum requests of a client per minute; 0: no limit.")
    ] = 0,
    seconds: Annotated[float, typer.Option(min=0.1, help="Maximum time of a request.")] = 120.0,
    connections: Annotated[int, typer.Option(min=1, help="Maximum connections at once.")] = 512,
) -> None:
    """Serve trained models over HTTP with OpenAI's interface, and a page to try them.

    \b
    infolm serve runs/demo
    infolm serve --runs runs
    infolm serve runs/demo --runs runs
    curl -s localhost:8000/v1/completions -H 'Content-Type: application/json' \\
         -d '{"model": "demo", "prompt": "The", "max_tokens": 20}'

    \b
    /v1/models, /v1/completions, /v1/embeddings, /v1/score, /v1/latent/..., /v1/runs, /healthz,
    /metrics
    """
    if not runs and watched is None:
        raise InfolmError("there is nothing to serve: name a run's folder, or one with --runs")
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
    from infolm.server.connections import bound, server_config
    from infolm.server.limits import Limits, doors
    from infolm.server.runs import Runs
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
    listening = bound(host, port)
    services = open_services(runs or [], limits)
    shown = Runs(watched) if watched else None
    let_in = doors(host, allow_host or (), allow_origin or (), api_key, set(PAGE))
    what = [*services, *([f"the runs below {watched}"] if watched else [])]
    config = server_config(create_app(services, limits, let_in, shown), limits, log_level="warning")
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{listening.getsockname()[1]}/"
    said = f"Serving {', '.join(what)} at {address} (Ctrl-C stops it)."
    err.print(said, markup=False, highlight=False, soft_wrap=True)
    uvicorn.Server(config).run([listening])
