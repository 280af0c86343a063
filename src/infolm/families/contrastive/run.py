"""A run of an encoder, measured by its own objective."""

from dataclasses import dataclass
from typing import cast

from infolm.data.ingest import Report
from infolm.errors import InfolmError
from infolm.evaluation import measurement
from infolm.evaluation.contrastive import (
    VOCABULARY_NLL,
    AmongAll,
    contrastive_measurements,
    tallies,
)
from infolm.families.base import Evaluation, Run, Writing
from infolm.families.contrastive.options import (
    WRITES_NONE,
    EncoderEvaluateOptions,
    EncoderGenerateOptions,
)
from infolm.models.encoder import Encoder
from infolm.objectives.base import Objective, Setup
from infolm.objectives.encoding import EncoderObjectiveConfig


@dataclass(frozen=True)
class EncoderRun(Run):
    """A run of an encoder."""

    model: Encoder

    @classmethod
    def refusal(cls, run: Run) -> str:
        return (
            f"is a run of model.kind {run.recipe.model.kind}: choose one whose model.kind is "
            "encoder"
        )

    @property
    def objective(self) -> EncoderObjectiveConfig:
        return cast(EncoderObjectiveConfig, self.recipe.objective)

    @property
    def item(self) -> str:
        """The unit that the objective's loss is averaged over."""
        return self.objective.item

    @property
    def method(self) -> str:
        """The objective's candidates besides the true one."""
        return self.objective.rivals(self.recipe.feed)

    @property
    def convention(self) -> str:
        """How a split was read."""
        hidden = self.recipe.feed.hidden
        if ngrams := self.objective.ngrams:
            hidden += f"; n-grams are those {ngrams}"
        return (
            f"one pass over the split in batches as of training{hidden}; what fills no batch is "
            "left out; the standard error is from the spread of the batches"
        )

    def write(self, options: EncoderGenerateOptions, report: Report) -> Writing:
        raise InfolmError(WRITES_NONE.format(self.folder.path))

    def measure(self, options: EncoderEvaluateOptions, report: Report) -> Evaluation:
        """The objective's loss and terms on the splits, and the hidden words of a BERT among all
        words; kept in the run's folder too."""
        objective = self._objective()
        results = []
        for split in options.splits:

            def progress(share: float, split: str = split) -> None:
                report(f"measuring the {split} split", round(1000 * share), 1000)

            feed = self.recipe.feed.build(self.corpus, split, self.recipe.seed)
            found = tallies(self.model, objective, feed, report=progress)
            if "loss" in found and not self.objective.weighted:
                del found["loss"]  # which is the nll
            if self.objective.of_all_words:
                found.setdefault(VOCABULARY_NLL, found["nll"])
            results += contrastive_measurements(
                found, split, self.method, self.item, self.convention
            )
        measurement.keep(self.folder.measurements, results)
        return Evaluation(results)

    def _objective(self) -> Objective:
        config, device = self.recipe.objective, self.model.device
        setup = Setup(self.corpus, self.model, device, self.recipe.seed)
        objective = config.build(setup)
        log_q = self.objective.log_noise(setup)
        return objective if log_q is None else AmongAll(objective, log_q)
