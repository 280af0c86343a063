"""`infolm compare`: compare runs."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from infolm.cli.app import JsonOption, app, print_table

WIDEST = 8
"""Groups whose settings fit side by side on a terminal."""


class Format(StrEnum):
    """Output formats of the comparison."""

    table = "table"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"
    json = "json"


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs' folders.")],
    by: Annotated[
        str | None,
        typer.Option(
            metavar="model|KEY",
            help="Group by this section or key of the recipe.",
            show_default="all but the seed",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="M",
            help="The metric to compare, such as perplexity, bits_per_character or "
            "validation_loss.",
            show_default="perplexity if all runs have it, else validation_loss",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="valid or test.")] = "valid",
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Part of the method's name, such as dynamic or cache.",
            show_default="the first that all runs have",
        ),
    ] = None,
    text: Annotated[
        bool | None,
        typer.Option(
            "--text/--no-text",
            help="Also test over the text, by scoring it with each run.",
            show_default="if at most 10 runs must be scored",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the learning curves to this .png or .svg."),
    ] = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    as_json: JsonOption = False,
) -> None:
    """Compare runs: mean and standard deviation over seeds, tests, what differs, curves.

    Runs that differ only in their seed form one group. Each group is tested against the first:
    over seeds, and over the text, by the losses of the same tokens.

    \b
    infolm compare runs/lstm-1 runs/lstm-2 runs/gru-1 runs/gru-2 --plot curves.png
    """
    from infolm.console import StageBars, err
    from infolm.studies.comparison.comparison import compare as compare_runs
    from infolm.studies.comparison.tables import FORMATS

    with StageBars() as stages:
        found = compare_runs(runs, by, metric, split, method, text, stages)
    if plot:
        from infolm.errors import InfolmError

        try:
            from infolm.studies.comparison.picture import draw
        except ModuleNotFoundError:
            raise InfolmError(
                "--plot needs matplotlib: install it with `pip install 'infolm[report]'`"
            ) from None
        draw(found, plot)
        err.print(f"learning curves: {plot}", markup=False, highlight=False)
    chosen = "json" if as_json else format.value
    if chosen in FORMATS:
        sys.stdout.write(FORMATS[chosen](found))
    else:
        _print(found)


def _print(found: Any) -> None:
    from infolm.studies.comparison import tables

    header, rows = tables.summary(found)
    print_table(header, rows, right={1, 3, 4})
    print(f"{tables.about(found)}.")
    if found.differs and len(found.groups) <= WIDEST:
        print()
        print_table(*tables.differences(found))
    elif found.differs:
        print(f"The recipes differ in {', '.join(found.differs)}; --format csv has the values.")
    for test in found.tests:
        print(f"\n{test.sentence}")
    if found.notes:
        print()
    for note in found.notes:
        print(f"Note: {note}.")
