"""A run of an encoder opened for use: measured by its own objective."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from infolm.config import Recipe
from infolm.data.corpora import Corpus
from infolm.data.ingest import Report
from infolm.data.sentence_pairs import SentencePairsConfig
from infolm.data.sequences import SequencesConfig
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation import measurement
from infolm.evaluation.contrastive import (
    ALL,
    VOCABULARY_NLL,
    AmongAll,
    contrastive_measurements,
    tallies,
)
from infolm.evaluation.measurement import Measurement
from infolm.experiment import build_feed, build_objective, corpus_of, word_counts
from infolm.models.encoder import Encoder
from infolm.nn.nce import Noise
from infolm.objectives.base import Objective
from infolm.objectives.masked import InfoWordConfig, MlmConfig, MlmNceConfig
from infolm.objectives.next_sentence import NextSentenceConfig
from infolm.objectives.permutation import PermutationConfig
from infolm.objectives.skip_gram import SkipGramConfig
from infolm.trained import open_folder
from infolm.training.run import RunFolder

ITEMS = {"skip-gram": "pair of words", "nsp": "sentence"}
"""What an objective's loss is a mean over, where that is no hidden token."""


@dataclass(frozen=True)
class EncoderRun:
    """A run of an encoder: its recipe, vocabulary and best weights, in evaluation mode."""

    folder: RunFolder
    recipe: Recipe
    tokenizer: Tokenizer
    model: Encoder

    @classmethod
    def open(cls, path: Path) -> "EncoderRun":
        folder, recipe, tokenizer, model = open_folder(path)
        if not isinstance(model, Encoder):
            raise InfolmError(
                f"{path} is a run of model.kind {recipe.model.kind}: take one whose model.kind is "
                "encoder"
            )
        return cls(folder, recipe, tokenizer, model)

    @cached_property
    def corpus(self) -> Corpus:
        """The text the run was trained on, in the run's own vocabulary."""
        return corpus_of(self.folder, self.recipe)

    @property
    def item(self) -> str:
        """What the objective's loss is a mean over."""
        return ITEMS.get(self.recipe.objective.kind, "hidden token")

    @property
    def method(self) -> str:
        """What the objective tells the true one from."""
        match self.recipe.objective:
            case MlmConfig() | PermutationConfig() | SkipGramConfig(negatives="vocabulary"):
                return ALL
            case MlmNceConfig(negatives="batch") | InfoWordConfig(negatives="batch"):
                return "among the batch's hidden words"
            case MlmNceConfig() | InfoWordConfig() | SkipGramConfig(form="global") as config:
                return f"among {config.noise:,} drawn words"
            case SkipGramConfig() as config:
                return f"each of {config.noise:,} drawn words"
            case NextSentenceConfig() as config:
                assert isinstance(self.recipe.feed, SentencePairsConfig)
                drawn = self.recipe.feed.candidates - 1
                which = "among" if config.form == "global" else "each of"
                return f"{which} {drawn:,} drawn sentence{'s'[: drawn != 1]}"
            case other:
                raise AssertionError(other.kind)  # the recipe was checked

    @property
    def convention(self) -> str:
        """How a split was read."""
        feed = self.recipe.feed
        hidden = ""
        if isinstance(feed, SequencesConfig):
            what = {"tokens": "single tokens", "spans": "spans", "order": "the last of an order"}
            hidden = (
                f", sequences of {feed.length} tokens, of which {feed.share:.0%} are hidden "
                f"({what[feed.masking]})"
            )
        objective = self.recipe.objective
        if isinstance(objective, InfoWordConfig) and objective.lambda_dim:
            which = {"masked": "shown as [MASK]s", "all": "hidden, some of them shown as they are"}
            hidden += f"; n-grams are those {which[objective.dim_pairs]}"
        return (
            f"one pass over the split in batches as of training{hidden}; what fills no batch is "
            "left out; the standard error is from the spread of the batches"
        )

    def evaluate(self, splits: Sequence[str], report: Report) -> list[Measurement]:
        """The objective's loss and terms on the splits, and the hidden words of a BERT among all
        words; kept in the run's folder too."""
        objective = self._objective()
        results = []
        for split in splits:

            def progress(share: float, split: str = split) -> None:
                report(f"measuring the {split} split", round(1000 * share), 1000)

            feed = build_feed(self.recipe, self.corpus, split)
            found = tallies(self.model, objective, feed, report=progress)
            if "loss" in found and not isinstance(self.recipe.objective, InfoWordConfig):
                del found["loss"]  # which is the nll
            if isinstance(self.recipe.objective, PermutationConfig):
                found[VOCABULARY_NLL] = found["nll"]
            results += contrastive_measurements(
                found, split, self.method, self.item, self.convention
            )
        measurement.keep(self.folder.measurements, results)
        return results

    def _objective(self) -> Objective:
        config, device = self.recipe.objective, self.model.embedding.device
        objective = build_objective(self.recipe, self.corpus, self.model, device)
        match config:
            case MlmConfig():
                return AmongAll(objective, torch.zeros(len(self.tokenizer), device=device))
            case MlmNceConfig() | InfoWordConfig():
                counts = torch.from_numpy(word_counts(self.corpus)).to(device)
                return AmongAll(objective, Noise(counts).log_q)
            case _:
                return objective
