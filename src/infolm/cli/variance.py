"""`infolm variance`: how noisy BMI's second phase would be by the policy gradient."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infolm.cli.app import JsonOption, RunArgument, app, print_table
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.data.pairs import SentencePairs
    from infolm.evaluation.gradient_variance import SentenceEnd
    from infolm.objectives.bmi import Bmi
    from infolm.trained import TrainedRun


@app.command()
def variance(
    run: RunArgument,
    batches: Annotated[int, typer.Option(help="Gradients of each kind; 8 at least.")] = 200,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="The picture.", show_default="RUN/variance.png"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")] = 1,
    plain: Annotated[
        bool, typer.Option("--no-baseline", help="The policy gradient without its baseline.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the gradients of BMI's second phase: the variance of each weight's by the policy
    gradient, over that by importance-weighted RAML, and a picture of it.

    The run is one that was trained with regularisers.bmi. Its weights and its critic stay as they
    are.
    """
    from infolm.console import StageBars
    from infolm.evaluation.gradient_variance import compare, estimators
    from infolm.trained import TrainedRun

    try:
        from infolm.reports.variance import draw
    except ModuleNotFoundError:
        raise InfolmError(
            "the picture needs matplotlib: install it with `pip install 'infolm[report]'`"
        ) from None

    picture = out or run / "variance.png"
    if picture.suffix != ".png" or not picture.absolute().parent.is_dir():
        raise InfolmError(f"--out {picture}: name a .png file in a folder that exists")
    opened = TrainedRun.open(run)
    bmi, feed, end = _regulariser(opened, seed)
    rl, raml = estimators(opened.model, bmi, feed, end, seed, baseline=not plain)
    with StageBars() as stages:
        found = compare(
            rl, raml, batches, lambda done, total: stages("taking gradients", done, total)
        )
    draw(found, feed.batch, picture)
    about = {
        "baseline": not plain,
        "pairs": feed.batch,
        "longest": end.limit,
        "seed": seed,
        "picture": str(picture),
    }
    numbers = {**found.numbers(), **about}
    if as_json:
        print(json.dumps(numbers, indent=2))
        return
    _print_numbers(numbers)


def _regulariser(run: "TrainedRun", seed: int) -> "tuple[Bmi, SentencePairs, SentenceEnd]":
    """The run's critic, its pairs of sentences in an order of `seed`, and where such sentences end.

    A sentence that the model draws is no longer than the longest that it has learnt from.
    """
    import numpy as np

    from infolm.data.episodes import token_number
    from infolm.data.pairs import SentencePairs
    from infolm.evaluation.gradient_variance import SentenceEnd
    from infolm.experiment import sentences_of

    bmi = run.bmi()
    config = bmi.config
    text, tokenizer = sentences_of(config, run.corpus), run.tokenizer
    ends = [token_number(end, tokenizer, "regularisers.bmi.ends") for end in config.ends]
    stops = () if config.segment else (tokenizer.eos, *ends)
    end = SentenceEnd(tokenizer.eos, stops, int(np.diff(text.bounds).max()))
    return bmi, SentencePairs(text, config.batch, config.geometric, seed), end


def _print_numbers(numbers: dict[str, Any]) -> None:
    def spread(name: str) -> str:
        return f"10^({numbers[name]:.2f} ± {numbers[f'{name}_stderr']:.2f})"

    def error(name: str) -> str:
        value = numbers[f"{name}_relative_error"]
        least = numbers[f"{name}_relative_error_at_least"]
        return f"{value:.3g}" if value else f"above {least:.3g}, its mean not told from 0"

    quantiles = numbers["quantiles"]
    ratio = numbers["relative_error_ratio"]
    least = numbers["relative_error_ratio_at_least"]
    ratio = f"{ratio:.3g}" if ratio else f"above {least:.3g}" if least else "not known"
    print_table(
        ["policy gradient / IW-RAML", "measured", "paper"],
        [
            ["variance of a weight, mean ratio", f"{numbers['mean_ratio']:,.4g}", "above 10^4"],
            ["mean of its logarithm", spread("mean_log10"), ""],
            ["median ratio", spread("median_log10"), ""],
            ["from 1% to 99%", f"{quantiles['0.01']:.3g} to {quantiles['0.99']:.3g}", ""],
            ["weights above 1", f"{numbers['above_1']:.1%}", "almost all"],
            ["weights above 10", f"{numbers['above_10']:.1%}", ""],
            ["weights below 0.1", f"{numbers['below_0.1']:.1%}", ""],
            ["squared relative error, policy gradient", error("rl"), ""],
            ["squared relative error, IW-RAML", error("raml"), ""],
            ["their ratio", ratio, ""],
        ],
    )
    print(
        f"{numbers['compared']:,} of {numbers['weights']:,} weights; of the others "
        f"{numbers['unused']:,} vary in neither, {numbers['rl_only']:,} in the policy gradient "
        f"alone, {numbers['raml_only']:,} in IW-RAML alone"
    )
    plain = "" if numbers["baseline"] else "policy gradient without its baseline; "
    print(
        f"{plain}{numbers['batches']:,} batches of {numbers['pairs']:,} pairs; the model's "
        f"sentences have {numbers['longest']:,} tokens at most; {numbers['picture']}"
    )
