"""The typer application, and what several commands share."""

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(
    name="infolm",
    help="Train, evaluate and sample language models that make the most of a small corpus.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"infolm {version('infolm')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def print_table(header: list[str], rows: list[list[str]], right: Collection[int] = ()) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, title in enumerate(header):
        # People copy names into the next command: shorten them last, and then by wrapping.
        justify: Literal["right", "left"] = "right" if i in right else "left"
        table.add_column(Text(title), justify=justify, no_wrap=i == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # as plain text: a name may contain square brackets
    Console(width=None if sys.stdout.isatty() else 140, highlight=False).print(table)
