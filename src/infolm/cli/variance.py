"""`infolm variance`: the gradient noise of several estimators."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from infolm.cli.app import JsonOption, RunArgument, app, print_table
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.data.pairs import NeighbourPairs
    from infolm.evaluation.gradient_variance import SentenceEnd
    from infolm.evaluation.signal import Signal
    from infolm.families.base import Run
    from infolm.families.running.run import LanguageRun
    from infolm.objectives.bmi import Bmi
    from infolm.objectives.monte_carlo import MonteCarloConfig

SAMPLES = "1,4,16"


@app.command()
def variance(
    run: RunArgument,
    batches: Annotated[int, typer.Option(help="Gradients per estimator; at least 8.")] = 200,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="The picture.", show_default="RUN/variance.png"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")] = 1,
    plain: Annotated[
        bool, typer.Option("--no-baseline", help="BMI: the policy gradient without its baseline.")
    ] = False,
    samples: Annotated[
        str | None,
        typer.Option(
            metavar="K,K,...",
            help="Monte Carlo objectives: numbers of codes per sentence.",
            show_default=SAMPLES,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the gradient noise of several estimators, and draw it.

    A run with objective.kind monte-carlo: the signal-to-noise ratio of each estimator that its
    codes allow, with few and many samples. A run with regularisers.bmi: the variance of each
    parameter's gradient in the second phase, policy gradient over importance-weighted RAML. The run
    does not change.
    """
    from infolm.families.base import open_run
    from infolm.families.running.run import LanguageRun

    try:
        import infolm.reports.variance  # noqa: F401
    except ModuleNotFoundError:
        raise InfolmError(
            "the picture needs matplotlib: install it with `pip install 'infolm[report]'`"
        ) from None

    picture = out or run / "variance.png"
    if picture.suffix != ".png" or not picture.absolute().parent.is_dir():
        raise InfolmError(f"--out {picture}: name a .png file in a folder that exists")
    opened = open_run(run)
    if opened.recipe.objective.kind == "monte-carlo":
        if plain:
            raise InfolmError(
                "--no-baseline is for runs with BMI, and this run has none: leave it out"
            )
        _compare_estimators(opened, samples or SAMPLES, batches, seed, picture, as_json)
    elif samples is not None:
        raise InfolmError(
            "--samples is for runs with objective.kind monte-carlo, and this run has "
            f"{opened.recipe.objective.kind}: leave it out"
        )
    else:
        _compare_policy(LanguageRun.open(run), batches, seed, not plain, picture, as_json)


# -- Monte Carlo objectives -----------------------------------------------------------------


def _compare_estimators(
    opened: "Run", samples: str, draws: int, seed: int, picture: Path, as_json: bool
) -> None:
    from dataclasses import asdict

    from infolm.console import StageBars
    from infolm.evaluation.signal import signal_to_noise
    from infolm.models.latent import LatentModel
    from infolm.objectives.monte_carlo import MonteCarloConfig
    from infolm.reports.variance import draw_signals
    from infolm.training.loop import tensors

    recipe, model = opened.recipe, cast(LatentModel, opened.model)
    own = cast(MonteCarloConfig, recipe.objective)
    configs = _alternatives(own, model.config.latent.kind, _counts(samples))
    feed = recipe.feed.build(opened.corpus, "train", seed)
    batch = tensors(feed.next(), model.embedding.device)
    with StageBars() as stages:
        found = signal_to_noise(
            model,
            batch,
            configs,
            draws,
            seed,
            lambda done, total: stages("taking gradients", done, total),
        )
    rows = list(zip(configs, found, strict=True))
    draw_signals([(config.estimator, config.samples, each) for config, each in rows], picture)
    about = {
        "augment": own.augment,
        "lambda": own.weight,
        "alpha": own.alpha,
        "sentences": batch.sentences,
        "draws": draws,
        "seed": seed,
        "picture": str(picture),
    }
    if as_json:
        estimators = [
            {
                "estimator": config.estimator,
                "samples": config.samples,
                "encoder": asdict(each.encoder),
                "decoder": asdict(each.decoder),
            }
            for config, each in rows
        ]
        print(json.dumps({"estimators": estimators, **about}, indent=2))
        return
    print_table(
        ["estimator", "samples", "encoder's ratio", "|mean|²", "noise", "decoder's ratio", "noise"],
        [
            [config.estimator, str(config.samples), *_told(each.encoder), *_told(each.decoder)[::2]]
            for config, each in rows
        ],
        {1, 2, 3, 4, 5, 6},
    )
    _print_about(about)


def _counts(samples: str) -> list[int]:
    try:
        counts = sorted({int(count) for count in samples.split(",")})
    except ValueError:
        counts = [0]
    if counts[0] < 1:
        raise InfolmError(f"--samples are whole numbers above 0, as in {SAMPLES}, not '{samples}'")
    return counts


def _alternatives(own: "MonteCarloConfig", codes: str, counts: list[int]) -> "list[Any]":
    """The objective of `own` with each estimator that such codes allow and each sample count."""
    from typing import get_args

    from infolm.objectives.estimators import REPARAMETRISED, Estimator

    return [
        own.model_copy(update={"estimator": estimator, "samples": count, "mi_samples": None})
        for estimator in get_args(Estimator)
        if codes == "gaussian" or estimator not in REPARAMETRISED
        for count in counts
        if estimator != "vimco" or count > 1
    ]


