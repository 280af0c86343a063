"""BMI: a mutual-information regulariser of language models (Cao & Xu 2020).

    "Better Long-Range Dependency By Bootstrapping A Mutual Information Regularizer"

Phase one learns to tell the sentence that follows from a random one, which bounds the mutual
information of neighbouring sentences from below and gives the language model's own hidden states
something to keep. Phase two, once the critic has learnt, raises that information in what the model
itself says: it learns to go on with sentences from near by, weighted by the critic's scores.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn, optim
from torch.nn.functional import pad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from infolm.data.pairs import PairBatch
from infolm.data.stream import PADDING
from infolm.information import bounds
from infolm.information.critics import Critic, FiveWay
from infolm.information.ties import above
from infolm.models.recurrent import RecurrentModel
from infolm.objectives.base import Estimate, Learner
from infolm.section import Section
from infolm.training.optimisers import load_optimiser

TRIGGERED = "triggered"
"""The event of the averager's that begins phase two."""
PHASE_TWO = "phase two"
"""The event that says so."""


class CriticConfig(Section):
    """The critic's optimiser, Adam."""

    learning_rate: float = Field(2e-4, gt=0, description="of a step")
    weight_decay: float = Field(1e-6, ge=0, description="added to the gradient times the weight")


class BmiConfig(Section):
    """A mutual-information regulariser: BMI-base, and with phase two BMI-full."""

    weight: float = Field(0.1, gt=0, description="of the regulariser beside the objective")
    phase_two: bool = Field(True, description="BMI-full: importance-weighted RAML after a while")
    switch: float = Field(
        0.5,
        ge=0,
        le=1,
        description="phase two begins when averaging is triggered, and at this share of training "
        "at the latest; 1: only then, 0: at once",
    )
    geometric: float = Field(
        0.3, gt=0, lt=1, description="lambda: how near to the next sentence others are drawn"
    )
    temperature: float = Field(1.0, gt=0, description="beta of the rewards; low: the best alone")
    batch: int = Field(12, ge=2, description="pairs M of a step")
    ends: list[str] = Field(
        default_factory=list,
        description='tokens that end a sentence besides the end of a line, such as [".", "?"]',
    )
    longest: int = Field(250, ge=1, description="tokens of the longest sentence there may be")
    segment: int | None = Field(
        None, ge=1, description="cut the text into stretches of so many tokens, not into sentences"
    )
    critic: CriticConfig = CriticConfig()


def lengths(sentences: Tensor) -> Tensor:
    """How many tokens each column of (T, B) has before its padding, (B,)."""
    return (sentences != PADDING).sum(0)


def pack(sentences: Tensor, count: Tensor) -> PackedSequence:
    """The first `count` (B,) entries of each column of (T, B)."""
    return pack_padded_sequence(sentences, count.cpu(), enforce_sorted=False)


def beside(groups: Sequence[Tensor]) -> Tensor:
    """Sentences (T_g, M_g) of several groups in one, (T, sum M_g)."""
    steps = max(len(group) for group in groups)
    padded = [pad(group, (0, 0, 0, steps - len(group)), value=PADDING) for group in groups]
    return torch.cat(padded, 1)


def encode(model: RecurrentModel, sentences: Tensor) -> Tensor:
    """phi(S): of every layer's output the maximum over time, all layers: (T, B) -> (B, sum_l H_l).

    Each sentence is read by itself, from a state of zeros. Padding is not read at all.
    """
    packed = pack(sentences, lengths(sentences))
    output = model(packed, model.initial_state(sentences.shape[1]))
    rows = torch.cat(output.layers, -1)
    hidden, _ = pad_packed_sequence(packed._replace(data=rows), padding_value=-torch.inf)
    return hidden.amax(0)


