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

METHODS, WRITTEN, TALK = "Methods", "What the model writes", "Talk"
TUNE, TUNED = "tune", "tuned"
"""Requests for settings found on the validation split: now, or before if they still hold."""

OF_CACHE = Needs(lambda o: o.cache, "--words compares with the cache: add --cache")
OF_DYNAMIC = Needs(
    lambda o: o.dynamic,
    "--segment, --dynamic-rule, --dynamic-mean and --dynamic-statistics are of dynamic "
    "evaluation: add --dynamic",
)
OF_RMS = Needs(
    lambda o: o.dynamic_rule == "rms",
    "--dynamic-mean and --dynamic-statistics are of the rule rms: leave out --dynamic-rule sgd",
)
OF_MC = Needs(lambda o: o.mc, "--mc-rate is of Monte Carlo dropout: add --mc 200")
OF_MC_DYNAMIC = Needs(
    lambda o: o.mc and o.dynamic,
    "--mc-adaptation is of Monte Carlo dropout with dynamic evaluation: add --mc 200 --dynamic",
)
OF_TEMPERATURE = Needs(
    lambda o: o.temperature,
    "--tempering is of the softmax's temperature: add --temperature",
)
OF_TEXT = Needs(
    lambda o: o.writes, "--generated and --real are of what the model writes: add --reverse"
)
OF_REVERSE = Needs(lambda o: o.reverse, "--yardstick is of the reverse perplexity: add --reverse")
OF_MI = Needs(lambda o: o.mi, "--stride is of the mutual information: add --mi")

OF_ONE = Needs(lambda o: o.num == 1, "--stream and --interactive write one text: leave out --num")
OF_NO_PROMPT = Needs(
    lambda o: not o.prompt, "--interactive reads prompts as you type them: leave out --prompt"
)
NO_OWN = Needs(
    lambda o: not (o.writes or o.episodic or o.words),
    "--text measures another text: leave out --episodic, --words, --reverse and --mi",
)
OF_OTHER = Needs(lambda o: o.text is not None, "--field is of another text: add --text FILE")

Cache = Annotated[
    str | None,
    Option(
        "With a neural cache, tuned on the validation split unless given.",
        metavar="[tune|WINDOW,LAMBDA,THETA]",
        alone=TUNED,
    ),
]


@EVALUATING.register
@dataclass(frozen=True, kw_only=True)
class LanguageEvaluateOptions(EvaluateOptions):
    """What is measured besides the static model; None, 0 or False: not that.

    temperature, dynamic, cache, mc_rate: TUNE, TUNED or values.
    """

    kind = "language"

    text: Annotated[
        str | None,
        Option(
            "Instead of the run's own splits, another text, or another corpus by its name.",
            metavar="FILE|CORPUS",
            needs=(NO_OWN,),
        ),
    ] = None
    field: Annotated[
        str,
        Option(
            "The field of JSON lines, or the column of Parquet, that --text is.", needs=(OF_OTHER,)
        ),
    ] = "text"
    chunk: Annotated[
        int, Option("Tokens read at a time; the result does not depend on it.", least=1)
    ] = 200
    streams: Annotated[
        int, Option("Read so many parts side by side: faster, approximate.", least=1)
    ] = 1
    temperature: Annotated[
        str | None,
        Option(
            "With the softmax at this temperature, tuned unless given.",
            metavar="[tune|VALUE]",
            panel=METHODS,
            alone=TUNED,
        ),
    ] = None
    tempering: Annotated[
        Literal["mixture", "expert"],
        Option(
            "--temperature of the mixture of softmaxes, or within each of them.",
            panel=METHODS,
            needs=(OF_TEMPERATURE,),
        ),
    ] = "mixture"
    dynamic: Annotated[
        str | None,
        Option(
            "With weights that learn from the text as they go on, tuned unless given.",
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
            "Tokens from one update of --dynamic to the next.",
            least=1,
            usual="tuned; 20, or 50 characters, with values given",
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
            "Rule rms: RMS is of so many batches of the training split, or of all, of COLUMNS "
            "x STEPS tokens (Melis: all,1024).",
            metavar="BATCHES[,COLUMNS[,STEPS]]",
            panel=METHODS,
            needs=(OF_DYNAMIC, OF_RMS),
        ),
    ] = "200,64,20"
    mc: Annotated[
        int,
        Option(
            "With probabilities averaged over so many dropout masks.",
            metavar="MASKS",
            least=0,
            most=10_000,
            panel=METHODS,
        ),
    ] = 0
    mc_rate: Annotated[
        str,
        Option(
            "Times the dropout rates, in --mc.",
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
    episodic: Annotated[bool, Option("Each sentence by itself, the state starting anew.")] = False
    words: Annotated[
        int,
        Option(
            "Show so many words that the cache helps and hurts most.", least=0, needs=(OF_CACHE,)
        ),
    ] = 0
    baseline: Annotated[bool, Option("Also a Kneser-Ney 5-gram model of the same text.")] = False
    reverse: Annotated[
        bool,
        Option(
            "Reverse perplexity: that of a fresh model which has learnt from its text.",
            panel=WRITTEN,
        ),
    ] = False
    mi: Annotated[bool, Option("Mutual information of passages of its text.", panel=WRITTEN)] = (
        False
    )
    generated: Annotated[
        int,
        Option(
            "How long its text is.",
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
            "Also the same of as many tokens of the training text, to compare.",
            panel=WRITTEN,
            needs=(OF_TEXT,),
        ),
    ] = False
    yardstick: Annotated[
        str,
        Option(
            "Size of the fresh model of --reverse.",
            metavar="[LAYERSx]UNITS",
            panel=WRITTEN,
            needs=(OF_REVERSE,),
        ),
    ] = "1x100"
    stride: Annotated[
        int | None,
        Option(
            "From pair to pair that --mi learns from; those read share no token.",
            metavar="TOKENS",
            least=1,
            usual="15",
            panel=WRITTEN,
            needs=(OF_MI,),
        ),
    ] = None

    @property
    def shared(self) -> bool:
        """Streams are dealt out to the processes; nothing else is."""
        return self.streams > 1 and not (self.writes or self.baseline)

    @property
    def writes(self) -> bool:
        """Whether the model's own text is measured."""
        return self.reverse or self.mi


MOST_TOKENS = 100_000_000
"""Of all samples together: they are in memory until the last is written."""


@dataclass(frozen=True, kw_only=True)
class _Prompted(Options):
    """What the text begins with. A base of its own, so that help lists it first."""

    prompt: Annotated[str, Option("Text to go on from; none: a new line.")] = ""
    no_echo: Annotated[bool, Option("Do not print the prompt before what follows it.")] = False
    stream: Annotated[
        bool, Option("Print the text while it is written.", panel=TALK, needs=(OF_ONE,))
    ] = False
    interactive: Annotated[
        bool,
        Option(
            "Read prompts, a line each, until an empty line or the end.",
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
                f"tokens, and one command writes {MOST_TOKENS:,} at most: lower --num or --tokens, "
                "and take another --seed for more"
            )
