"""The facts that a report shows of any run, gathered from its folder and its corpus."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infolm.config import Recipe
from infolm.data.corpora import Corpus
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation import measurement
from infolm.evaluation.measurement import Measurement
from infolm.families.recorded import corpus_of, recipe_of
from infolm.reports.history import History
from infolm.reports.regularisers import warnings
from infolm.training import checkpoint
from infolm.training.run import RunFolder, read_metrics


@dataclass(frozen=True)
class Plots:
    """SVGs. course: the learning curves. after: the validations after the switch, for a run with a
    regulariser; empty before there are two. regularisers: by name."""

    course: str = ""
    after: str = ""
    regularisers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Findings:
    """The facts of a run that all families share; `sections.Sections` adds the family's own.

    plots: empty if nothing is recorded yet. step: steps taken, including those after the last
    record. corpus: None if it cannot be loaded, for the reason `missing`. measurements: those in
    the folder.
    """

    folder: RunFolder
    recipe: Recipe
    tokenizer: Tokenizer
    history: History
    plots: Plots
    step: int
    going_on: bool
    corpus: Corpus | None
    missing: str
    measurements: list[Measurement]

    @classmethod
    def of(
        cls, run: Path, course: Callable[[Recipe, Sequence[dict[str, Any]]], History]
    ) -> "Findings":
        """Gather the facts of a run's folder. course: the family's history of the training."""
        folder = RunFolder.existing(run)
        folder.verify(folder.tokenizer)
        recipe, tokenizer = recipe_of(folder), Tokenizer.load(folder.tokenizer)
        history = course(recipe, read_metrics(folder.metrics))
        drawn = plots(history)  # first: without matplotlib the rest is useless
        saved = [int(p.stem.split("-")[1]) for p in checkpoint.checkpoints(folder.checkpoints)]
        try:
            corpus, missing = corpus_of(folder, recipe), ""
        except InfolmError as error:
            corpus, missing = None, str(error).rstrip(".")
        return cls(
            folder,
            recipe,
            tokenizer,
            history,
            drawn,
            max(history.step, *saved, 0),
            folder.in_training(),
            corpus,
            missing,
            measurement.read(folder.measurements),
        )

    @property
    def weights(self) -> int:
        return self.recipe.model.parameters_of(len(self.tokenizer))

    @property
    def finished(self) -> bool:
        """Whether training reached the end that the recipe sets, and validated there."""
        history = self.history
        if not len(history.validation) or history.validation.steps[-1] < history.step:
            return False
        stopped = any(name == "stopped" for _, name in history.events)
        return stopped or self.recipe.train.reached(history.step, history.epoch)

    def settings(self, regulariser: str) -> dict[str, Any]:
        """The regulariser's section of the recipe."""
        return self.recipe.regularisers.model_dump().get(regulariser) or {}

    def warnings(self, regulariser: str) -> list[str]:
        """Warnings about the regulariser."""
        settings = self.settings(regulariser)
        return warnings(regulariser, settings, self.history, self.finished)


def plots(history: History) -> Plots:
    """Draw all plots."""
    try:
        from infolm.reports.curves import draw, draw_after, draw_regulariser
    except ModuleNotFoundError:
        raise InfolmError(
            "a report needs matplotlib: install it with `pip install 'infolm[report]'`"
        ) from None
    if not len(history.training) and not len(history.validation):
        return Plots()
    after, switch = "", history.switch
    if history.regularisers and switch is not None and len(history.validation.since(switch)) > 1:
        after = draw_after(history, switch)
    regularisers = {name: draw_regulariser(history, name) for name in history.regularisers}
    return Plots(draw(history), after, regularisers)
