"""`infolm score`: surprisal of sentences, and minimal pairs."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infolm.cli.app import JsonOption, app, print_table
from infolm.cli.options import ALONE
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from infolm.evaluation.minimal_pairs import Accuracy, PairResult
    from infolm.evaluation.scoring import ScoredSentence
    from infolm.families.running.scoring import Named, ScoreSettings

METHODS, OUTPUT = "Methods", "Output"
WIDTH = 100
"""Columns if standard output is not a terminal."""
GAP = 2
"""Blanks between two words."""


ALONE["score"] = dict.fromkeys(("--cache", "--dynamic", "--temperature"), "tuned")


class Context(StrEnum):
    """The context that the model reads before a sentence."""

    fresh = "fresh"
    carried = "carried"


class Unit(StrEnum):
    """Of surprisals."""

    bits = "bits"
    nats = "nats"


class By(StrEnum):
    """The unit of a table's row."""

    token = "token"
    word = "word"
    sentence = "sentence"


@app.command()
def score(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or kneser-ney:RUN.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE|-]", help="Sentences, one a line; - is standard input."),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="A sentence; may be given several times.")
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|FOLDER",
            help="Minimal pairs: BLiMP's .jsonl, a .tsv of two columns, or a folder of them.",
        ),
    ] = None,
    context: Annotated[
        Context | None,
        typer.Option(
            help="Score each sentence by itself after an <eos>, or all as one text.",
            show_default="fresh; carried with --cache or --dynamic",
        ),
    ] = None,
    eos: Annotated[
        bool, typer.Option("--eos/--no-eos", help="Count the <eos> at the end, or not.")
    ] = True,
    unit: Annotated[Unit, typer.Option(help="Unit of the surprisals.")] = Unit.bits,
    longest: Annotated[
        int, typer.Option(min=1, help="Maximum tokens of a sentence; longer ones are refused.")
    ] = 4096,
    temperature: Annotated[
        str | None,
        typer.Option(
            metavar="[tune|VALUE]",
            help="Temperature of the softmax; the tuned one without a value.",
            rich_help_panel=METHODS,
        ),
    ] = None,
    dynamic: Annotated[
        str | None,
        typer.Option(
            metavar="[tune|RATE,DECAY[,EPSILON]]",
            help="Dynamic evaluation: adapt the weights to the text while reading it.",
            rich_help_panel=METHODS,
        ),
    ] = None,
    mc: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="MASKS",
            help="Average probabilities over this many dropout masks; gives no ranks.",
            rich_help_panel=METHODS,
        ),
    ] = 0,
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="[tune|WINDOW,LAMBDA,THETA]",
            help="Use a neural cache; tuned on the validation split without a value.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the masks of --mc.")] = 1,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens", help="Print a table of tokens with their ranks.", rich_help_panel=OUTPUT
        ),
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="List this many likely tokens at each position.",
            show_default="3 with --tokens and for pages, else 0",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    by: Annotated[
        By,
        typer.Option(help="A row of --csv, --tsv or --parquet.", rich_help_panel=OUTPUT),
    ] = By.token,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print rows as CSV.", rich_help_panel=OUTPUT)
    ] = False,
    as_tsv: Annotated[
        bool, typer.Option("--tsv", help="Print rows as TSV.", rich_help_panel=OUTPUT)
    ] = False,
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write rows as Parquet.", rich_help_panel=OUTPUT),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png|svg|html",
            help="Draw the words' surprisals, or write a page of shaded text.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Score sentences: the surprisal of each word and token.

    \b
    infolm score RUN --text "the cat sat on the mat" --tokens
    infolm score RUN sentences.txt --csv > surprisal.csv
    infolm score RUN --pairs blimp/

    \b
    The model reads an <eos> and then the sentence. Words are separated by blanks. A word's
    surprisal includes that the word ends; --by word also gives the plain sum of its tokens.
    """
    from infolm.console import StageBars
    from infolm.families.running.scoring import ScoreSettings, open_scorer

    if sum([as_csv, as_tsv, as_json]) > 1:
        raise InfolmError("--csv, --tsv and --json are different formats: give one of them")
    for path in (parquet, plot):
        if path and not path.absolute().parent.is_dir():
            raise InfolmError(
                f"{path} cannot be written, since its folder does not exist: "
                "create the folder first"
            )
    if plot and plot.suffix not in (".png", ".svg", ".html"):
        raise InfolmError(f"--plot {plot}: name a .png, .svg or .html file")
    page = plot is not None and plot.suffix == ".html"
    settings = ScoreSettings(
        context=context.value if context else None,
        eos=eos,
        unit=unit.value,
        top=top if top is not None else 3 if tokens or page else 0,
        longest=longest,
        temperature=temperature,
        dynamic=dynamic,
        mc=mc,
        seed=seed,
        cache=cache,
    )
    if pairs:
        given = {"FILE": file, "--text": text, "--csv": as_csv, "--tsv": as_tsv, "--plot": plot}
        given |= {"--parquet": parquet, "--tokens": tokens}
        if refused := [name for name, value in given.items() if value]:
            raise InfolmError(
                f"{', '.join(refused)}does not apply to --pairs, which prints "
                "accuracies: leave it out"
            )
        _score_pairs(run, pairs, settings, as_json)
        return
    sentences = _sentences(file, text or [])
    scorer = open_scorer(run)
    with StageBars() as stages:
        scored = scorer.score(sentences, settings, stages)
    _print(scored, tokens, by, as_json, as_csv, as_tsv)
    from infolm.reports import surprisal

    if parquet:
        surprisal.write_parquet(parquet, surprisal.rows(scored, by.value))
    if plot:
        surprisal.write_plot(plot, scored)
        if not page and len(scored) > surprisal.DRAWN:
            print(f"{plot} has the first {surprisal.DRAWN} sentences.", file=sys.stderr)


def _sentences(file: Path | None, texts: Sequence[str]) -> "list[Named]":
    """The sentences from a file, standard input or --text, with their line numbers."""
    from infolm.families.running.scoring import Named

    if file is not None and texts:
        raise InfolmError("both a file and --text are given: give one of them")
    if file is None and not texts:
        raise InfolmError("no sentences: give a file, - for standard input, or --text")
    if file is None:
        return [Named(text, f"--text {number}") for number, text in enumerate(texts, 1)]
    name = "standard input" if str(file) == "-" else str(file)
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        lines = data.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise InfolmError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InfolmError(
            f"{name} is not UTF-8 text (byte {error.start}): convert it, for instance with iconv"
        ) from error
    if not lines[-1]:
        del lines[-1]
    if not lines:
        raise InfolmError(f"{name} is empty: write one sentence per line")
    return [
        Named(line.removesuffix("\r"), f"{name}, line {number}")
        for number, line in enumerate(lines, 1)
    ]


def _print(
    scored: "list[ScoredSentence]",
    tokens: bool,
    by: By,
    as_json: bool,
    as_csv: bool,
    as_tsv: bool,
) -> None:
    from infolm.reports import surprisal

    if as_json:
        print(json.dumps([s.to_dict() for s in scored], indent=2, ensure_ascii=False))
    elif as_csv or as_tsv:
        table = surprisal.rows(scored, by.value)
        print(surprisal.delimited(table, "\t" if as_tsv else ","), end="")
    else:
        console = _console()
        for number, sentence in enumerate(scored, 1):
            _show_heading(console, number, sentence)
            (_show_tokens if tokens else _show_words)(console, sentence)
        _show_total(console, scored)


def _console() -> "Console":
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, soft_wrap=False)


def _show_heading(console: "Console", number: int, sentence: "ScoredSentence") -> None:
    from rich.text import Text

    unknown = f", {sentence.unknown} unknown" if sentence.unknown else ""
    console.print(
        Text.assemble(
            (f"{number}  ", "bold"),
            (
                f"{sentence.surprisal:.1f} {sentence.unit}, {len(sentence.tokens)} tokens, "
                f"perplexity {sentence.perplexity:.4g}{unknown}",
                "dim",
            ),
        )
    )


def _show_words(console: "Console", sentence: "ScoredSentence") -> None:
    """Each word shaded by its surprisal, with the number below."""
    from rich.cells import cell_len
    from rich.text import Text

    line, below, used = Text("   "), Text("   "), 3
    for word in sentence.words:
        shown = f"[{word.word}]" if word.unknown else word.word
        value = f"{word.surprisal:.1f}"
        width = max(cell_len(shown), len(value))
        if used > 3 and used + width > console.width:
            _print_both(console, line, below)
            line, below, used = Text("   "), Text("   "), 3
        padding = " " * (width - cell_len(shown))
        line.append(shown + padding, _style(word.surprisal, sentence.unit)).append(" " * GAP)
        below.append(value.ljust(width + GAP), "dim")
        used += width + GAP
    _print_both(console, line, below)
    console.print()


def _print_both(console: "Console", line: "Text", below: "Text") -> None:
    for text in (line, below):
        text.rstrip()
        console.print(text)


def _style(surprisal: float, unit: str) -> str:
    from infolm.reports.surprisal import dark, shade

    red, green, blue = colour = shade(surprisal, unit)
    return f"{'white' if dark(colour) else 'black'} on rgb({red},{green},{blue})"


def _show_tokens(console: "Console", sentence: "ScoredSentence") -> None:
    """A row for each token: its surprisal, its rank, and the likely tokens there."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    whole = any(token.rank for token in sentence.tokens)
    alternatives = any(token.top for token in sentence.tokens)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("token", overflow="fold")
    table.add_column(sentence.unit, justify="right")
    if whole:
        table.add_column("rank", justify="right")
    if alternatives:
        table.add_column("likeliest there", overflow="fold")
    for token in sentence.tokens:
        name = f"[{sentence.text[token.start : token.end]}]" if token.unknown else token.token
        row = [
            Text(name, _style(token.surprisal, sentence.unit)),
            Text(f"{token.surprisal:.2f}"),
        ]
        if whole:
            row.append(Text(f"{token.rank:,}" if token.rank else ""))
        if alternatives:
            import math

            shares = [f"{a.token} {math.exp(a.log_prob):.0%}" for a in token.top]
            row.append(Text(", ".join(shares), "dim"))
        table.add_row(*row)
    console.print(table)


