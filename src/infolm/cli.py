"""The command `infolm`. Every heavy import waits until a command needs it."""

import json
import math
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.information.estimate import Unit

app = typer.Typer(
    name="infolm",
    help="Train, evaluate and sample language models that make the most of a small corpus.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

CHUNK = 200
TUNABLE = ("--cache", "--dynamic", "--temperature")
METHODS = "Methods"


class Rule(StrEnum):
    """How dynamic evaluation updates the weights."""

    rms = "rms"
    sgd = "sgd"


RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
CacheOption = Annotated[
    str | None,
    typer.Option(
        metavar="[tune|WINDOW,LAMBDA,THETA]",
        help="With a neural cache, tuned on the validation split unless given.",
    ),
]
OF_SAMPLES, OF_TEXT = "Options of samples X and Y", "Options of a text"
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def main() -> NoReturn:
    """Run the command; a person's mistake is one sentence on standard error and exit code 2."""
    try:
        app(_spell_out(sys.argv[1:]))
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


def _spell_out(arguments: list[str]) -> list[str]:
    """`--cache`, `--dynamic` and `--temperature` may stand alone, or with a value behind them.

    What follows is a value unless it is another option, or a run's folder.
    """
    spelt = list(arguments)
    for i, argument in enumerate(arguments):
        following = arguments[i + 1] if i + 1 < len(arguments) else "-"
        option = following.startswith("-") and not following[1:2].isdigit()
        if argument in TUNABLE and (option or Path(following).is_dir()):
            spelt[i] = f"{argument}=tuned"
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
    temperature: Annotated[
        str | None,
        typer.Option(
            metavar="[tune|VALUE]",
            help="With the softmax at this temperature, tuned unless given.",
            rich_help_panel=METHODS,
        ),
    ] = None,
    dynamic: Annotated[
        str | None,
        typer.Option(
            metavar="[tune|RATE,DECAY[,EPSILON]]",
            help="With weights that learn from the text as they go on, tuned unless given.",
            rich_help_panel=METHODS,
        ),
    ] = None,
    dynamic_rule: Annotated[
        Rule, typer.Option(help="How --dynamic updates the weights.", rich_help_panel=METHODS)
    ] = Rule.rms,
    segment: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens from one update of --dynamic to the next.",
            show_default="tuned; 20, or 50 characters, with values given",
            rich_help_panel=METHODS,
        ),
    ] = None,
    mc: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="MASKS",
            help="With probabilities averaged over so many dropout masks.",
            rich_help_panel=METHODS,
        ),
    ] = 0,
    mc_rate: Annotated[
        float,
        typer.Option(help="Times the dropout rates, in --mc.", rich_help_panel=METHODS),
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the masks of --mc.", rich_help_panel=METHODS)
    ] = 1,
    cache: CacheOption = None,
    episodic: Annotated[
        bool,
        typer.Option("--episodic", help="Each sentence by itself, the state starting anew."),
    ] = False,
    words: Annotated[
        int, typer.Option(min=0, help="Show so many words that the cache helps and hurts most.")
    ] = 0,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also a Kneser-Ney 5-gram model of the same text.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure a trained model on its corpus: perplexity and its kin, each with its convention.

    Methods combine: the result has the model as it is, each method alone, and all together.
    What is tuned is tuned on the validation split, and kept in the run's folder.

    \b
    infolm evaluate RUN --dynamic --mc 200 --temperature tune --cache tune

    \b
    --cache, --dynamic and --temperature may stand alone: as tuned before, or else now.
    """
    from infolm.console import StageBars
    from infolm.evaluation import measurement
    from infolm.trained import Asked, TrainedRun

    if split not in (None, "valid", "test"):
        raise InfolmError(f"--split is valid or test, not '{split}'")
    if words and not cache:
        raise InfolmError("--words compares with the cache: add --cache")
    if not dynamic and (segment or dynamic_rule != Rule.rms):
        raise InfolmError("--segment and --dynamic-rule are of dynamic evaluation: add --dynamic")
    if not mc and mc_rate != 1:
        raise InfolmError("--mc-rate is of Monte Carlo dropout: add --mc 200")
    asked = Asked(
        temperature=temperature,
        dynamic=dynamic,
        rule=dynamic_rule.value,
        segment=segment,
        monte_carlo=mc,
        rate=mc_rate,
        seed=seed,
        cache=cache,
        episodic=episodic,
    )
    opened = TrainedRun.open(run)
    with StageBars() as stages:
        splits = [split] if split else ["valid", "test"]
        results, changes = opened.evaluate(splits, asked, chunk, streams, baseline, stages)
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
    from infolm.generation.sampling import SamplingSettings
    from infolm.generation.text import write
    from infolm.trained import TrainedRun

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


def _list_estimators(wanted: bool) -> None:
    if not wanted:
        return
    from infolm.information.registry import describe

    header = ["estimator", "what it is", "gives", "use it for"]
    _print_table(header, [list(line) for line in describe()])
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
            show_default="mine; js-dv of text",
        ),
    ] = None,
    neighbours: Annotated[
        int | None,
        typer.Option(
            help="Of ksg, ksg2 and mixture.", show_default="3", rich_help_panel=OF_SAMPLES
        ),
    ] = None,
    folds: Annotated[
        int | None, typer.Option(help="Of the neural bounds.", show_default="5; 10 of text")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="At most, in each fold of the neural bounds.", show_default="2000"
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
            help="Tokens from pair to pair.", show_default="no token twice", rich_help_panel=OF_TEXT
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
        int | None, typer.Option(help="At most so many types.", rich_help_panel=OF_TEXT)
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
    infolm mi people.csv:height,weight people.csv:age -e mine,ksg
    infolm mi ptb --length 40 --gap 10
    infolm mi generated.txt --pretokenised

    \b
    Columns are named, or counted from 1; row i of X and of Y is one pair.
    A text is a name from `infolm corpora` or a file. Its pairs are two
    segments each, some tokens apart.
    """
    names = [name.strip() for each in estimators or [] for name in each.split(",") if name.strip()]
    settings = _given(
        neighbours=neighbours, folds=folds, steps=steps, sequence=sequence or None, seed=seed
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
        result = _mi_of_samples(x, y, names, settings, unit, quiet=as_json)
    if as_json:
        print(json.dumps(result, indent=2))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _mi_of_samples(
    x: str, y: str, names: list[str], settings: dict[str, Any], unit: "Unit", quiet: bool
) -> dict[str, Any]:
    from functools import partial

    from infolm.console import StageBars
    from infolm.data.tables import read_samples
    from infolm.information.estimate import pairs
    from infolm.information.registry import ESTIMATORS, RECOMMENDED, entry, estimator

    entries = {name: entry(name) for name in names or [RECOMMENDED]}
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
        columns = f"x: {', '.join(a.columns)}; y: {', '.join(b.columns)}"
        if len(columns) > 80:
            columns = f"x has {len(a.columns)} columns, y {len(b.columns)}"
        print(f"mutual information in {unit} from {len(a.values):,} pairs ({columns})")
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
    for option in ("neighbours", "sequence"):
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
            f"{result.length} tokens each, {result.gap} between them, a pair every {result.stride}"
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


def _print_estimates(estimates: list[Any]) -> None:
    from infolm.information.registry import side

    _print_table(
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
    for e in estimates:
        if e.warning:
            print(f"{e.estimator}: {e.warning}.")


@app.command()
def tune(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A recipe with a section `tuning`, or a study's folder."
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes, as of `train`.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Trainings in all, those of before too.")] = 30,
    out: Annotated[
        Path | None, typer.Option(help="The study's folder.", show_default="runs/<recipe>-tuning")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that train side by side and share the cores.")
    ] = 1,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="postgresql://user@host/database, to share the study with other machines under "
            "the name of its folder.",
            show_default="study.db in the folder",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=0, help="Train the winner again with so many other seeds.")
    ] = 3,
    as_json: JsonOption = False,
) -> None:
    """Search the ranges of a recipe for the values that are best on the validation split."""
    from infolm.config import load_recipe
    from infolm.console import StageBars, bar, err

    try:
        from infolm.tuning import tuner
    except ModuleNotFoundError as error:
        raise InfolmError(f"tuning needs {error.name}: pip install 'infolm[tune]'") from None

    source = Path(recipe)
    if (source / "study.yaml").is_file():  # a study's folder: go on with it
        loaded = load_recipe(str(source / "study.yaml"), overrides)
        out = out or source
    else:
        loaded = load_recipe(recipe, overrides)
        name = recipe.removesuffix(".yaml").replace("/", "-").lstrip(".-")
        out = out or Path("runs") / f"{name}-tuning"
    try:
        with StageBars() as stages, bar("tuning") as progress:
            result = tuner.tune(
                loaded, out, trials, workers, seeds, storage, progress.update, err.print, stages
            )
    except KeyboardInterrupt:
        options = f"--trials {trials} --workers {workers} --seeds {seeds}"
        if storage:
            options += " --storage URL"
        err.print(f"interrupted; all is saved. Go on with: infolm tune {out} {options}")
        sys.exit(130)
    if as_json:
        print(json.dumps(result, indent=2))
        return
    _print_tuned(result)
    err.print(f"next: infolm train {result['recipe']} --out runs/best")


