"""Encoders."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from infolm.config import Recipe
from infolm.data.corpora import Corpus
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation.validation import contrastive_validation
from infolm.families.base import FAMILIES, Family
from infolm.families.contrastive.report import EncoderSections
from infolm.families.contrastive.run import EncoderRun
from infolm.families.findings import Findings
from infolm.models.encoder import EncoderConfig
from infolm.models.pretrained import load_pretrained
from infolm.objectives.base import Objective
from infolm.objectives.encoding import EncoderObjectiveConfig
from infolm.reports.history import Contrasts, History
from infolm.training.loop import Validation


@FAMILIES.register
class ContrastiveFamily(Family):
    """Measured by the objective: how well the encoder predicts hidden tokens."""

    kind = "encoder"
    a = "an encoder, which predicts only hidden tokens"
    per = "pair"
    run = EncoderRun

    def validation(
        self, recipe: Recipe, model: Any, objective: Objective, corpus: Corpus
    ) -> Callable[[], Validation]:
        held_out = recipe.feed.build(corpus, "valid", recipe.seed)
        return lambda: contrastive_validation(model, objective, held_out)

    def result(self, recipe: Recipe, loss: float) -> str:
        if cast(EncoderObjectiveConfig, recipe.objective).of_all_words:
            return f"perplexity of hidden words {math.exp(min(loss, 700)):.2f}"
        return f"{loss:.4f} nats"

    def history(self, recipe: Recipe, records: Sequence[dict[str, Any]]) -> History:
        found = super().history(recipe, records)
        return replace(found, contrasts=Contrasts.of(records, recipe.objective.kind))

    def sections(self, found: Findings) -> EncoderSections:
        return EncoderSections(found)

    def resolved(self, recipe: Recipe, begun: bool) -> Recipe:
        """The recipe with the sizes of the BERT that the encoder starts from, if there is one.

        A run that has started has them already, and does not need the folder.
        """
        model = cast(EncoderConfig, recipe.model)
        folder = model.checkpoint
        if not folder or (begun and not folder.exists()):
            return recipe
        if recipe.start_from or model.architecture != "bert":
            other = "start_from is another start" if recipe.start_from else ""
            other = other or "model.architecture is not"
            raise InfolmError(f"model.checkpoint is a BERT's, and {other}: leave one of them out")
        found, length = model.resolved(), getattr(recipe.feed, "length", 0)
        if length > found.length and recipe.feed.gives != "windows":
            raise InfolmError(
                f"feed.length is {length}, and the BERT in {folder} reads at most {found.length} "
                "tokens: lower feed.length"
            )
        return recipe.model_copy(update={"model": found})

    def vocabulary(self, recipe: Recipe) -> Tokenizer | None:
        folder = cast(EncoderConfig, recipe.model).checkpoint
        return Tokenizer.from_bert(folder) if folder else None

    def start(self, recipe: Recipe, model: Any) -> str:
        folder = cast(EncoderConfig, recipe.model).checkpoint
        return load_pretrained(folder, model) if folder else ""
