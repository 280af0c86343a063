"""`infolm evaluate`, `generate` and `report`: what one does with a trained run."""

import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

import typer

from infolm.cli.app import CHUNK, CacheOption, JsonOption, RunArgument, app, print_table
from infolm.cli.latent import (
    AggregatedOption,
    AnswerOption,
    BleuWordsOption,
    Code,
    CodeOption,
    CodesOption,
    CompetitorOption,
    DeviationOption,
    InterpolateOption,
    LongestOption,
    NeighboursOption,
    NoEosOption,
    NzOption,
    PerturbOption,
    RankOption,
    ReconstructOption,
    SampledOption,
    ScaleOption,
    SentencesOption,
    StepsOption,
    UnknownOption,
    Wanted,
    Words,
    evaluate_sentences,
    generate_sentences,
    refuse,
)
from infolm.errors import InfolmError

METHODS, WRITTEN = "Methods", "What the model writes"
NO_CODE = "{} has no latent code: take a run whose model.kind is sentence, or leave this out"
NO_TEXT = "{} is a model of single sentences and reads no running text: leave this out"
ENCODES = "{} is an encoder, which is measured by its objective alone: leave this out"


class Rule(StrEnum):
    """How dynamic evaluation updates the weights."""

    rms = "rms"
    sgd = "sgd"


class Mean(StrEnum):
    """What the mean of RMS is over."""

    all = "all"
    tensor = "tensor"


class AdaptedBy(StrEnum):
    """Whose gradient moves a mask's weights in --dynamic with --mc."""

    own = "own"
    shared = "shared"


class Tempering(StrEnum):
    """What a temperature acts on."""

    mixture = "mixture"
    expert = "expert"


