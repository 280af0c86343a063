"""The options of a model with a latent code."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from infolm.errors import InfolmError
from infolm.families.options import (
    EVALUATING,
    GENERATING,
    EvaluateOptions,
    Needs,
    Option,
    SamplingOptions,
    Seed,
    flag,
)

PANEL = "Models with a latent code"
NO_TEXT = "{} is a model of single sentences and reads no running text: leave this out"
NO_CODE = "{} has no latent code: choose a run whose model.kind is sentence, or leave this out"
Z = Literal["mean", "sampled"]
Z_HELP = (
    "Codes of --rank, --interpolate and --answer: the means of q(z | x), or drawn from it, as in "
    "the paper."
)

OF_RANK = Needs(lambda o: o.rank, "--z sampled is for --rank: add --rank")
OF_WAYS = Needs(
    lambda o: o.interpolate or o.answer,
    "--z sampled is for --interpolate and --answer: add one of them",
)


@EVALUATING.register
@dataclass(frozen=True, kw_only=True)
class LatentEvaluateOptions(EvaluateOptions):
    """The ranking of a file's answers, or all measurements of the splits."""

    kind = "latent"
    foreign = NO_TEXT
    elsewhere = NO_CODE
    measured = ("train", "valid", "test")

    seed: Seed = 1
    rank: Annotated[
        Path | None,
        Option(
            "Instead, rank candidate answers to the questions of a file in SQuAD's format, or with "
            "tab-separated lines of question, answer, 1 or 0.",
            metavar="FILE",
            panel=PANEL,
        ),
    ] = None
    no_eos: Annotated[
        bool,
        Option("Leave <eos> out of the losses and of the number of tokens.", panel=PANEL),
    ] = False
    codes: Annotated[
        int,
        Option(
            "Codes per sentence in the importance-weighted bound.",
            least=1,
            most=1_000_000,
            panel=PANEL,
        ),
    ] = 100
    nz: Annotated[
        int,
        Option(
            "Codes per sentence in reconstruction, ELBO and MELBO, the paper's N_z.",
            least=1,
            most=1_000_000,
            panel=PANEL,
        ),
    ] = 5
    sentences: Annotated[
        int,
        Option(
            "Maximum sentences of the importance-weighted bound, drawn from the split.",
            least=2,
            panel=PANEL,
        ),
    ] = 500
    bleu_words: Annotated[
        Literal["likeliest", "sampled"],
        Option(
            "Words of the reconstructions for BLEU: the likeliest, or drawn from p(x | z).",
            panel=PANEL,
        ),
    ] = "likeliest"
    z: Annotated[Z, Option(Z_HELP, panel=PANEL, needs=(OF_RANK,))] = "mean"
    competitor: Annotated[
        float | None,
        Option(
            "Find the number of sentences at which MELBO equals another model's loss, given in "
            "nats "
            "per sentence.",
            metavar="NLL",
            panel=PANEL,
        ),
    ] = None


@GENERATING.register
@dataclass(frozen=True, kw_only=True)
class LatentGenerateOptions(SamplingOptions):
    """Sentences from codes: `num` samples, or one of `ways`."""

    kind = "latent"
    foreign = NO_TEXT
    elsewhere = NO_CODE

    ways: ClassVar[tuple[str, ...]] = (
        *("interpolate", "reconstruct", "perturb", "neighbours", "answer"),
        *("deviation", "aggregated"),
    )
    """The alternatives to samples from the prior, one at a time."""

    interpolate: Annotated[
        tuple[str, str] | None,
        Option("Sentences between these two.", metavar="A B", panel=PANEL),
    ] = None
    steps: Annotated[
        int,
        Option(
            "With --interpolate: number of sentences, including both ends.",
            least=2,
            most=100_000,
            panel=PANEL,
        ),
    ] = 9
    reconstruct: Annotated[
        Path | None,
        Option("Reconstruct the sentences of a file, one per line.", metavar="FILE", panel=PANEL),
    ] = None
    perturb: Annotated[
        str | None,
        Option("Sentences from codes around this one's.", metavar="SENTENCE", panel=PANEL),
    ] = None
    scale: Annotated[
        float,
        Option(
            "With --perturb: multiplies the standard deviation of the code.", least=0, panel=PANEL
        ),
    ] = 10.0
    neighbours: Annotated[
        str | None,
        Option(
            "Find the training sentences whose codes are nearest to this one's.",
            metavar="SENTENCE",
            panel=PANEL,
        ),
    ] = None
    answer: Annotated[
        str | None,
        Option("Write a short, a medium and a long answer.", metavar="QUESTION", panel=PANEL),
    ] = None
    deviation: Annotated[
        float | None,
        Option(
            "Samples from Gaussian codes of N(0, deviation^2).",
            least=0,
            usual="1, the prior's; 0.1 for MIM",
            panel=PANEL,
        ),
    ] = None
    aggregated: Annotated[
        bool,
        Option("Samples from codes of training sentences, the aggregated posterior.", panel=PANEL),
    ] = False
    sampled: Annotated[
        bool,
        Option(
            "Draw words instead of taking the likeliest; --temperature and the like imply it.",
            panel=PANEL,
        ),
    ] = False
    longest: Annotated[
        int | None,
        Option(
            "Maximum tokens of a sentence.",
            least=1,
            most=10_000,
            usual="as in training",
            panel=PANEL,
        ),
    ] = None
    unknown: Annotated[bool, Option("Read unknown words as <unk>.", panel=PANEL)] = False
    z: Annotated[Z, Option(Z_HELP, panel=PANEL, needs=(OF_WAYS,))] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        usual = {field.name: field.default for field in fields(self)}
        if sum(getattr(self, way) != usual[way] for way in self.ways) > 1:
            raise InfolmError(f"give only one of {', '.join(map(flag, self.ways))}")

    @property
    def drawing(self) -> bool:
        """Whether words are drawn instead of taking the likeliest."""
        return (
            self.sampled
            or self.temperature != 1
            or any((self.top_k, self.top_p, self.eta, self.typical))
        )
