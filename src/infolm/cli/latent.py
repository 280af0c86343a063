"""`infolm evaluate` and `generate` for a model with a latent code."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infolm.cli.app import print_table
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.evaluation.latent_suite import LatentSettings
    from infolm.evaluation.measurement import Measurement
    from infolm.families.latent.run import LatentRun
    from infolm.generation.sampling import SamplingSettings

PANEL = "Models with a latent code"
NO_WIDTH = (
    "Gaussian codes have a width, and classes have none: take --aggregated, --interpolate or plain "
    "samples, or a run whose model.latent.kind is gaussian"
)


MOST_SENTENCES = 100_000
"""That are written by one command: all their codes are in memory."""


class Code(StrEnum):
    """Which code of q(z | x) stands for a sentence."""

    mean = "mean"
    sampled = "sampled"


class Words(StrEnum):
    """Which words of p(x | z) are written."""

    likeliest = "likeliest"
    sampled = "sampled"


RankOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Rank candidate answers to the questions of a file instead: in SQuAD's format, or "
        "lines of question, answer, 1 or 0, between tabs.",
        rich_help_panel=PANEL,
    ),
]
NoEosOption = Annotated[
    bool,
    typer.Option(
        "--no-eos",
        help="Leave <eos> out of the losses and of the number of tokens.",
        rich_help_panel=PANEL,
    ),
]
CodesOption = Annotated[
    int,
    typer.Option(
        min=1,
        max=1_000_000,
        help="Codes a sentence of the importance-weighted bound.",
        rich_help_panel=PANEL,
    ),
]
NzOption = Annotated[
    int,
    typer.Option(
        min=1,
        max=1_000_000,
        help="Codes a sentence of reconstruction, ELBO and MELBO, the paper's N_z.",
        rich_help_panel=PANEL,
    ),
]
SentencesOption = Annotated[
    int,
    typer.Option(
        min=2,
        help="Sentences at most of the importance-weighted bound, drawn from the split.",
        rich_help_panel=PANEL,
    ),
]
BleuWordsOption = Annotated[
    Words,
    typer.Option(
        help="Words of the reconstructions that BLEU reads: the likeliest, or drawn from p(x | z).",
        rich_help_panel=PANEL,
    ),
]
CodeOption = Annotated[
    Code,
    typer.Option(
        "--z",
        help="Codes of --rank, --interpolate and --answer: the means of q(z | x), or drawn from "
        "it, as in the paper.",
        rich_help_panel=PANEL,
    ),
]
CompetitorOption = Annotated[
    float | None,
    typer.Option(
        metavar="NLL",
        help="How many sentences it takes until MELBO is no better than another model's loss, in "
        "nats per sentence.",
        rich_help_panel=PANEL,
    ),
]
InterpolateOption = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="A B", help="Sentences between these two.", rich_help_panel=PANEL),
]
StepsOption = Annotated[
    int,
    typer.Option(
        min=2,
        max=10_000,
        help="Of --interpolate: sentences, both ends among them.",
        rich_help_panel=PANEL,
    ),
]
ReconstructOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the sentences of a file anew, a line each.",
        rich_help_panel=PANEL,
    ),
]
PerturbOption = Annotated[
    str | None,
    typer.Option(
        metavar="SENTENCE", help="Sentences from codes around this one's.", rich_help_panel=PANEL
    ),
]
ScaleOption = Annotated[
    float,
    typer.Option(
        min=0, help="Of --perturb: times the standard deviation of the code.", rich_help_panel=PANEL
    ),
]
NeighboursOption = Annotated[
    str | None,
    typer.Option(
        metavar="SENTENCE",
        help="Training sentences whose codes are nearest to this one's.",
        rich_help_panel=PANEL,
    ),
]
AnswerOption = Annotated[
    str | None,
    typer.Option(
        metavar="QUESTION", help="Write short, middling and long answers.", rich_help_panel=PANEL
    ),
]
DeviationOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Samples from Gaussian codes of N(0, deviation^2).",
        show_default="1, the prior's; 0.1 of MIM",
        rich_help_panel=PANEL,
    ),
]
AggregatedOption = Annotated[
    bool,
    typer.Option(
        "--aggregated",
        help="Samples from codes of training sentences, the aggregated posterior.",
        rich_help_panel=PANEL,
    ),
]
LongestOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=10_000,
        help="Most tokens of a sentence.",
        show_default="as in training",
        rich_help_panel=PANEL,
    ),
]
SampledOption = Annotated[
    bool,
    typer.Option(
        "--sampled",
        help="Draw words, where else the likeliest are taken; so do --temperature and the like.",
        rich_help_panel=PANEL,
    ),
]
UnknownOption = Annotated[
    bool,
    typer.Option(
        "--unknown", help="Read words that the vocabulary lacks as <unk>.", rich_help_panel=PANEL
    ),
]


def refuse(given: Mapping[str, Any], why: str) -> None:
    """Refuse options that were given and are of another kind of model."""
    names = [name for name, value in given.items() if value not in (None, False, 0, "")]
    if names:
        raise InfolmError(f"{', '.join(names)}: {why}")


def evaluate_sentences(
    run: "LatentRun", splits: list[str], rank: Path | None, code: Code, settings: "LatentSettings"
) -> "tuple[list[Measurement], list[str]]":
    """The ranking of a file's answers, or all measurements of the splits, and remarks."""
    from infolm.console import StageBars

    with StageBars() as stages:
        if rank is not None:
            return run.rank(rank, stages, code == Code.sampled, settings.seed), []
        if code == Code.sampled:
            raise InfolmError("--z sampled is of the codes that answers are ranked by: add --rank")
        return run.evaluate(splits, settings, stages)


