"""The command `infolm`. Every heavy import waits until a command needs it."""

import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from infolm.errors import InfolmError

app = typer.Typer(
    name="infolm",
    help="Train, evaluate and sample language models that make the most of a small corpus.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

CHUNK = 200
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
CacheOption = Annotated[
    str | None,
    typer.Option(
        metavar="[tune|WINDOW,LAMBDA,THETA]",
        help="With a neural cache, tuned on the validation split unless given.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def main() -> NoReturn:
    """Run the command; a person's mistake is one sentence on standard error and exit code 2."""
    try:
        app(_spell_out_cache(sys.argv[1:]))
    except InfolmError as error:
        message = " ".join(str(error).split())
        print(f"infolm: {message}{'' if message.endswith('.') else '.'}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has had enough
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"infolm: {error}; what was saved before is intact.", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


def _spell_out_cache(arguments: list[str]) -> list[str]:
    """`--cache` may stand alone, or with `tune` or three numbers behind it."""
    spelt = list(arguments)
    for i, argument in enumerate(arguments):
        following = arguments[i + 1] if i + 1 < len(arguments) else ""
        if argument == "--cache" and following != "tune" and following.count(",") != 2:
            spelt[i] = "--cache=tuned"
    return spelt


@app.command()
def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A name from `infolm recipes`, a YAML file or a run."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes, such as data.path=book.txt seed=2"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder.", show_default="runs/<recipe>")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run if it has begun.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a model by a recipe; the result is a run's folder."""
    from infolm.config import load_recipe
    from infolm.console import StageBars, TrainingBar, bar, err
    from infolm.experiment import train as train_run
    from infolm.training.loop import Interrupted

    source = Path(recipe)
    if (source / "recipe.yaml").is_file():  # a run's folder: go on with it
        loaded = load_recipe(str(source / "recipe.yaml"), overrides)
        out = out or source
    else:
        loaded = load_recipe(recipe, overrides)
        out = out or Path("runs") / recipe.removesuffix(".yaml").replace("/", "-").lstrip(".-")
    try:
        with StageBars() as stages, bar("training") as progress:
            best = train_run(loaded, out, resume, TrainingBar(progress), stages)
    except Interrupted:
        err.print(f"interrupted; all is saved. Go on with: infolm train {out} --resume")
        sys.exit(130)
    if as_json:
        print(json.dumps({"run": str(out), "nll": best, "unit": "nats per token"}))
    err.print(f"done: best validation perplexity {math.exp(best):.2f}; the run is in {out}")
    err.print(f"next: infolm evaluate {out} --cache")


@app.command()
def evaluate(
    run: RunArgument,
    split: Annotated[str | None, typer.Option(help="valid or test.", show_default="both")] = None,
    chunk: Annotated[
        int, typer.Option(min=1, help="Tokens read at a time; the result does not depend on it.")
    ] = CHUNK,
    streams: Annotated[
        int, typer.Option(min=1, help="Read so many parts side by side: faster, approximate.")
    ] = 1,
    cache: CacheOption = None,
    words: Annotated[
        int, typer.Option(min=0, help="Show so many words that the cache helps and hurts most.")
    ] = 0,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also a Kneser-Ney 5-gram model of the same text.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure a trained model on its corpus: perplexity and its kin, each with its convention."""
    from infolm.console import StageBars
    from infolm.evaluation import measurement
    from infolm.experiment import TrainedRun

    if split not in (None, "valid", "test"):
        raise InfolmError(f"--split is valid or test, not '{split}'")
    if words and not cache:
        raise InfolmError("--words compares with the cache: add --cache")
    opened = TrainedRun.open(run)
    with StageBars() as stages:
        splits = [split] if split else ["valid", "test"]
        results, changes = opened.evaluate(splits, chunk, streams, cache, baseline, stages)
    if as_json:
        print(measurement.as_json(results))
        return
    _print_measurements(results)
    if words:
        _print_words(changes, opened.tokenizer, words)


@app.command()
def generate(
    run: RunArgument,
    prompt: Annotated[str, typer.Option(help="Text to go on from; none: a new line.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each sample.")] = 100,
    num: Annotated[int, typer.Option(min=1, help="How many samples.")] = 1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 1,
    temperature: Annotated[float, typer.Option(help="Below 1 bolder, above 1 wilder.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Among the K likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus: the likeliest with mass P.")] = None,
    eta: Annotated[float | None, typer.Option(help="Eta sampling with this epsilon.")] = None,
    typical: Annotated[float | None, typer.Option(help="Locally typical with mass P.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the likeliest token.")] = False,
    no_unk: Annotated[bool, typer.Option("--no-unk", help="Never write <unk>.")] = False,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write text with a trained model."""
    from infolm.console import StageBars
    from infolm.experiment import TrainedRun
    from infolm.generation.sampling import SamplingSettings
    from infolm.generation.text import write

    opened = TrainedRun.open(run)
    unk = opened.tokenizer.unk
    settings = SamplingSettings(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        eta=eta,
        typical=typical,
        greedy=greedy,
        forbid=(unk,) if no_unk and unk is not None else (),
    )
    with StageBars() as stages:
        recent = opened.cache_settings(cache, CHUNK, stages) if cache else None
    samples = write(opened.model, opened.tokenizer, prompt, tokens, num, seed, settings, recent)
    if as_json:
        print(json.dumps([{"prompt": prompt, "text": text} for text in samples], indent=2))
        return
    for i, text in enumerate(samples, 1):
        if num > 1:
            print(f"--- {i} ---")
        print(text.strip("\n"))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs' folders.")],
    as_json: JsonOption = False,
) -> None:
    """Write report.html into each run's folder: curves, measurements, samples."""
    from infolm.reports.run import write_report

    written = [str(write_report(run)) for run in runs]
    print(json.dumps(written) if as_json else "\n".join(written))


@app.command()
def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="Print this one, to copy and edit.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the recipes with paper, corpus, size and expected result, or print one."""
    from infolm.config import load_recipe, recipe_names, recipe_text
    from infolm.experiment import parameters

    if name:
        print(recipe_text(name), end="")
        return
    rows: list[dict[str, Any]] = []
    for each in recipe_names():
        recipe = load_recipe(each)
        rows.append(
            {
                "recipe": each,
                "title": recipe.title,
                "paper": recipe.paper,
                "corpus": recipe.data.corpus,
                "parameters": parameters(recipe),
                "expected": recipe.expected.model_dump() if recipe.expected else None,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    _print_table(
        ["recipe", "paper", "corpus", "weights", "expected valid / test perplexity"],
        [
            [
                row["recipe"],
                row["paper"],
                row["corpus"],
                f"{row['parameters'] / 1e6:.1f}M",
                _expected(row["expected"]),
            ]
            for row in rows
        ],
    )


@app.command()
def corpora(as_json: JsonOption = False) -> None:
    """List the corpora that are known by name."""
    from dataclasses import asdict

    from infolm.data.corpora import registry

    infos = list(registry().values())
    if as_json:
        print(json.dumps([asdict(info) for info in infos], indent=2))
        return
    _print_table(
        ["corpus", "what it is", "tokens", "download", "licence"],
        [
            [
                info.name,
                info.title,
                info.tokens,
                _megabytes(sum(file.size for file in info.downloads)),
                info.licence,
            ]
            for info in infos
        ],
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size else "none"


def _expected(expected: dict[str, Any] | None) -> str:
    if not expected:
        return ""
    return f"{expected['valid']} / {expected['test']} ({expected['source']})"


def _print_table(header: list[str], rows: list[list[str]], right: set[int] | None = None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, title in enumerate(header):
        table.add_column(title, justify="right" if right and i in right else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 140, highlight=False).print(table)


def _print_measurements(results: list[Any]) -> None:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}" if value < 100 else f"{value:.2f}"

    _print_table(
        ["split", "method", "metric", "value", "stderr", "unit", "tokens"],
        [
            [
                r.split,
                r.method,
                r.metric,
                number(r.value),
                number(r.stderr),
                r.unit,
                f"{r.tokens:,}",
            ]
            for r in results
        ],
        right={3, 4, 6},
    )
    print(f"convention: {results[0].convention}")


def _print_words(changes: list[Any], tokenizer: Any, number: int) -> None:
    """Table 3 of Merity et al. (2017): where the cache helps, and where it hurts."""
    hurt, helped = changes[::-1][:number], changes[:number]
    _print_table(
        ["hurt most", "count", "change", "helped most", "count", "change"],
        [
            [
                tokenizer.token(a.token),
                f"{a.count:,}",
                f"{a.change:.2f}",
                tokenizer.token(b.token),
                f"{b.count:,}",
                f"{b.change:.2f}",
            ]
            for a, b in zip(hurt, helped, strict=True)
        ],
        right={1, 2, 4, 5},
    )