def _show_total(console: "Console", scored: "list[ScoredSentence]") -> None:
    import math

    tokens = sum(len(sentence.tokens) for sentence in scored)
    log_prob = math.fsum(sentence.log_prob for sentence in scored)
    unknown = sum(sentence.unknown for sentence in scored)
    unit, nats = scored[0].unit, math.log(2) if scored[0].unit == "bits" else 1.0
    if len(scored) > 1:
        console.print(
            f"{len(scored):,} sentences, {tokens:,} tokens: {-log_prob / nats / tokens:.3f} {unit} "
            f"a token, perplexity {math.exp(min(-log_prob / tokens, 700)):.4g}"
        )
    if unknown:
        share = unknown / tokens
        console.print(
            f"[word]: not in the vocabulary, read as <unk>; {share:.1%} of the tokens", markup=False
        )
    console.print(f"convention: {scored[0].convention}", style="dim", markup=False)


def _score_pairs(run: str, path: Path, settings: "ScoreSettings", as_json: bool) -> None:
    from infolm.console import StageBars
    from infolm.evaluation.minimal_pairs import judge, read_pairs
    from infolm.families.running.scoring import Named, open_scorer

    pairs = read_pairs(path)
    sentences = [
        Named(text, f"{pair.where}, the {which} sentence")
        for pair in pairs
        for text, which in ((pair.good, "good"), (pair.bad, "bad"))
    ]
    scorer = open_scorer(run)
    with StageBars() as stages:
        result = judge(pairs, scorer.score(sentences, settings, stages))
    if as_json:
        print(json.dumps(result.to_dict(run), indent=2, ensure_ascii=False))
    else:
        _print_pairs(result)


def _print_pairs(result: "PairResult") -> None:
    several = len(result.files) > 1
    own_names = set(result.phenomena) != set(result.files)
    if own_names and len(result.phenomena) > 1:
        _print_accuracies("phenomenon", result.phenomena)
    shown = dict(result.files)
    if several:
        shown["all pairs"] = result.overall
    _print_accuracies("file", shown)
    if result.overall.ties:
        print("A tie, where both sentences are equally likely, counts as half.")
    if result.overall.unknown > 0.2:
        print(
            f"In {result.overall.unknown:.0%} of the pairs a word is not in the vocabulary: the "
            "model cannot judge such a word."
        )
    print(f"convention: {result.convention}")


def _print_accuracies(of: str, found: "dict[str, Accuracy]") -> None:
    rows: list[list[Any]] = [
        [
            name,
            f"{each.accuracy:.1%}",
            "" if each.stderr is None else f"{each.stderr:.1%}",
            f"{each.pairs:,}",
            f"{each.ties:,}",
            f"{each.unknown:.0%}",
        ]
        for name, each in found.items()
    ]
    header = [of, "accuracy", "stderr", "pairs", "ties", "with unknown words"]
    print_table(header, rows, right={1, 2, 3, 4, 5})
