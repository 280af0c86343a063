"""`infolm mi`: mutual information of samples, or of segments of a text."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infolm.cli.app import JsonOption, app, print_table
from infolm.cli.information.samples import OfSamples
from infolm.cli.information.text import OfText, whole_numbers
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.information.estimate import Unit

OF_SAMPLES, OF_TEXT = "Options of samples X and Y", "Options of a text"


def _list_estimators(wanted: bool) -> None:
    if not wanted:
        return
    from infolm.information.registry import describe

    header = ["estimator", "what it is", "gives", "use it for"]
    print_table(header, [list(line) for line in describe()])
    raise typer.Exit


@app.command()
def mi(
    x: Annotated[
        str,
        typer.Argument(
            metavar="X", help="Samples: a .npy file, or FILE.csv:COLUMN,... (Parquet too); or TEXT."
        ),
    ],
    y: Annotated[
        str | None,
        typer.Argument(metavar="Y", help="The other samples, row by row; none: X is a text."),
    ] = None,
    estimators: Annotated[
        list[str] | None,
        typer.Option(
            "--estimator",
            "-e",
            metavar="NAME[,NAME]...",
            help="Names from --list.",
            show_default="a panel; js-dv for a text",
        ),
    ] = None,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="The panel without its critic; takes seconds.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = False,
    given: Annotated[
        str | None,
        typer.Option(
            metavar="Z",
            help="Condition on Z: the information of X and Y given Z.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = None,
    transfer: Annotated[
        bool,
        typer.Option(
            "--transfer",
            help="Transfer entropy from the series X to the series Y.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = False,
    history: Annotated[
        int | None,
        typer.Option(
            help="With --transfer: the number of past rows.",
            show_default="1",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = None,
    matrix: Annotated[
        bool,
        typer.Option(
            "--matrix",
            help="Estimate for all pairs of the columns of X.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = False,
    prove: Annotated[
        bool,
        typer.Option(
            "--prove",
            help="Plant known amounts of information into copies of the columns, and estimate "
            "them.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = False,
    missing: Annotated[
        str,
        typer.Option(
            metavar="refuse|drop",
            help="What to do with rows that miss a value.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = "refuse",
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw the matrix, the proof or the text's distances (.png)."
        ),
    ] = None,
    neighbours: Annotated[
        int | None,
        typer.Option(
            help="Nearest neighbours of ksg, ksg2 and mixture.",
            show_default="3",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(help="Folds of the neural bounds.", show_default="5; 10 for a text"),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum training steps in each fold of the neural bounds.",
            show_default="2000",
        ),
    ] = None,
    sequence: Annotated[
        bool,
        typer.Option(
            "--sequence",
            help="Rows are a time series: folds are contiguous.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = False,
    length: Annotated[
        int | None,
        typer.Option(help="Tokens of a segment.", show_default="40", rich_help_panel=OF_TEXT),
    ] = None,
    gap: Annotated[
        int | None,
        typer.Option(
            help="Tokens between the two segments.", show_default="10", rich_help_panel=OF_TEXT
        ),
    ] = None,
    distances: Annotated[
        str | None,
        typer.Option(
            metavar="GAP,GAP...",
            help="Several gaps, to see how far dependence reaches.",
            rich_help_panel=OF_TEXT,
        ),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="With --distances: another text to measure and draw.",
            rich_help_panel=OF_TEXT,
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            help="Tokens between training pairs; test pairs share no token.",
            show_default="15; a sixth of a pair, a segment at most",
            rich_help_panel=OF_TEXT,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Split of a corpus; a file is read whole.",
            show_default="train",
            rich_help_panel=OF_TEXT,
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="word|char|byte",
            help="The kind of token.",
            show_default="word, or the corpus's own",
            rich_help_panel=OF_TEXT,
        ),
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option(help="Maximum size of the vocabulary.", rich_help_panel=OF_TEXT)
    ] = None,
    pretokenised: Annotated[
        bool,
        typer.Option(
            "--pretokenised",
            help="Words are separated by blanks already, as in generated text.",
            rich_help_panel=OF_TEXT,
        ),
    ] = False,
    bits: Annotated[bool, typer.Option("--bits", help="Report bits instead of nats.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    as_json: JsonOption = False,
    listed: Annotated[
        bool,
        typer.Option(
            "--list",
            help="List the estimators, and when to use which.",
            is_eager=True,
            callback=_list_estimators,
        ),
    ] = False,
) -> None:
    """Estimate mutual information of paired samples, or of segments of a text.

    \b
    infolm mi x.npy y.npy
    infolm mi people.csv:height,weight people.csv:age --fast
    infolm mi x.npy y.npy -e mine,ksg
    infolm mi x.npy y.npy --given z.npy
    infolm mi people.csv --matrix --plot people.png
    infolm mi x.npy y.npy --prove
    infolm mi ptb --length 40 --gap 10
    infolm mi generated.txt --pretokenised

    \b
    Columns are named, or counted from 1; row i of X and of Y is one pair.
    A text is a name from `infolm corpora` or a file. A pair is two of its
    segments, some tokens apart.
    """
    names = [name.strip() for each in estimators or [] for name in each.split(",") if name.strip()]
    settings = _given(
        fast=fast or None,
        neighbours=neighbours,
        folds=folds,
        steps=steps,
        sequence=sequence or None,
        seed=seed,
    )
    reading = _given(
        split=split, tokens=tokens, vocabulary=vocabulary, pretokenised=pretokenised or None
    )
    segments = _given(length=length, gap=gap, stride=stride)
    unit: Unit = "bits" if bits else "nats"
    if missing not in ("refuse", "drop"):
        raise InfolmError(f"--missing is refuse or drop, not '{missing}'")
    samples = OfSamples(missing, settings, unit, as_json, plot)
    if matrix:
        if y is not None or given is not None or transfer or prove or names:
            raise InfolmError(
                "--matrix takes one file and always uses the panel: leave the rest out"
            )
        result = samples.matrix(x)
    elif y is None:
        for option, wanted in (("given", given), ("transfer", transfer), ("prove", prove)):
            if wanted:
                raise InfolmError(f"--{option} is for samples X and Y: name Y too")
        if beside and distances is None:
            raise InfolmError("--beside is for --distances: leave it out, or give --distances too")
        text = OfText(reading, segments, settings, unit, as_json, plot)
        if distances is None:
            result = text.estimates(x, names)
        else:
            gaps = whole_numbers(distances, gap)
            result = text.by_distance([x, *(beside or [])], names, gaps)
    else:
        for option in {**reading, **segments, **_given(distances=distances, beside=beside)}:
            raise InfolmError(f"--{option} is for a text: leave it out, or leave Y out")
        if history is not None and not transfer:
            raise InfolmError("--history is for --transfer: leave it out")
        if given is not None or transfer:
            result = samples.conditional(x, y, given, history if transfer else None, names)
        elif prove:
            result = samples.proof(x, y, names)
        elif names:
            result = samples.estimates(x, y, names)
        else:
            result = samples.answer(x, y)
    if as_json:
        print(json.dumps(result, indent=2))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
