"""How well a sentence model ranks candidate answers, of questions it has seen and of others."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

from pydantic import Field

from infolm.config import Recipe
from infolm.data.answers import Question, one_line, read_questions
from infolm.data.questions import Part, parts
from infolm.data.registry import registry
from infolm.data.sources import fetch
from infolm.errors import InfolmError
from infolm.families.base import open_run
from infolm.studies.tables.measures.base import MEASURES, FigureConfig, MeasureConfig, Report

CORPUS = "xquad"


class RankedConfig(FigureConfig):
    """The mean reciprocal rank of the right answer."""

    part: Part = Field(description="of these questions")
    method: Literal["latent code", "word overlap", "shortest answer", "chance"] = "latent code"


@MEASURES.register
class RankConfig(MeasureConfig):
    """`infolm evaluate --rank`: mean reciprocal ranks on the questions of the corpus xquad."""

    kind: Literal["rank"] = "rank"
    figures: dict[str, RankedConfig] = Field(min_length=1)

    @property
    def columns(self) -> dict[str, FigureConfig]:
        return dict(self.figures)

    def check(self, recipe: Recipe) -> None:
        if recipe.data.corpus != CORPUS:
            raise InfolmError(
                f"measure.kind rank is for models of questions: set data.corpus={CORPUS}"
            )

    def measure(self, runs: Sequence[Path], report: Report) -> dict[str, float]:
        (run,) = runs
        info = registry()[CORPUS]
        questions, _ = read_questions(fetch(info, lambda *_: None) / info.files[0])
        divided = parts(questions)
        ranks = {
            part: self._ranks(run, part, divided[part], report)
            for part in get_args(Part)
            if any(each.part == part for each in self.figures.values())
        }
        return {name: ranks[each.part][each.method] for name, each in self.figures.items()}

    def _ranks(
        self, run: Path, part: str, questions: Sequence[Question], report: Report
    ) -> dict[str, float]:
        """The mean reciprocal rank by each method."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"{CORPUS}, {part}"
            path.write_text("".join(map(_rows, questions)), encoding="utf-8")
            evaluation = open_run(run).evaluate(
                lambda stage, done, total: report(f"{stage}, {part}"), rank=path
            )
        return {
            each.method: each.value
            for each in evaluation.measurements
            if each.metric == "mean_reciprocal_rank"
        }


def _rows(question: Question) -> str:
    """A line of question, answer and label for each candidate, as `--rank` reads them."""
    return "".join(
        f"{one_line(question.question)}\t{one_line(answer)}\t{int(place == question.right)}\n"
        for place, answer in enumerate(question.answers)
    )