@dataclass(frozen=True)
class Wanted:
    """What a person wants written, besides `num` samples; None: not that."""

    interpolate: tuple[str, str] | None
    steps: int
    reconstruct: Path | None
    perturb: str | None
    scale: float
    neighbours: str | None
    answer: str | None
    deviation: float | None
    aggregated: bool
    num: int
    code: Code = Code.mean

    def __post_init__(self) -> None:
        if sum(value is not None for value in self.asked.values()) > 1:
            raise InfolmError(f"one at a time of {', '.join(self.asked)}")
        if self.code == Code.sampled and not (self.interpolate or self.answer):
            raise InfolmError("--z sampled is of --interpolate and --answer: add one of them")

    @property
    def asked(self) -> dict[str, Any]:
        return {
            "--interpolate": self.interpolate,
            "--reconstruct": self.reconstruct,
            "--perturb": self.perturb,
            "--neighbours": self.neighbours,
            "--answer": self.answer,
            "--deviation": self.deviation,
            "--aggregated": self.aggregated or None,
        }


def generate_sentences(
    run: "LatentRun",
    wanted: Wanted,
    settings: "SamplingSettings",
    seed: int,
    longest: int | None,
    unknown: bool,
    as_json: bool,
) -> None:
    """Write what is wanted to standard output."""
    if wanted.num > MOST_SENTENCES:
        raise InfolmError(
            f"--num {wanted.num:,} is too many: take {MOST_SENTENCES:,} at most, and another --seed"
        )
    from infolm.console import StageBars
    from infolm.families.latent.run import NO_SAMPLES
    from infolm.generation.latent import MEAN, SAMPLE, read_sentences

    writer = run.writer(settings, seed, longest, unknown)
    kind = run.model.config.latent.kind
    if kind != "gaussian":
        widths = {"--perturb": wanted.perturb, "--deviation": wanted.deviation is not None}
        refuse(widths, NO_WIDTH)
    of_points = (wanted.interpolate, wanted.reconstruct, wanted.neighbours, wanted.answer)
    if not run.has_distribution and not any(of_points):
        raise InfolmError(NO_SAMPLES)
    scale = MEAN
    if wanted.code == Code.sampled:
        run.check_distribution("--z sampled")
        scale = SAMPLE
    if wanted.interpolate:
        found = writer.interpolate(*wanted.interpolate, wanted.steps, scale)
        result: Any = [{"step": i, "text": text} for i, text in enumerate(found)]
        shown = found
    elif wanted.reconstruct:
        scales = run.scales
        lines = writer.read(read_sentences(wanted.reconstruct))
        written = writer.reconstruct(lines, list(scales.values()))
        result = [
            {"sentence": each.sentence, **dict(zip(scales, each.written, strict=True))}
            for each in written
        ]
        width = max(map(len, ["sentence", *scales]))
        shown = ["\n".join(f"{key:{width}}  {text}" for key, text in row.items()) for row in result]
        shown = [row + "\n" for row in shown[:-1]] + shown[-1:]
    elif wanted.perturb:
        shown = writer.perturb(wanted.perturb, wanted.num, wanted.scale)
        result = [{"sentence": wanted.perturb, "text": text} for text in shown]
    elif wanted.neighbours:
        with StageBars() as stages:
            (near,) = writer.neighbours(
                [wanted.neighbours],
                run.lines("train"),
                wanted.num,
                lambda done, total: stages("encoding the train split", done, total),
            )
        result = [each._asdict() for each in near]
        digits = 3 if kind == "gaussian" else 0  # where it is a number of variables
        shown = [f"{each.distance:8.{digits}f}  {each.sentence}" for each in near]
    elif wanted.answer:
        answers = writer.answer(wanted.answer, scale=scale)
        result = [each._asdict() for each in answers]
        if not as_json:
            rows = [[str(a.words), a.text or "(no '?' was written)", a.written] for a in answers]
            print_table(["words", "answer", "written"], rows, right={0})
            return
        shown = []
    else:
        if wanted.aggregated:
            shown = writer.sample_aggregated(run.lines("train"), wanted.num)
        else:
            deviation = run.deviation if wanted.deviation is None else wanted.deviation
            shown = writer.sample(wanted.num, deviation)
        result = [{"text": text} for text in shown]
    print(json.dumps(result, indent=2) if as_json else "\n".join(shown))
