"""`infolm mi`: mutual information of samples, or of passages of a text."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infolm.cli.app import JsonOption, app, print_table
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.data.tables import Samples
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
            show_default="a panel; js-dv of text",
        ),
    ] = None,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="The panel without its critic: seconds.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = False,
    neighbours: Annotated[
        int | None,
        typer.Option(
            help="Of ksg, ksg2 and mixture.", show_default="3", rich_help_panel=OF_SAMPLES
        ),
    ] = None,
    folds: Annotated[
        int | None, typer.Option(help="Folds of the neural bounds.", show_default="5; 10 of text")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most training steps in each fold of the neural bounds.",
            show_default="2000",
        ),
    ] = None,
    sequence: Annotated[
        bool,
        typer.Option(
            "--sequence",
            help="Rows are a time series: neural folds are stretches.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = False,
    length: Annotated[
        int | None,
        typer.Option(help="Tokens of a segment.", show_default="40", rich_help_panel=OF_TEXT),
    ] = None,
    gap: Annotated[
        int | None,
        typer.Option(help="Tokens between the two.", show_default="10", rich_help_panel=OF_TEXT),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            help="Tokens from pair to pair to learn from; those read share no token.",
            show_default="15; a sixth of a pair",
            rich_help_panel=OF_TEXT,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Of a corpus; a file is read as a whole.",
            show_default="train",
            rich_help_panel=OF_TEXT,
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="word|char|byte",
            help="What a token is.",
            show_default="word, or as the corpus has it",
            rich_help_panel=OF_TEXT,
        ),
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option(help="Most types in the vocabulary.", rich_help_panel=OF_TEXT)
    ] = None,
    pretokenised: Annotated[
        bool,
        typer.Option(
            "--pretokenised",
            help="Words stand between blanks, as a model writes them.",
            rich_help_panel=OF_TEXT,
        ),
    ] = False,
    bits: Annotated[bool, typer.Option("--bits", help="In bits, not nats.")] = False,
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
    """Estimate mutual information: of paired samples, or of passages of a text.

    \b
    infolm mi x.npy y.npy
    infolm mi people.csv:height,weight people.csv:age --fast
    infolm mi x.npy y.npy -e mine,ksg
    infolm mi ptb --length 40 --gap 10
    infolm mi generated.txt --pretokenised

    \b
    Columns are named, or counted from 1; row i of X and of Y is one pair.
    A text is a name from `infolm corpora` or a file. Its pairs are two
    segments each, some tokens apart.
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
    if y is None:
        result = _mi_of_text(x, names, reading, segments, settings, unit, quiet=as_json)
    else:
        for option in {**reading, **segments}:
            raise InfolmError(f"--{option} is for a text: leave it out, or leave Y out")
        of_samples = _mi_of_samples if names else _answer_of_samples
        result = of_samples(x, y, names, settings, unit, quiet=as_json)
    if as_json:
        print(json.dumps(result, indent=2))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _answer_of_samples(
    x: str, y: str, names: list[str], settings: dict[str, Any], unit: "Unit", quiet: bool
) -> dict[str, Any]:
    """The panel's answer, and the estimates that it rests on."""
    from dataclasses import fields
    from functools import partial

    from infolm.console import StageBars
    from infolm.data.tables import read_samples
    from infolm.information.panel import Panel

    known = {each.name for each in fields(Panel)}
    for option in settings:
        if option not in known:
            raise InfolmError(
                f"--{option} does nothing for the panel: leave it out, or choose an estimator "
                "with -e"
            )
    a, b = read_samples(x), read_samples(y)
    with StageBars() as stages:
        panel = Panel(**settings, progress=partial(stages, "mine"))
        answer = panel.estimate(a.values, b.values).to(unit)
    if not quiet:
        _print_source(a, b, unit)
        _print_estimates(list(answer.estimates), warnings=False)
        print(f"{answer.verdict[0].upper()}{answer.verdict[1:]}.")
        if answer.kind != "none":
            print(f"Independence: p = {answer.p_value:.2g}, by permutations.")
        if answer.warning:
            print(f"Warning: {answer.warning}.")
    return {
        "answer": answer.as_dict(),
        "estimates": [estimate.as_dict() for estimate in answer.estimates],
    }