def continued(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What is read and what is to be predicted where each y follows its x: (T, M) each.

    x and y, (T_x, M) and (T_y, M), are laid one after the other; of the tokens to be predicted only
    those of y count, every one of them once. Also how many tokens are read, (M,).
    """
    before, after = lengths(x), lengths(y)
    steps = torch.arange(int((before + after).max()), device=x.device)[:, None]
    place = torch.where(steps < before, steps, len(x) + steps - before)
    both = torch.cat([x, y]).gather(0, place.clamp(max=len(x) + len(y) - 1))
    targets = torch.where((steps >= before) & (steps < before + after), both, PADDING)
    return both[:-1], targets[1:], before + after - 1


def continuation_nll(model: RecurrentModel, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """-sum_i w_i ln Q(y_i | x_i), in nats; the weights (M,) are constants."""
    read, targets, count = continued(x, y)
    packed = pack(read, count)
    output = model(packed, model.initial_state(x.shape[1]))
    shares = pack(weights.expand(len(read), -1), count).data
    return model.nll_sum(output.dropped, pack(targets, count).data, shares, packed.batch_sizes)


def paired(critic: Critic, x: Tensor, y: Tensor) -> Tensor:
    """D(x_i, y_i), (M,), of rows (M, H)."""
    return critic(x[:, None], y[:, None]).flatten()


def importance_weights(reward: Tensor, log_proposal: Tensor, beta: float) -> Tensor:
    """w_i proportional to exp(r_i / beta) / G_i, their sum 1 (eqs. 14 and 17): (M,).

    exp(r / beta) is the exponentiated pay-off distribution up to its normaliser, which is taken to
    be alike for all i. A high beta leaves 1 / G, a low one the best alone.
    """
    return (reward / beta - log_proposal).softmax(0)


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode and no gradient is kept."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


class Bmi(Learner):
    """loss = -I~ + [phase two] R, with phi the `encode` of the model itself and D a `FiveWay`.

        I~ = E_pos[-softplus(-D(phi_x, phi_y))] - E_neg[softplus(D(phi_x, phi_y'))]        (eq. 6)
        R  = -sum_i w_i ln Q(Y_i | X_i) / n        w_i ~ exp(r_i / beta) / G_i             (eq. 17)
        r  = D(phi_x, phi_y) - D(phi_x, phi_y*)                                            (eq. 15)

    Positive pairs are neighbours; in the negative ones every X of the batch is paired with the
    M - 1 next sentences of the others, which were drawn independently of it. So eq. 6 has the
    expectation it has with one random sentence for each X, and less variance. Y is drawn by G from
    near the true next sentence Y*. The weights are constants; n is the mean length of the Y's, so
    that R is in nats per token as the likelihood is: per sentence it would outweigh the rest.
    The reward is read without dropout; that of Y* itself is then 0.

    Of the terms, `jensen_shannon` is I~, at most 0, and -2 ln 2 where D knows nothing; `mine`
    the bound on the mutual information that D gives on this batch (eq. 4); `accuracy` the share of
    pairs that D tells, positive and negative ones weighing alike. In phase two `raml` is R,
    `reward` the mean r, and `effective` 1 / (M sum_i w_i^2), 1 where all weights are alike.
    """

    def __init__(self, config: BmiConfig, model: RecurrentModel) -> None:
        self.config = config
        size = sum(model.stack.widths)
        self.critic = FiveWay(size, size).to(model.embedding.device)
        rate, decay = config.critic.learning_rate, config.critic.weight_decay
        self.optimiser = optim.Adam(self.critic.parameters(), lr=rate, weight_decay=decay)
        self.phase_two = config.phase_two and config.switch == 0

    def __call__(self, model: RecurrentModel, batch: PairBatch, carry: None) -> Estimate:
        x, y = encode(model, beside([batch.x, batch.y])).chunk(2)
        positive, negative = bounds.contrast(self.critic(x, y))
        information = bounds.jensen_shannon(positive, negative)
        loss = -information
        with torch.no_grad():
            terms = {
                "jensen_shannon": information.detach(),
                "mine": bounds.donsker_varadhan(positive, negative),
                "accuracy": (above(positive).mean() + 1 - above(negative).mean()) / 2,
            }
        if self.phase_two:
            raml, said = self._raml(model, batch)
            loss = loss + raml
            terms |= said
        return Estimate(loss, {"loss": loss.detach(), **terms}, len(positive))

    def _raml(self, model: RecurrentModel, batch: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        reward = self.reward(model, batch)
        weights = importance_weights(reward, batch.log_proposal, self.config.temperature)
        nll = continuation_nll(model, batch.x, batch.drawn, weights)
        raml = nll / lengths(batch.drawn).float().mean()
        effective = 1 / (len(weights) * weights.square().sum())
        return raml, {"raml": raml.detach(), "reward": reward.mean(), "effective": effective}

    def reward(self, model: RecurrentModel, batch: PairBatch) -> Tensor:
        """r of each sentence that was drawn, (M,)."""
        with without_dropout(model):
            read = encode(model, beside([batch.x, batch.y, batch.drawn]))
            x, y, drawn = read.chunk(3)
            return paired(self.critic, x, drawn) - paired(self.critic, x, y)

    def step(self) -> None:
        self.optimiser.step()
        self.optimiser.zero_grad()

    def discard(self) -> None:
        self.optimiser.zero_grad()

    def validated(
        self, events: Sequence[str], progress: float, terms: Mapping[str, float]
    ) -> list[str]:
        late = self.config.switch < 1 and progress >= self.config.switch
        if not self.config.phase_two or self.phase_two or not (late or TRIGGERED in events):
            return []
        self.phase_two = True
        return [PHASE_TWO]

    def state_dict(self) -> dict[str, Any]:
        return {
            "critic": self.critic.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "phase_two": self.phase_two,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.critic.load_state_dict(state["critic"])
        load_optimiser(self.optimiser, state["optimiser"])
        self.phase_two = self.config.phase_two and (self.phase_two or state["phase_two"])
