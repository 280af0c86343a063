"""BMI: a mutual-information regulariser of language models (Cao & Xu 2020).

    "Better Long-Range Dependency By Bootstrapping A Mutual Information Regularizer"

Phase one trains a critic to distinguish the next sentence from a random one, which bounds the
mutual information of neighbouring sentences from below and makes the language model's hidden states
retain it. Phase two, once the critic is trained, raises that information in the model's own text:
the model is trained on continuations by nearby sentences, weighted by the critic's scores.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn, optim
from torch.nn.functional import pad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from infolm.data.corpora import Corpus
from infolm.data.pairs import (
    Documents,
    HeldOutPairs,
    NeighbourPairs,
    PairBatch,
    documents,
    segments,
)
from infolm.data.parts import share
from infolm.data.stream import PADDING
from infolm.errors import InfolmError
from infolm.information import bounds
from infolm.information.critics import BMI_HIDDEN, Critic, FiveWay
from infolm.information.ties import above
from infolm.metrics import EVENT, STDERR, Described, describe
from infolm.models.language import LanguageModel
from infolm.nn.contrast import wide
from infolm.nn.gather import gather, own_rows
from infolm.objectives.base import REGULARISERS, Estimate, Learner, RegulariserConfig, Setup
from infolm.optimisation.optimisers import load_optimiser
from infolm.section import Section

TRIGGERED = "triggered"
"""The averager's event that starts phase two."""
PHASE_TWO = "phase two"
"""The event at the start of phase two."""
READ = 64
"""Sentences encoded at a time outside training."""

describe(
    "bmi",
    Described("loss", unit="nats", meaning="its loss, before the weight, nats", axis=""),
    Described(
        "jensen_shannon",
        "bound (eq. 6)",
        "nats",
        better="up",
        meaning="the bound that is maximised (eq. 6), nats, at most 0",
        axis="nats",
        ignorance=-2 * math.log(2),
    ),
    Described(
        "mine",
        "MINE (eq. 4)",
        "nats",
        better="up",
        meaning="MINE (eq. 4), nats: a lower bound on the mutual information of neighbouring "
        "sentences",
        axis="nats",
        ignorance=0.0,
    ),
    Described(
        "accuracy",
        unit="share of pairs",
        better="up",
        meaning="share of pairs that the critic classifies correctly",
        axis="share of pairs\nclassified correctly",
        ignorance=0.5,
    ),
    Described(
        "raml",
        "weighted loss",
        "weighted nats per token",
        better="down",
        meaning="phase two: weighted loss of the drawn sentences, nats per token",
        axis="weighted nats\nper token",
    ),
    Described(
        "reward",
        unit="nats",
        meaning="phase two: the critic's score of the drawn sentence minus that of the true one",
        axis="",
    ),
    Described(
        "effective",
        "effective share",
        "share of the weights",
        meaning="phase two: effective share of the importance weights, at most 1",
        axis="effective share\nof the weights",
    ),
    Described("pairs", unit="pairs", decimals=0, meaning="pairs of the validation split"),
)
describe(
    EVENT,
    Described(
        PHASE_TWO,
        meaning="from here on the model is also trained on sentences near the true next one, "
        "weighted by "
        "the critic's scores",
    ),
)


class CriticConfig(Section):
    """The critic and its optimiser, Adam."""

    hidden: int = Field(BMI_HIDDEN, ge=1, description="units of its one hidden layer")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of these units dropped in training")
    learning_rate: float = Field(2e-4, gt=0, description="learning rate")
    weight_decay: float = Field(
        1e-6, ge=0, description="times the parameter, added to the gradient"
    )


