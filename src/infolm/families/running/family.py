"""Language models of running text."""

import math
from collections.abc import Callable
from typing import cast

from infolm.averaging.two_tailed import TwoTailedConfig
from infolm.config import Recipe
from infolm.data.corpora import Corpus
from infolm.data.stream import StreamConfig
from infolm.evaluation.episodic import episodic_log_probs
from infolm.evaluation.likelihood import parallel_log_probs
from infolm.families.base import FAMILIES, Family
from infolm.families.findings import Findings
from infolm.families.running.report import LanguageSections
from infolm.families.running.run import LanguageRun
from infolm.generation.sampling import SamplingSettings
from infolm.generation.text import write
from infolm.models.language import LanguageModel
from infolm.objectives.base import Objective
from infolm.training.loop import Validation

WARM_UP = 70
"""Tokens that each parallel stream of validation reads before counting."""
CHUNK = 70
"""Tokens read at a time if the feed does not set it."""

SAMPLE_TOKENS = 40
"""Tokens of a sample written at a validation."""


@FAMILIES.register
class RunningFamily(Family):
    """Measured by the likelihood of the text."""

    kind = "language"
    a = "a language model"
    run = LanguageRun

    def validation(
        self, recipe: Recipe, model: LanguageModel, objective: Objective, corpus: Corpus
    ) -> Callable[[], Validation]:
        tokens, feed = corpus.splits["valid"].tokens, recipe.feed

        def validate() -> Validation:
            if feed.episodic:
                eos, after = corpus.tokenizer.eos, feed.marker(corpus.tokenizer)
                log_p = episodic_log_probs(model, tokens, eos, after)
            else:
                chunk, streams = getattr(feed, "bptt", CHUNK), recipe.train.validation_streams
                log_p = parallel_log_probs(model, tokens, streams, WARM_UP, chunk)
            return Validation(-float(log_p.mean()))

        return validate

    def judge(
        self, recipe: Recipe, model: LanguageModel, corpus: Corpus
    ) -> Callable[[], float] | None:
        if not recipe.averaging.judged_on_training_text:
            return None
        averaging, feed = cast(TwoTailedConfig, recipe.averaging), cast(StreamConfig, recipe.feed)
        tokens = corpus.splits["train"].tokens[: averaging.switch_tokens]
        # Streams as long as those of the validation split, so that a pass takes as many steps.
        shorter = len(tokens) / len(corpus.splits["valid"].tokens)
        streams = max(1, round(recipe.train.validation_streams * shorter))
        chunk = feed.bptt
        return lambda: -float(parallel_log_probs(model, tokens, streams, WARM_UP, chunk).mean())

    def sampler(
        self, recipe: Recipe, model: LanguageModel, corpus: Corpus
    ) -> Callable[[], list[str]] | None:
        if recipe.model.answers:
            return None
        num, unk = recipe.train.samples, corpus.tokenizer.unk
        settings = SamplingSettings(forbid=() if unk is None else (unk,))

        def sample() -> list[str]:
            return write(model, corpus.tokenizer, "", SAMPLE_TOKENS, num, recipe.seed, settings)

        return sample

    def result(self, recipe: Recipe, loss: float) -> str:
        return f"perplexity {math.exp(min(loss, 700)):.2f}"

    def sections(self, found: Findings) -> LanguageSections:
        return LanguageSections(found)
