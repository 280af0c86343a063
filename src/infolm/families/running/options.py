"""The options of a language model of running text."""

from dataclasses import dataclass
from typing import Annotated, Literal

from infolm.errors import InfolmError
from infolm.families.options import (
    EVALUATING,
    GENERATING,
    EvaluateOptions,
    Needs,
    Option,
    Options,
    SamplingOptions,
    Seed,
)

METHODS, WRITTEN, TALK = "Methods", "Generated text", "Interaction"
TUNE, TUNED = "tune", "tuned"
"""Requests for settings tuned on the validation split: now, or before if still valid."""

OF_CACHE = Needs(lambda o: o.cache, "--words compares with the cache: add --cache")
OF_DYNAMIC = Needs(
    lambda o: o.dynamic,
    "--segment, --dynamic-rule, --dynamic-mean and --dynamic-statistics are for dynamic "
    "evaluation: add --dynamic",
)
OF_RMS = Needs(
    lambda o: o.dynamic_rule == "rms",
    "--dynamic-mean and --dynamic-statistics are for the rule rms: leave out --dynamic-rule sgd",
)
OF_MC = Needs(lambda o: o.mc, "--mc-rate is for Monte Carlo dropout: add --mc 200")
OF_MC_DYNAMIC = Needs(
    lambda o: o.mc and o.dynamic,
    "--mc-adaptation is for Monte Carlo dropout with dynamic evaluation: add --mc 200 --dynamic",
)
OF_TEMPERATURE = Needs(
    lambda o: o.temperature,
    "--tempering is for the softmax's temperature: add --temperature",
)
OF_TEXT = Needs(
    lambda o: o.writes,
    "--generated and --real are for --reverse and --mi: add --reverse or --mi",
)
OF_REVERSE = Needs(lambda o: o.reverse, "--yardstick is for the reverse perplexity: add --reverse")
OF_MI = Needs(lambda o: o.mi, "--stride is for the mutual information: add --mi")

OF_ONE = Needs(lambda o: o.num == 1, "--stream and --interactive write one text: leave out --num")
OF_NO_PROMPT = Needs(
    lambda o: not o.prompt, "--interactive reads prompts as you type them: leave out --prompt"
)
NO_OWN = Needs(
    lambda o: not (o.writes or o.episodic or o.words),
    "--text measures another text: leave out --episodic, --words, --reverse and --mi",
)
OF_OTHER = Needs(lambda o: o.text is not None, "--field is for --text: add --text FILE")

Cache = Annotated[
    str | None,
    Option(
        "Use a neural cache; tuned on the validation split without a value.",
        metavar="[tune|WINDOW,LAMBDA,THETA]",
        alone=TUNED,
    ),
]