@REGULARISERS.register
class BmiConfig(RegulariserConfig):
    """A mutual-information regulariser: BMI-base, and with phase two BMI-full."""

    # Phase two had the weight of phase one, and was divided by the mean length of a sentence.
    former_defaults: ClassVar[Mapping[str, Any]] = {"phase_two_weight": None}

    kind = "bmi"
    about = "mutual information of neighbouring sentences"
    weight: float = Field(0.1, gt=0, description="weight of phase one in the loss")
    phase_two: bool = Field(
        True, description="BMI-full: importance-weighted RAML in a second phase"
    )
    phase_two_weight: float | None = Field(
        1.0,
        gt=0,
        description="weight of phase two in the loss, which is divided by all tokens of the "
        "batch's "
        "drawn sentences; none: weight times the pairs of the batch",
    )
    switch: float = Field(
        0.5,
        ge=0,
        le=1,
        description="phase two starts when averaging is triggered, and at this share of training "
        "at the latest; 1: only then, 0: at once",
    )
    geometric: float = Field(
        0.3, gt=0, lt=1, description="lambda: how near the next sentence others are drawn"
    )
    temperature: float = Field(
        1.0, gt=0, description="beta of the rewards; low: only the best counts"
    )
    batch: int = Field(12, ge=2, description="pairs M per step")
    ends: list[str] = Field(
        default_factory=list,
        description='tokens that end a sentence besides the end of a line, such as [".", "?"]',
    )
    longest: int = Field(250, ge=1, description="maximum tokens of a sentence")
    segment: int | None = Field(
        None,
        ge=1,
        description="cut the text into segments of this many tokens instead of sentences",
    )
    critic: CriticConfig = CriticConfig()

    def build(self, setup: Setup) -> tuple[NeighbourPairs, "Bmi"]:
        feed = NeighbourPairs(self.text(setup.corpus), self.batch, self.geometric, setup.seed)
        return feed, Bmi(self, setup.model, self.held_out(setup.corpus, "valid"))

    def held_out(self, corpus: Corpus, split: str) -> HeldOutPairs | None:
        """Pairs of a split for measuring the critic; None if there are too few."""
        return HeldOutPairs.draw(self._cut(corpus, split), self.batch, self.segment or self.longest)

    def text(self, corpus: Corpus) -> Documents:
        """The sentences of the training split; refused if one is above the limit."""
        found = self._cut(corpus, "train")
        sizes = np.diff(found.bounds)
        if not self.segment and sizes.max(initial=0) > self.longest:
            raise InfolmError(
                f"sentence {sizes.argmax() + 1:,} of the training split has {sizes.max():,} "
                f"tokens, more than regularisers.bmi.longest, {self.longest:,}: raise that, name "
                'tokens that end a sentence, as in regularisers.bmi.ends=\'[".", "?"]\', or '
                "cut the text into equal segments with regularisers.bmi.segment=40"
            )
        return found

    def _cut(self, corpus: Corpus, split: str) -> Documents:
        tokens, tokenizer = corpus.splits[split].tokens, corpus.tokenizer
        if self.segment:
            return segments(tokens, self.segment)
        ends = [tokenizer.number(end, "regularisers.bmi.ends") for end in self.ends]
        return documents(tokens, tokenizer.eos, ends, corpus.heading)

    def by_parts(self, model: Any) -> str:
        return "pairs of sentences are compared within a part"

    def fault(self, recipe: Any) -> str | None:
        if recipe.model.capability != "language":
            return (
                "regularisers.bmi is for language models that read a running text: set "
                "regularisers.bmi=null, or model.kind to recurrent"
            )
        if not recipe.model.reads_sentences:
            return (
                f"regularisers.bmi reads single sentences, which model.kind {recipe.model.kind} "
                "cannot: set regularisers.bmi=null, or model.kind to recurrent"
            )
        return None


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


def encode(model: LanguageModel, sentences: Tensor) -> Tensor:
    """phi(S): of every layer's output the maximum over time, all layers: (T, B) -> (B, sum_l H_l).

    Each sentence is read by itself, from a state of zeros. Padding is not read at all.
    """
    packed = pack(sentences, lengths(sentences))
    output = model(packed, model.initial_state(sentences.shape[1]))
    hidden = padded(torch.cat(output.layers, -1), packed, -torch.inf)
    return wide(hidden.amax(0))


def padded(rows: Tensor, packed: PackedSequence, filler: float) -> Tensor:
    """The rows (N, H) of a packed batch in their places, (T, B, H), and the filler elsewhere.

    As `pad_packed_sequence`, but its gradient is one gather: that of the original copies all of
    (T, B, H) for each length of a sentence.
    """
    sizes, order = packed.batch_sizes, packed.sorted_indices
    assert order is not None
    steps, batch = len(sizes), len(order)
    there = (torch.arange(batch) < sizes[:, None]).to(rows.device)
    places = (batch * torch.arange(steps, device=rows.device)[:, None] + order)[there]
    filled = rows.new_full((steps * batch, rows.shape[1]), filler)
    return filled.index_copy(0, places, rows).view(steps, batch, -1)


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