def _print_source(a: "Samples", b: "Samples", unit: "Unit") -> None:
    columns = f"x: {', '.join(a.columns)}; y: {', '.join(b.columns)}"
    if len(columns) > 80:
        columns = f"x has {len(a.columns)} columns, y {len(b.columns)}"
    print(f"mutual information in {unit} from {len(a.values):,} pairs ({columns})")


def _mi_of_samples(
    x: str, y: str, names: list[str], settings: dict[str, Any], unit: "Unit", quiet: bool
) -> dict[str, Any]:
    from functools import partial

    from infolm.console import StageBars
    from infolm.data.tables import read_samples
    from infolm.information.estimate import pairs
    from infolm.information.registry import ESTIMATORS, entry, estimator

    entries = {name: entry(name) for name in names}
    for option in settings:
        if not any(option in each.settings for each in entries.values()):
            raise InfolmError(f"--{option} does nothing for {', '.join(entries)}: leave it out")
    a, b = read_samples(x), read_samples(y)
    for name, each in entries.items():
        for column in () if each.categories else a.words + b.words:
            able = ", ".join(name for name, each in ESTIMATORS.items() if each.categories)
            raise InfolmError(
                f"column '{column}' holds words, which {name} would take for numbers: choose "
                f"another estimator with -e, among {able}"
            )
    pairs(a.values, b.values)  # what is wrong with both is told before any work
    found = {}
    with StageBars() as stages:
        for name in sorted(entries, key=lambda name: entries[name].neural):  # the quick ones first
            offered = settings | {"progress": partial(stages, name)}
            taken = {key: offered[key] for key in entries[name].settings if key in offered}
            try:
                found[name] = estimator(name, **taken).estimate(a.values, b.values).to(unit)
            except InfolmError as error:
                raise InfolmError(f"{name}: {error}" if len(entries) > 1 else str(error)) from None
    estimates = [found[name] for name in entries]
    if not quiet:
        _print_source(a, b, unit)
        _print_estimates(estimates)
    return {"estimates": [estimate.as_dict() for estimate in estimates]}


def _mi_of_text(
    source: str,
    names: list[str],
    reading: dict[str, Any],
    segments: dict[str, Any],
    settings: dict[str, Any],
    unit: "Unit",
    quiet: bool,
) -> dict[str, Any]:
    from infolm.data.tables import holds_samples

    if holds_samples(source):
        raise InfolmError(
            f"{source} holds samples: name those they are paired with too, as in "
            "infolm mi x.npy y.npy"
        )
    for option in ("fast", "neighbours", "sequence"):
        if option in settings:
            raise InfolmError(f"--{option} is for samples X and Y, not for a text: leave it out")

    from infolm.console import StageBars
    from infolm.evaluation.generated import BMI_BOUND, check_text, read_text, text_information

    bounds = list(dict.fromkeys(names)) or [BMI_BOUND]
    check_text(bounds, **segments)
    with StageBars() as stages:
        text = read_text(source, **reading, report=stages)
        result = text_information(text, bounds, **segments, report=stages, **settings).to(unit)
    if not quiet:
        split = f"the {text.split} split of {text.name}" if text.split else text.name
        print(
            f"mutual information in {unit} from {result.estimates[0].samples:,} pairs of segments "
            f"of {split} ({len(text.tokens):,} {text.kind} tokens, {text.types:,} types);\n"
            f"{result.length} tokens each, {result.gap} between them; learnt from {result.pairs:,} "
            f"pairs, one every {result.stride} tokens"
        )
        _print_estimates(result.estimates)
        if result.exact is not None:
            print(f"exact: {_decimal(result.exact)} {unit}")
    described = {
        "text": text.name,
        "split": text.split,
        "kind": text.kind,
        "tokens": len(text.tokens),
        "types": text.types,
    }
    return described | result.as_dict()


def _decimal(value: float) -> str:
    return f"{round(value, 4) + 0.0:.4f}"  # no -0.0000


def _print_estimates(estimates: list[Any], warnings: bool = True) -> None:
    from infolm.information.registry import side

    print_table(
        ["estimator", "value", "± stderr", "95% interval", "shuffled", "gives"],
        [
            [
                e.estimator,
                _decimal(e.value),
                _decimal(e.stderr),
                " to ".join(map(_decimal, e.interval)),
                _decimal(e.permuted),
                side(e.bound),
            ]
            for e in estimates
        ],
        right={1, 2, 3, 4},
    )
    for e in estimates if warnings else ():
        if e.warning:
            print(f"{e.estimator}: {e.warning}.")