@EVALUATING.register
@dataclass(frozen=True, kw_only=True)
class LanguageEvaluateOptions(EvaluateOptions):
    """The measurements besides the static model; None, 0 or False skips one.

    temperature, dynamic, cache, mc_rate: TUNE, TUNED or values.
    """

    kind = "language"

    text: Annotated[
        str | None,
        Option(
            "Measure another text or corpus instead of the run's own splits.",
            metavar="FILE|CORPUS",
            needs=(NO_OWN,),
        ),
    ] = None
    field: Annotated[
        str,
        Option(
            "With --text: the field of JSON lines, or the column of Parquet.", needs=(OF_OTHER,)
        ),
    ] = "text"
    chunk: Annotated[
        int, Option("Tokens read at a time; the result does not depend on it.", least=1)
    ] = 200
    streams: Annotated[
        int, Option("Read this many parts in parallel: faster, approximate.", least=1)
    ] = 1
    temperature: Annotated[
        str | None,
        Option(
            "Set the temperature of the softmax; tuned without a value.",
            metavar="[tune|VALUE]",
            panel=METHODS,
            alone=TUNED,
        ),
    ] = None
    tempering: Annotated[
        Literal["mixture", "expert"],
        Option(
            "Apply --temperature to the mixture of softmaxes, or within each of them.",
            panel=METHODS,
            needs=(OF_TEMPERATURE,),
        ),
    ] = "mixture"
    dynamic: Annotated[
        str | None,
        Option(
            "Dynamic evaluation: adapt the weights to the text while reading; tuned without a "
            "value.",
            metavar="[tune|RATE,DECAY[,EPSILON]]",
            panel=METHODS,
            alone=TUNED,
        ),
    ] = None
    dynamic_rule: Annotated[
        Literal["rms", "sgd"],
        Option("How --dynamic updates the weights.", panel=METHODS, needs=(OF_DYNAMIC,)),
    ] = "rms"
    segment: Annotated[
        int | None,
        Option(
            "Tokens between updates of --dynamic.",
            least=1,
            usual="tuned; with values given 20, or 50 characters",
            panel=METHODS,
            needs=(OF_DYNAMIC,),
        ),
    ] = None
    dynamic_mean: Annotated[
        Literal["all", "tensor"],
        Option(
            "Rule rms: the decay is relative to the mean of RMS over all parameters (Melis), "
            "or over those of the same tensor (Krause).",
            panel=METHODS,
            needs=(OF_DYNAMIC, OF_RMS),
        ),
    ] = "all"
    dynamic_statistics: Annotated[
        str,
        Option(
            "Rule rms: RMS over this many batches of the training split, or all, of COLUMNS "
            "x STEPS tokens (Melis: all,1024).",
            metavar="BATCHES[,COLUMNS[,STEPS]]",
            panel=METHODS,
            needs=(OF_DYNAMIC, OF_RMS),
        ),
    ] = "200,64,20"
    mc: Annotated[
        int,
        Option(
            "Average probabilities over this many dropout masks.",
            metavar="MASKS",
            least=0,
            most=10_000,
            panel=METHODS,
        ),
    ] = 0
    mc_rate: Annotated[
        str,
        Option(
            "With --mc: multiplies the dropout rates.",
            metavar="[tune|FACTOR]",
            panel=METHODS,
            alone=TUNED,
            needs=(OF_MC,),
        ),
    ] = "1"
    mc_adaptation: Annotated[
        Literal["own", "shared"],
        Option(
            "--mc with --dynamic: each mask adapts by its own gradient, or all share one "
            "adaptation without dropout, which is cheaper.",
            panel=METHODS,
            needs=(OF_MC_DYNAMIC,),
        ),
    ] = "own"
    seed: Seed = 1
    cache: Cache = None
    episodic: Annotated[bool, Option("Read each sentence by itself, from the initial state.")] = (
        False
    )
    words: Annotated[
        int,
        Option(
            "Show the words that the cache helps and hurts most, this many of each.",
            least=0,
            needs=(OF_CACHE,),
        ),
    ] = 0
    baseline: Annotated[
        bool, Option("Also measure a Kneser-Ney 5-gram model of the same text.")
    ] = False
    reverse: Annotated[
        bool,
        Option(
            "Reverse perplexity: that of a new model trained on generated text.",
            panel=WRITTEN,
        ),
    ] = False
    mi: Annotated[
        bool, Option("Mutual information of segments of generated text.", panel=WRITTEN)
    ] = False
    generated: Annotated[
        int,
        Option(
            "Tokens of the generated text.",
            metavar="TOKENS",
            least=1,
            most=100_000_000,
            panel=WRITTEN,
            needs=(OF_TEXT,),
        ),
    ] = 200_000
    real: Annotated[
        bool,
        Option(
            "Also measure as many tokens of the training text, to compare.",
            panel=WRITTEN,
            needs=(OF_TEXT,),
        ),
    ] = False
    yardstick: Annotated[
        str,
        Option(
            "Size of the new model of --reverse.",
            metavar="[LAYERSx]UNITS",
            panel=WRITTEN,
            needs=(OF_REVERSE,),
        ),
    ] = "1x100"
    stride: Annotated[
        int | None,
        Option(
            "Tokens between training pairs of --mi; test pairs share no token.",
            metavar="TOKENS",
            least=1,
            usual="15",
            panel=WRITTEN,
            needs=(OF_MI,),
        ),
    ] = None

    @property
    def shared(self) -> bool:
        """Only streams are divided among the processes."""
        return self.streams > 1 and not (self.writes or self.baseline)

    @property
    def writes(self) -> bool:
        """Whether the model's own text is measured."""
        return self.reverse or self.mi


MOST_TOKENS = 100_000_000
"""Maximum tokens of all samples together: they stay in memory until the last is done."""


@dataclass(frozen=True, kw_only=True)
class _Prompted(Options):
    """The prompt. A separate base class, so that help lists it first."""

    prompt: Annotated[str, Option("Text to continue; none starts a new line.")] = ""
    no_echo: Annotated[bool, Option("Do not print the prompt.")] = False
    stream: Annotated[
        bool, Option("Print the text while it is generated.", panel=TALK, needs=(OF_ONE,))
    ] = False
    interactive: Annotated[
        bool,
        Option(
            "Read prompts, one per line, until an empty line or the end.",
            panel=TALK,
            needs=(OF_ONE, OF_NO_PROMPT),
        ),
    ] = False
    tokens: Annotated[int, Option("Tokens of each sample.", least=1, most=1_000_000)] = 100


@GENERATING.register
@dataclass(frozen=True, kw_only=True)
class LanguageGenerateOptions(SamplingOptions, _Prompted):
    """Continuations of a prompt."""

    kind = "language"

    cache: Cache = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num * self.tokens > MOST_TOKENS:
            raise InfolmError(
                f"{self.num:,} samples of {self.tokens:,} tokens are {self.num * self.tokens:,} "
                f"tokens, and one command generates at most {MOST_TOKENS:,}: lower --num or "
                "--tokens, "
                "and use another --seed for more"
            )