def continuation_nll(model: LanguageModel, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
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


def accuracy(positive: Tensor, negative: Tensor) -> Tensor:
    """The critic's accuracy on pairs: (..., M), (..., M, K) -> (...,).

    A pair is taken for neighbours where its score is above 0. Positive and negative pairs have
    equal weight, and a score of 0 counts as half.
    """
    right, wrong = (above(scores).to(scores.dtype) for scores in (positive, negative))
    return (right.mean(-1) + 1 - wrong.mean((-2, -1))) / 2


def _pairs(batch: PairBatch) -> int:
    return int(batch.x.shape[1])


class Reading(NamedTuple):
    """A metric of a critic on held-out pairs.

    stderr: from the spread over groups of pairs; None where there is one group alone.
    """

    value: float
    stderr: float | None


def read_scores(scores: Tensor) -> dict[str, Reading]:
    """The bounds and the accuracy of all scores of G groups, (G, M, M), neighbours on the diagonal.

    `jensen_shannon` (eq. 6) and `accuracy` are means over the groups. `mine` (eq. 4) has one mean
    of e^D, over the negative pairs of all groups, so that its logarithm is not high on average as
    that of a batch is; its error is that of the linearised bound.
    """
    positive, negative = bounds.contrast(scores.double())
    log_means = bounds.log_mean_exp(negative, (-2, -1))
    log_mean = bounds.log_mean_exp(log_means)
    spreads = {
        "jensen_shannon": bounds.jensen_shannon(positive, negative),
        "accuracy": accuracy(positive, negative),
        "mine": positive.mean(-1) - (log_means - log_mean).exp(),
    }
    values = {name: each.mean().item() for name, each in spreads.items()}
    values["mine"] = (positive.mean() - log_mean).item()
    groups = len(scores)
    return {
        name: Reading(values[name], each.std().item() / math.sqrt(groups) if groups > 1 else None)
        for name, each in spreads.items()
    }


@contextmanager
def without_dropout(*modules: nn.Module) -> Iterator[None]:
    """Inside, the modules are in evaluation mode and no gradient is kept."""
    with ExitStack() as after:
        for module in modules:
            after.callback(module.train, module.training)
            module.eval()
        with torch.no_grad():
            yield


class Bmi(Learner):
    """weight loss = -weight I~ + [phase two] weight_2 R / M, with phi the `encode` of the model
    itself and D a `FiveWay`.

        I~ = E_pos[-softplus(-D(phi_x, phi_y))] - E_neg[softplus(D(phi_x, phi_y'))]        (eq. 6)
        R  = -sum_i w_i ln Q(Y_i | X_i) / n        w_i ~ exp(r_i / beta) / G_i             (eq. 17)
        r  = D(phi_x, phi_y) - D(phi_x, phi_y*)                                            (eq. 15)

    Positive pairs are neighbours; in the negative ones every X of the batch is paired with the
    M - 1 next sentences of the others, which were drawn independently of it. So eq. 6 has the
    expectation it has with one random sentence for each X, and less variance. Y is drawn by G from
    near the true next sentence Y*. The weights are constants; n is the mean length of the Y's, so
    that R is in nats per token as the likelihood is. The authors' program divides by the length of
    all M of them and has a weight for that, weight_2 = `phase_two_weight`: hence R / M. Where that
    is None it is weight M, so that both phases have the same weight in nats per token.
    The reward is read without dropout; that of Y* itself is then 0.

    Of the terms, `jensen_shannon` is I~, at most 0, and -2 ln 2 where D knows nothing; `mine`
    the bound on the mutual information that D gives on this batch (eq. 4); `accuracy` the share of
    pairs that D classifies correctly, with equal weight for positive and negative ones. In phase
    two `raml` is R, `reward` the mean r, and `effective` 1 / (M sum_i w_i^2), 1 where all weights
    are alike.

    held_out: pairs of the validation split, on which the first three are read at each validation.
    """

    def __init__(
        self, config: BmiConfig, model: LanguageModel, held_out: HeldOutPairs | None = None
    ) -> None:
        self.config, self.pairs = config, held_out
        size = sum(model.widths)
        critic = FiveWay(size, size, config.critic.hidden, config.critic.dropout)
        self.critic = critic.to(model.device)
        rate, decay = config.critic.learning_rate, config.critic.weight_decay
        parameters = self.critic.parameters()
        self.optimiser = optim.Adam(parameters, lr=rate, weight_decay=decay, fused=True)
        self.phase_two = config.phase_two and config.switch == 0

    def __call__(self, model: LanguageModel, batch: PairBatch, carry: None) -> Estimate:
        # Every process compares the pairs of all, and its loss is its share of the same number.
        x, y = map(gather, encode(model, beside([batch.x, batch.y])).chunk(2))
        positive, negative = bounds.contrast(wide(self.critic(x, y)))
        information = bounds.jensen_shannon(positive, negative)
        loss = -information
        with torch.no_grad():
            terms = {
                "jensen_shannon": information.detach(),
                "mine": bounds.donsker_varadhan(positive, negative),
                "accuracy": accuracy(positive, negative),
            }
        if self.phase_two:
            raml, said = self._raml(model, batch)
            loss = loss + self._share(len(positive)) * raml
            terms |= said
        terms = {"loss": loss.detach(), **terms}
        return Estimate(share(batch, _pairs) * loss, terms, _pairs(batch))

    def _share(self, pairs: int) -> float:
        """The factor of R in the loss, which has its own weight."""
        weight = self.config.phase_two_weight
        return 1.0 if weight is None else weight / (self.config.weight * pairs)

    def _raml(self, model: LanguageModel, batch: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        reward = self.reward(model, batch)
        log_proposal, own = gather(batch.log_proposal), own_rows(batch.log_proposal)
        weights = importance_weights(reward, log_proposal, self.config.temperature)
        nll = gather(continuation_nll(model, batch.x, batch.drawn, weights[own])[None]).sum()
        raml = nll / gather(lengths(batch.drawn)).float().mean()
        effective = 1 / (len(weights) * weights.square().sum())
        return raml, {"raml": raml.detach(), "reward": reward.mean(), "effective": effective}

    def reward(self, model: LanguageModel, batch: PairBatch) -> Tensor:
        """r of each sentence that was drawn, (M,), in all processes."""
        with without_dropout(model, self.critic):
            read = encode(model, beside([batch.x, batch.y, batch.drawn]))
            x, y, drawn = read.chunk(3)
            return gather(paired(self.critic, x, drawn) - paired(self.critic, x, y))

    def read(self, model: LanguageModel, held_out: HeldOutPairs) -> dict[str, Reading]:
        """The critic's metrics on held-out pairs; see `read_scores`."""
        numbers, text, device = held_out.sentences, held_out.text, model.device
        sizes = np.diff(text.bounds)[numbers]
        by_size = numbers[np.argsort(sizes, kind="stable")]  # so that there is little padding
        places = torch.from_numpy(np.argsort(by_size))
        with without_dropout(model, self.critic):
            codes = torch.cat(
                [
                    encode(model, torch.from_numpy(text.read(by_size[at : at + READ])).to(device))
                    for at in range(0, len(by_size), READ)
                ]
            )[places.to(device)]
            x, y = (
                codes[torch.from_numpy(np.searchsorted(numbers, held_out.first + after)).to(device)]
                for after in (0, 1)
            )
            scores = [self.critic(*group) for group in zip(x, y, strict=True)]
        return read_scores(torch.stack(scores))

    def held_out(self, model: LanguageModel) -> dict[str, float]:
        if self.pairs is None:
            return {}
        found: dict[str, float] = {"pairs": self.pairs.pairs}
        for name, (value, stderr) in self.read(model, self.pairs).items():
            found[name] = value
            if stderr is not None:
                found[f"{name}{STDERR}"] = stderr
        return found

    def parameters(self) -> Iterable[nn.Parameter]:
        return self.critic.parameters()

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
        learnt, wanted = len(state["critic"]["of_x.weight"]), self.config.critic.hidden
        if learnt != wanted:
            raise InfolmError(
                f"the trained critic has {learnt} hidden units, and "
                f"regularisers.bmi.critic.hidden is {wanted}: set it to {learnt}"
            )
        self.critic.load_state_dict(state["critic"])
        load_optimiser(self.optimiser, state["optimiser"])
        self.phase_two = self.config.phase_two and (self.phase_two or state["phase_two"])