def _told(signal: "Signal") -> list[str]:
    """The ratio, the squared mean and the noise, with their standard errors."""
    return [
        f"{signal.ratio:.3f} ± {signal.ratio_stderr:.3f}",
        f"{signal.signal:.3g} ± {signal.signal_stderr:.1g}",
        f"{signal.noise:.3g} ± {signal.noise_stderr:.1g}",
    ]


def _print_about(about: dict[str, Any]) -> None:
    from infolm.evaluation.signal import floor

    keys = {"kl": ["lambda"], "renyi": ["lambda", "alpha"], "power": ["alpha"]}
    told = [f", {key} {about[key]:g}" for key in keys.get(about["augment"], [])]
    print(
        f"augment {about['augment']}{''.join(told)}; {about['draws']:,} draws of a batch of "
        f"{about['sentences']:,} sentences; {about['picture']}"
    )
    print(
        "ratio: the mean of |mean| / standard deviation over the parameters; without a signal "
        f"this many draws give {floor(about['draws']):.3f}"
    )
    print("noise: the sum of the variances of all parameters")


# -- BMI ------------------------------------------------------------------------------------


def _compare_policy(
    opened: "LanguageRun", batches: int, seed: int, baseline: bool, picture: Path, as_json: bool
) -> None:
    from infolm.console import StageBars
    from infolm.evaluation.gradient_variance import compare, estimators
    from infolm.reports.variance import draw

    bmi, feed, end = _regulariser(opened, seed)
    rl, raml = estimators(opened.model, bmi, feed, end, seed, baseline)
    with StageBars() as stages:
        found = compare(
            rl, raml, batches, lambda done, total: stages("taking gradients", done, total)
        )
    draw(found, feed.batch, picture)
    about = {
        "baseline": baseline,
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


def _regulariser(run: "LanguageRun", seed: int) -> "tuple[Bmi, NeighbourPairs, SentenceEnd]":
    """The run's critic, its pairs of sentences in an order drawn with `seed`, and their end rule.

    A sentence drawn from the model is at most as long as the longest training sentence.
    """
    import numpy as np

    from infolm.data.pairs import NeighbourPairs
    from infolm.evaluation.gradient_variance import SentenceEnd

    bmi = run.bmi()
    config = bmi.config
    text, tokenizer = config.text(run.corpus), run.tokenizer
    ends = [tokenizer.number(end, "regularisers.bmi.ends") for end in config.ends]
    stops = () if config.segment else (tokenizer.eos, *ends)
    end = SentenceEnd(tokenizer.eos, stops, int(np.diff(text.bounds).max()))
    return bmi, NeighbourPairs(text, config.batch, config.geometric, seed), end


def _print_numbers(numbers: dict[str, Any]) -> None:
    def spread(name: str) -> str:
        return f"10^({numbers[name]:.2f} ± {numbers[f'{name}_stderr']:.2f})"

    def error(name: str) -> str:
        value = numbers[f"{name}_relative_error"]
        least = numbers[f"{name}_relative_error_at_least"]
        return (
            f"{value:.3g}" if value else (f"above {least:.3g}, its mean not distinguishable from 0")
        )

    quantiles = numbers["quantiles"]
    ratio = numbers["relative_error_ratio"]
    least = numbers["relative_error_ratio_at_least"]
    ratio = f"{ratio:.3g}" if ratio else f"above {least:.3g}" if least else "not known"
    print_table(
        ["policy gradient / IW-RAML", "measured", "paper"],
        [
            [
                "variance of a parameter's gradient, mean ratio",
                f"{numbers['mean_ratio']:,.4g}",
                "above 10^4",
            ],
            ["mean of its logarithm", spread("mean_log10"), ""],
            ["median ratio", spread("median_log10"), ""],
            ["from 1% to 99%", f"{quantiles['0.01']:.3g} to {quantiles['0.99']:.3g}", ""],
            ["parameters above 1", f"{numbers['above_1']:.1%}", "almost all"],
            ["parameters above 10", f"{numbers['above_10']:.1%}", ""],
            ["parameters below 0.1", f"{numbers['below_0.1']:.1%}", ""],
            ["squared relative error, policy gradient", error("rl"), ""],
            ["squared relative error, IW-RAML", error("raml"), ""],
            ["their ratio", ratio, ""],
        ],
    )
    print(
        f"{numbers['compared']:,} of {numbers['weights']:,} parameters; of the others "
        f"{numbers['unused']:,} vary in neither, {numbers['rl_only']:,} in the policy gradient "
        f"alone, {numbers['raml_only']:,} in IW-RAML alone"
    )
    plain = "" if numbers["baseline"] else "policy gradient without its baseline; "
    print(
        f"{plain}{numbers['batches']:,} batches of {numbers['pairs']:,} pairs; the model's "
        f"sentences have at most {numbers['longest']:,} tokens; {numbers['picture']}"
    )
