"""Models with a latent code."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from torch import nn

from infolm.config import Recipe
from infolm.data.corpora import Corpus
from infolm.data.sentences import SentencesConfig
from infolm.errors import InfolmError
from infolm.evaluation.validation import monte_carlo_validation, sentence_validation
from infolm.families.base import FAMILIES, Family
from infolm.families.findings import Findings
from infolm.families.latent.report import LatentSections
from infolm.families.latent.run import LatentRun
from infolm.models.codes.gaussian import GaussianLatent
from infolm.models.latent import LatentModel
from infolm.objectives.base import Objective
from infolm.objectives.sentence import LatentObjectiveConfig, SentenceObjective
from infolm.reports.history import Codes, History
from infolm.training.loop import Validation


@FAMILIES.register
class LatentFamily(Family):
    """Measured by the objective, which bounds the likelihood or adds terms for the codes to it."""

    kind = "latent"
    a = "a model of single sentences with a latent code"
    run = LatentRun

    def check(self, recipe: Recipe, corpus: Corpus) -> None:
        feed = cast(SentencesConfig, recipe.feed)
        found = {split: feed.lines(corpus, split) for split in ("train", "valid", "test")}
        if len(found["valid"]) < 2:
            raise InfolmError(
                "the validation split needs at least two non-empty sentences: give more "
                "text, one sentence per line"
            )
        longest = recipe.model.longest
        for split, text in found.items():
            if longest is not None and text.lengths.max() > longest:
                raise InfolmError(
                    f"model.kind {recipe.model.kind} reads lines of one word, and line "
                    f"{text.lengths.argmax() + 1:,} of the {split} split has "
                    f"{text.lengths.max()}: choose model.kind sentence, or a text of single words "
                    "such as data.corpus=uniform"
                )

    def validation(
        self, recipe: Recipe, model: Any, objective: Objective, corpus: Corpus
    ) -> Callable[[], Validation]:
        text = cast(SentencesConfig, recipe.feed).lines(corpus, "valid")
        if isinstance(objective, SentenceObjective):
            return lambda: sentence_validation(model, objective, text)
        return lambda: monte_carlo_validation(model, cast(Any, objective), text)

    def result(self, recipe: Recipe, loss: float) -> str:
        return f"{loss:.4f} nats per token"

    def history(self, recipe: Recipe, records: Sequence[dict[str, Any]]) -> History:
        objective = cast(LatentObjectiveConfig, recipe.objective)
        found = super().history(recipe, records)
        if not objective.nll:
            return found
        points = not objective.has_distribution
        return replace(found, codes=Codes.of(records, objective.kind, objective.nll, points))

    def sections(self, found: Findings) -> LatentSections:
        return LatentSections(found)

    def opened(self, recipe: Recipe, model: LatentModel) -> None:
        objective = cast(LatentObjectiveConfig, recipe.objective)
        if not objective.has_distribution:
            # Its variance is untrained: a code drawn from q is almost the mean.
            latent = cast(GaussianLatent, model.latent)
            nn.init.zeros_(latent.log_variance.weight)
            nn.init.constant_(latent.log_variance.bias, latent.config.least_log_variance)
