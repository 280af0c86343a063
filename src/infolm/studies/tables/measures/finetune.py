"""How well a pretrained encoder is fine-tuned on a task with labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from infolm.config import Recipe
from infolm.data.sources import data_folders
from infolm.errors import InfolmError
from infolm.studies.tables.measures.base import MEASURES, FigureConfig, MeasureConfig, Report
from infolm.training.run import RunFolder


class ShareConfig(FigureConfig):
    """A number of examples to learn from."""

    share: float = Field(1.0, gt=0, le=1, description="of the training examples")


@MEASURES.register
class FinetuneConfig(MeasureConfig):
    """`infolm finetune`: the task's first metric, mean over `seeds`, on the half of dev that
    nothing was chosen on. Rate and epoch are chosen on the other half, for each encoder and share.
    """

    kind: Literal["finetune"] = "finetune"
    task: str = Field(description="cola, sst2, ..., as in `infolm finetune`")
    folder: str = Field(description="of its files, in $INFOLM_DATA or the user's data folder")
    rates: list[float] = Field(min_length=1)
    batch: int = Field(16, ge=1)
    epochs: int = Field(5, ge=1)
    seeds: int = Field(2, ge=1, description="of fine-tuning, for each rate")
    length: int | None = Field(None, ge=8, description="maximum tokens of an example")
    figures: dict[str, ShareConfig] = Field(min_length=1)

    @property
    def columns(self) -> dict[str, FigureConfig]:
        return dict(self.figures)

    def check(self, recipe: Recipe) -> None:
        if recipe.model.capability != "encoder":
            raise InfolmError("measure.kind finetune is for encoders: choose a recipe of infoword/")

    def _files(self) -> Path:
        places = [place / self.folder for place in data_folders()]
        for place in places:
            if place.is_dir():
                return place
        raise InfolmError(
            f"the files of {self.task} are in none of {', '.join(map(str, places))}: put them into "
            "a folder and name the one above it in $INFOLM_DATA"
        )

    def measure(self, runs: Sequence[Path], report: Report) -> dict[str, float]:
        (run,) = runs
        return {name: self._score(run, name, each, report) for name, each in self.figures.items()}

    def _score(self, run: Path, name: str, figure: ShareConfig, report: Report) -> float:
        from infolm.finetuning import search
        from infolm.finetuning.networks import open_encoder
        from infolm.finetuning.problems import Options, read_problem

        encoder = open_encoder(run)
        options = Options(self.length, figure.share, "half")
        problem = read_problem(self.task, self._files(), encoder, options)
        tried = search.grid(self.rates, [self.batch], self.epochs, self.seeds)
        folder = RunFolder(run).path / "finetuned" / f"{self.task}-{name}"
        folder.parent.mkdir(exist_ok=True)
        with search.resumable(folder, problem, encoder) as state:
            found = search.search(
                problem,
                encoder,
                tried,
                lambda share, text: report(f"fine-tuning, {figure.label}"),
                state,
            )
        (chosen,) = (row for row in search.summary(found) if row["chosen"])
        part = next(iter(chosen["best"].values()))
        return float(part[problem.metrics[0]]["mean"])