def _print_tuned(result: dict[str, Any]) -> None:
    best, trials = result["best"], dict(result["trials"])
    total = trials.pop("total")
    print(f"{total} trials: " + ", ".join(f"{n} {state}" for state, n in trials.items()))
    _print_table(
        ["key", "best value"],
        [[k, f"{v:.4g}" if isinstance(v, float) else str(v)] for k, v in best["values"].items()],
    )
    rows = [[f"trial {best['trial']}, as tuned", f"{best['nll']:.4f}", f"{best['perplexity']:.2f}"]]
    again = result.get("retrained", {})
    if "nll" in again:
        spread = [
            f"{each['mean']:.{digits}f}"
            + ("" if each["deviation"] is None else f" ± {each['deviation']:.{digits}f}")
            for each, digits in ((again["nll"], 4), (again["perplexity"], 2))
        ]
        rows.append([f"mean ± deviation over {len(again['seeds'])} other seeds", *spread])
    _print_table(["validation", "nats per token", "perplexity"], rows, right={1, 2})
    for seed, failure in again.get("failures", {}).items():
        print(f"with seed {seed} it failed: {failure}")
    if "note" in again:
        print(f"{again['note']}.")
    print(f"the winner's recipe: {result['recipe']}; picture: {result['picture']}")


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
        ["recipe", "paper", "corpus", "weights", "expected valid / test"],
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
    unit = expected["metric"].replace("_", " ")
    return f"{unit} {expected['valid']} / {expected['test']} ({expected['source']})"


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
    conventions: dict[str, list[str]] = {}
    for r in results:
        methods = conventions.setdefault(r.convention, [])
        methods += [] if r.method in methods else [r.method]
    for convention, methods in conventions.items():
        of = f" of {'; '.join(methods)}" if len(conventions) > 1 else ""
        print(f"convention{of}: {convention}")


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
