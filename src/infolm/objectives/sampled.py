"""The sampled softmax: maximum likelihood at the cost of a part of the vocabulary."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from infolm.data.stream import Batch
from infolm.metrics import EVENT, Described, describe
from infolm.models.language import LanguageModel, State
from infolm.nn.nce import Noise
from infolm.nn.softmax import Candidates
from infolm.objectives.base import OBJECTIVES, Estimate, ObjectiveConfig, Setup, Stateful
from infolm.objectives.likelihood import (
    ActivationConfig,
    Likelihood,
    LikelihoodConfig,
    read,
    regularised,
)

WHOLE = "whole vocabulary"
"""The event after which the softmax is exact."""
describe(
    EVENT, Described(WHOLE, meaning="from here on targets are compared with all words, none drawn")
)


@OBJECTIVES.register
class SampledConfig(ActivationConfig):
    """Likelihood by a sampled softmax first, by the whole one later, plus AR and TAR."""

    kind: Literal["sampled"] = "sampled"
    drawn: int = Field(
        1000, ge=1, description="words drawn for each batch, beside all of its targets"
    )
    power: float = Field(
        0.75, ge=0, le=1, description="exponent of the words' frequencies when drawn; 0: uniform"
    )
    switch: float = Field(
        0.5,
        ge=0,
        le=1,
        description="at the first validation after this share of training the softmax becomes "
        "exact; 1: never",
    )

    def build(self, setup: Setup) -> "Sampled":
        return Sampled(self, setup.counts())

    def whole(self) -> LikelihoodConfig:
        """What it becomes."""
        return LikelihoodConfig(**self.model_dump(include={"ar", "tar", "state_reset"}))

    def phases(self) -> list[tuple[float, ObjectiveConfig]]:
        """The switch waits for the next validation."""
        if self.switch == 1:
            return [(1.0, self)]
        return [(self.switch, self.model_copy(update={"switch": 1.0})), (1.0, self.whole())]

    def by_parts(self, model: Any) -> str:
        return "targets are compared with those of their own part"


class Sampled(Stateful):
    """loss = 1/N sum_t (ln Z_S(t) - s(x_{t+1})) + alpha AR + beta TAR; see `Softmax.nll_sum`.

    S holds all N targets of the batch and k words drawn from q, which are shared by its tokens.
    With u the frequencies of the training text, a word is in it with the probability

        P(w in S) = 1 - (1 - u(w))^N (1 - q(w))^k.

    ln Z_S is below ln Z on average (Jensen), by less the more words there are, and with all of
    them the loss is the likelihood. After `switch` it is the likelihood itself. Validations and
    evaluations always are.

    counts: (V,), of the words in the training text, on the model's device. State and padding are
    those of `Likelihood`.
    """

    def __init__(self, config: SampledConfig, counts: Tensor) -> None:
        self.config = config
        self.exact = False
        self._noise = Noise(counts, config.power)
        self._log_missed_target = torch.log1p(-counts.double() / counts.sum())
        self._log_missed_draw = torch.log1p(-self._noise.log_q.exp())
        self._likelihood = Likelihood(config.whole())

    def __call__(self, model: LanguageModel, batch: Batch, carry: State | None) -> Estimate:
        if self.exact:
            return self._likelihood(model, batch, carry)
        output = read(model, batch, carry, state_reset=self.config.state_reset)
        targets = batch.targets
        among = self.candidates(targets[targets >= 0])
        total = model.softmax.nll_sum(output.dropped, targets, model.embedding, among=among)
        nll = total / (targets >= 0).sum()
        return regularised(model, nll, {"nll": nll.detach()}, output, batch, self.config)

    def candidates(self, targets: Tensor) -> Candidates:
        """The words that targets (N,) are compared with."""
        words = torch.cat([targets, self._noise.draw(self.config.drawn)]).unique()
        missed = len(targets) * self._log_missed_target[words]
        missed = missed + self.config.drawn * self._log_missed_draw[words]
        return Candidates(words, torch.log(-torch.expm1(missed)))

    def validated(
        self, events: Sequence[str], progress: float, terms: Mapping[str, float]
    ) -> list[str]:
        if self.exact or self.config.switch == 1 or progress < self.config.switch:
            return []
        self.exact = True
        return [WHOLE]

    def state_dict(self) -> dict[str, Any]:
        return {"exact": self.exact}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.exact = state["exact"]