@app.command()
def evaluate(
    run: RunArgument,
    split: Annotated[
        str | None,
        typer.Option(
            help="valid or test; of a model with a latent code also train.", show_default="both"
        ),
    ] = None,
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
    tempering: Annotated[
        Tempering,
        typer.Option(
            help="--temperature of the mixture of softmaxes, or within each of them.",
            rich_help_panel=METHODS,
        ),
    ] = Tempering.mixture,
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
    dynamic_mean: Annotated[
        Mean,
        typer.Option(
            help="Rule rms: the decay is relative to the mean of RMS over all parameters (Melis), "
            "or over those of the same tensor (Krause).",
            rich_help_panel=METHODS,
        ),
    ] = Mean.all,
    dynamic_statistics: Annotated[
        str,
        typer.Option(
            metavar="BATCHES[,COLUMNS[,STEPS]]",
            help="Rule rms: RMS is of so many batches of the training split, or of all, of COLUMNS "
            "x STEPS tokens (Melis: all,1024).",
            rich_help_panel=METHODS,
        ),
    ] = "200,64,20",
    mc: Annotated[
        int,
        typer.Option(
            min=0,
            max=10_000,
            metavar="MASKS",
            help="With probabilities averaged over so many dropout masks.",
            rich_help_panel=METHODS,
        ),
    ] = 0,
    mc_rate: Annotated[
        str,
        typer.Option(
            metavar="[tune|FACTOR]",
            help="Times the dropout rates, in --mc.",
            rich_help_panel=METHODS,
        ),
    ] = "1",
    mc_adaptation: Annotated[
        AdaptedBy,
        typer.Option(
            help="--mc with --dynamic: each mask adapts by its own gradient, or all share one "
            "adaptation without dropout, which is cheaper.",
            rich_help_panel=METHODS,
        ),
    ] = AdaptedBy.own,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the random numbers of --mc, --reverse and --mi.")
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
    reverse: Annotated[
        bool,
        typer.Option(
            "--reverse",
            help="Reverse perplexity: that of a fresh model which has learnt from its text.",
            rich_help_panel=WRITTEN,
        ),
    ] = False,
    information: Annotated[
        bool,
        typer.Option(
            "--mi", help="Mutual information of passages of its text.", rich_help_panel=WRITTEN
        ),
    ] = False,
    generated: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10**9,
            metavar="TOKENS",
            help="How long its text is.",
            show_default="200000",
            rich_help_panel=WRITTEN,
        ),
    ] = None,
    real: Annotated[
        bool,
        typer.Option(
            "--real",
            help="Also the same of as many tokens of the training text, to compare.",
            rich_help_panel=WRITTEN,
        ),
    ] = False,
    yardstick: Annotated[
        str | None,
        typer.Option(
            metavar="[LAYERSx]UNITS",
            help="Size of the fresh model of --reverse.",
            show_default="1x100",
            rich_help_panel=WRITTEN,
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="TOKENS",
            help="From pair to pair that --mi learns from; those read share no token.",
            show_default="15",
            rich_help_panel=WRITTEN,
        ),
    ] = None,
    rank: RankOption = None,
    no_eos: NoEosOption = False,
    codes: CodesOption = 100,
    nz: NzOption = 5,
    sentences: SentencesOption = 500,
    bleu_words: BleuWordsOption = Words.likeliest,
    code: CodeOption = Code.mean,
    competitor: CompetitorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a trained model on its corpus: perplexity and its kin, each with its convention.

    Methods combine: the result has the model as it is, each method alone, and all together.
    What is tuned is tuned on the validation split, and kept in the run's folder.

    \b
    infolm evaluate RUN --dynamic --mc 200 --temperature tune --cache tune

    \b
    --cache, --dynamic, --temperature and --mc-rate may stand alone: as tuned before, or else now.

    \b
    infolm evaluate RUN --reverse --mi --real

    \b
    Of a model with a latent code: bounds on the likelihood, what its codes tell, BLEU.

    \b
    Of an encoder: how well it tells what is hidden, by its objective and among all words.
    """
    from infolm.console import StageBars, err
    from infolm.evaluation import measurement
    from infolm.evaluation.dynamic import USUAL
    from infolm.evaluation.latent_suite import LatentSettings
    from infolm.evaluation.reverse import SMALL, Yardstick
    from infolm.families.base import open_run
    from infolm.families.contrastive.run import EncoderRun
    from infolm.families.latent.run import LatentRun
    from infolm.families.running.run import GENERATED, Asked, LanguageRun, statistics_settings

    if split not in (None, "train", "valid", "test"):
        raise InfolmError(
            f"--split is valid or test, or train of a model with a latent code, not '{split}'"
        )
    if words and not cache:
        raise InfolmError("--words compares with the cache: add --cache")
    statistics = statistics_settings(dynamic_statistics)
    of_rms = dynamic_mean != Mean.all or statistics != USUAL
    if not dynamic and (segment or dynamic_rule != Rule.rms or of_rms):
        raise InfolmError(
            "--segment, --dynamic-rule, --dynamic-mean and --dynamic-statistics are of dynamic "
            "evaluation: add --dynamic"
        )
    if of_rms and dynamic_rule != Rule.rms:
        raise InfolmError(
            "--dynamic-mean and --dynamic-statistics are of the rule rms: leave out "
            f"--dynamic-rule {dynamic_rule.value}"
        )
    if not mc and mc_rate != "1":
        raise InfolmError("--mc-rate is of Monte Carlo dropout: add --mc 200")
    if not (mc and dynamic) and mc_adaptation != AdaptedBy.own:
        raise InfolmError(
            "--mc-adaptation is of Monte Carlo dropout with dynamic evaluation: add --mc 200 "
            "--dynamic"
        )
    if not temperature and tempering != Tempering.mixture:
        raise InfolmError("--tempering is of the softmax's temperature: add --temperature")
    if not (reverse or information) and (generated or real):
        raise InfolmError("--generated and --real are of what the model writes: add --reverse")
    if yardstick and not reverse:
        raise InfolmError("--yardstick is of the reverse perplexity: add --reverse")
    if stride and not information:
        raise InfolmError("--stride is of the mutual information: add --mi")
    asked = Asked(
        temperature=temperature,
        tempering=tempering.value,
        dynamic=dynamic,
        rule=dynamic_rule.value,
        segment=segment,
        mean=dynamic_mean.value,
        statistics=statistics,
        monte_carlo=mc,
        rate=mc_rate,
        adaptation=mc_adaptation.value,
        seed=seed,
        cache=cache,
        episodic=episodic,
        reverse=reverse,
        information=information,
        generated=generated or GENERATED,
        real=real,
        yardstick=Yardstick.parse(yardstick) if yardstick else SMALL,
        stride=stride,
    )
    opened, splits = open_run(run), [split] if split else ["valid", "test"]
    if split == "train" and isinstance(opened, LanguageRun | EncoderRun):
        raise InfolmError(
            f"--split is valid or test: {run} has no latent code, so train is refused"
        )
    changes: list[Any] = []
    warnings: list[str] = []
    own = {"--rank": rank, "--no-eos": no_eos, "--competitor": competitor}
    own |= {"--z": code == Code.sampled, "--bleu-words": bleu_words == Words.sampled}
    own |= {"--nz": nz != 5, "--sentences": sentences != 500}
    running = {"--temperature": temperature, "--dynamic": dynamic, "--mc": mc, "--cache": cache}
    running |= {"--episodic": episodic, "--streams": streams > 1, "--baseline": baseline}
    running |= {"--reverse": reverse, "--mi": information}
    not_kept = None
    try:
        if isinstance(opened, LanguageRun):
            refuse(own, NO_CODE.format(run))
            with StageBars() as stages:
                evaluation = opened.evaluate(splits, asked, chunk, streams, baseline, stages)
            results, warnings = evaluation.measurements, evaluation.warnings
            changes = evaluation.extra["words"]
        elif isinstance(opened, EncoderRun):
            refuse(own | running, ENCODES.format(run))
            with StageBars() as stages:
                results = opened.evaluate(splits, stages)
        else:
            assert isinstance(opened, LatentRun)
            refuse(running, NO_TEXT.format(run))
            latent = LatentSettings(
                samples=nz,
                weighted_samples=codes,
                weighted_sentences=sentences,
                eos=not no_eos,
                seed=seed,
                competitor=competitor,
                sampled_words=bleu_words == Words.sampled,
            )
            results, warnings = evaluate_sentences(opened, splits, rank, code, latent)
    except measurement.NotKeptError as error:
        results, not_kept = error.measurements, error
    for warning in warnings:
        err.print(f"{warning}.")
    if as_json:
        print(measurement.as_json(results))
    else:
        _print_measurements(results)
        if words and changes:
            _print_words(changes, opened.tokenizer, words)
    if not_kept:
        raise not_kept


def _print_measurements(results: list[Any]) -> None:
    def number(value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:.4g}" if value < 100 else f"{value:.2f}" if value < 1e6 else f"{value:.2e}"

    print_table(
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
    conventions: dict[str, list[Any]] = {}
    for r in results:
        conventions.setdefault(r.convention, []).append(r)
    # Named by the methods they are of, or by the metrics where one method has several.
    methods = [{r.method for r in found} for found in conventions.values()]
    several = sum(map(len, methods)) > len(set().union(*methods))
    for convention, found in conventions.items():
        names = dict.fromkeys(r.metric if several else r.method for r in found)
        of = f" of {'; '.join(names)}" if len(conventions) > 1 else ""
        print(f"convention{of}: {convention}")


def _print_words(changes: list[Any], tokenizer: Any, number: int) -> None:
    """Table 3 of Merity et al. (2017): where the cache helps, and where it hurts."""
    hurt, helped = changes[::-1][:number], changes[:number]
    print_table(
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


@app.command()
def generate(
    run: RunArgument,
    prompt: Annotated[str, typer.Option(help="Text to go on from; none: a new line.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each sample.")] = 100,
    num: Annotated[int, typer.Option(min=1, help="How many samples.")] = 1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 1,
    temperature: Annotated[float, typer.Option(help="Below 1 safer, above 1 wilder.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Among the K likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus: the likeliest with mass P.")] = None,
    eta: Annotated[float | None, typer.Option(help="Eta sampling with this epsilon.")] = None,
    typical: Annotated[float | None, typer.Option(help="Locally typical with mass P.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the likeliest token.")] = False,
    no_unk: Annotated[bool, typer.Option("--no-unk", help="Never write <unk>.")] = False,
    cache: CacheOption = None,
    interpolate: InterpolateOption = None,
    steps: StepsOption = 9,
    reconstruct: ReconstructOption = None,
    perturb: PerturbOption = None,
    scale: ScaleOption = 10.0,
    neighbours: NeighboursOption = None,
    answer: AnswerOption = None,
    deviation: DeviationOption = None,
    aggregated: AggregatedOption = False,
    sampled: SampledOption = False,
    longest: LongestOption = None,
    unknown: UnknownOption = False,
    code: CodeOption = Code.mean,
    as_json: JsonOption = False,
) -> None:
    """Write text with a trained model.

    \b
    Of a model with a latent code, sentences from codes:
    infolm generate RUN --interpolate "the first sentence" "and the last" --steps 9
    """
    from infolm.console import StageBars
    from infolm.families.base import open_run
    from infolm.families.contrastive.run import EncoderRun
    from infolm.families.latent.run import LatentRun
    from infolm.families.running.run import LanguageRun
    from infolm.generation.sampling import SamplingSettings
    from infolm.generation.text import writing

    wanted = Wanted(
        interpolate,
        steps,
        reconstruct,
        perturb,
        scale,
        neighbours,
        answer,
        deviation,
        aggregated,
        num,
        code,
    )
    opened = open_run(run)
    if isinstance(opened, EncoderRun):
        raise InfolmError(
            f"{run} is an encoder, which reads text and writes none: take a run of a language "
            "model, or fine-tune this one with `infolm finetune`"
        )
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
    if isinstance(opened, LatentRun):
        refuse({"--prompt": prompt, "--cache": cache}, NO_TEXT.format(run))
        drawing = sampled or temperature != 1 or any((top_k, top_p, eta, typical))
        settings = settings if drawing else replace(settings, greedy=True)
        generate_sentences(opened, wanted, settings, seed, longest, unknown, as_json)
        return
    given = wanted.asked | {"--sampled": sampled, "--longest": longest, "--unknown": unknown}
    given |= {"--z": code == Code.sampled}
    refuse(given, NO_CODE.format(run))
    assert isinstance(opened, LanguageRun)
    with StageBars() as stages:
        recent = opened.cache_settings(cache, CHUNK, stages) if cache else None
    samples = writing(opened.model, opened.tokenizer, prompt, tokens, num, seed, settings, recent)
    if as_json:
        for i, text in enumerate(samples):  # as json.dumps has it, each as soon as it is there
            one = indent(json.dumps({"prompt": prompt, "text": text}, indent=2), "  ")
            print(f"{',' if i else '['}\n{one}", end="")
        print("\n]")
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
    from infolm.families.report import write_report

    written = [str(write_report(run)) for run in runs]
    print(json.dumps(written) if as_json else "\n".join(written))
