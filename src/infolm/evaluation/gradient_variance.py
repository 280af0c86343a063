"""Gradient noise of the policy gradient over IW-RAML, per parameter (Cao & Xu 2020, figure 3).

Phase two of BMI could raise the information of a model Q's text by the policy gradient. The paper
trains by importance-weighted RAML instead, because of the variance. This is the policy gradient,
for comparison and not for training: of the gradient of

    I~ = E_{Q_XY}[R+] - E_{Q_X Q_Y}[R-],  R+ = -softplus(-D), R- = softplus(D)         (eqs. 7, 8)

the part by which Q itself changes (eq. 10; phase one stands for the other, eq. 9),

    g2 = E_{Q_XY}[R+ grad ln Q_XY] - E_{Q_X Q_Y}[R- (grad ln Q_X + grad ln Q_Y)].

Both are measured without dropout. Dropout would make each gradient noisier, and the policy gradient
biased as well unless a sample were drawn and scored under the same mask. So all variance comes from
the sentences, drawn from the text or from the model.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.nn.utils.rnn import pad_packed_sequence

from infolm.data.pairs import NeighbourPairs, PairBatch
from infolm.data.stream import PADDING
from infolm.errors import InfolmError, RunError
from infolm.evaluation.dynamic import gradients, learning
from infolm.evaluation.likelihood import Progress
from infolm.information.critics import Critic
from infolm.models.language import LanguageModel
from infolm.objectives.bmi import (
    Bmi,
    beside,
    continuation_nll,
    encode,
    importance_weights,
    lengths,
    pack,
    without_dropout,
)
from infolm.training.loop import tensors

GROUPS = 4
"""Groups of batches, whose spread gives the standard error."""
QUANTILES = (0.01, 0.05, 0.25, 0.75, 0.95, 0.99)
LEAST_SAMPLES = 3
"""A pair of samples leaves one other for the baseline."""

Gradient = Callable[[], Tensor]
"""Draws a batch and gives the flat gradient on it, (W,)."""


class SentenceEnd(NamedTuple):
    """The end of a sentence drawn from the model: one of the tokens `stops`, or its `limit`-th
    token.

    An initial <eos> does not end it: in a text, too, it belongs to a sentence, and an empty line is
    not a sentence. If the text is cut into blocks of equal length, there are no stops.
    """

    eos: int
    stops: tuple[int, ...]
    limit: int


def draw_sentence(
    model: LanguageModel, before: Tensor, end: SentenceEnd, generator: torch.Generator
) -> Tensor:
    """A sentence that continues each column of `before`, (T, M) -> (T', M).

    The model reads `before` from a state of zeros. It must be in evaluation mode.
    """
    packed = pack(before, lengths(before))
    output = model(packed, model.initial_state(before.shape[1]))
    rows, _ = pad_packed_sequence(packed._replace(data=output.hidden))
    last = (lengths(before) - 1)[None, :, None].expand(1, -1, rows.shape[2])
    hidden, state = rows.gather(0, last)[0], output.state
    stops = torch.tensor(end.stops, dtype=torch.long, device=before.device)
    ended = torch.zeros(before.shape[1], dtype=torch.bool, device=before.device)
    words: list[Tensor] = []
    while True:
        drawn = torch.multinomial(model.log_probs(hidden).exp(), 1, generator=generator)[:, 0]
        words.append(drawn.masked_fill(ended, PADDING))
        stopped = torch.isin(drawn, stops)
        ended = ended | (stopped if len(words) > 1 else stopped & (drawn != end.eos))
        if len(words) == end.limit or bool(ended.all()):
            return torch.stack(words)
        output = model(drawn[None], state)
        hidden, state = output.hidden[0], output.state


def advantages(scores: Tensor, baseline: bool = True) -> tuple[Tensor, Tensor]:
    """The coefficients of ln Q(X_i) and ln Q(Y_i | X_i) in the estimate of g2: (M, M) -> (M,),
    (M,).

    scores: D(X_i, Y_j), of M >= 3 independent samples (X_i, Y_i) of Q_XY. Those with i != j are
    pairs of Q_X Q_Y. ln Q_Y, a sum over every X, is intractable, but its gradient at Y_j is the
    mean of that of ln Q(X_j, Y_j) over the X_j that Y_j may follow. So the estimate is

        1/M sum_i R+_ii grad ln Q(X_i, Y_i)
        - 1/(M (M - 1)) sum_{i != j} R-_ij (grad ln Q(X_i) + grad ln Q(X_j, Y_j))

    A baseline is subtracted from each reward: R+_ii less the mean of the other R+, and R-_ij, where
    it multiplies the gradient of sample k, less the mean of all R- without k. These do not depend
    on that sample, and a gradient of a logarithm has a mean of 0: no bias is added. Without
    `baseline` it is eq. 10 itself, whose rewards are far from 0 and nearly equal.
    """
    count = len(scores)
    gain = -softplus(-scores.diagonal())
    loss = softplus(scores) * (1 - torch.eye(count, dtype=scores.dtype, device=scores.device))
    as_x, as_y = loss.sum(1), loss.sum(0)
    gained, lost_as_x, lost_as_y = gain, as_x / (count - 1), as_y / (count - 1)
    if baseline:
        gained = gained - (gain.sum() - gain) / (count - 1)
        others = (loss.sum() - as_x - as_y) / ((count - 1) * (count - 2))
        lost_as_x, lost_as_y = lost_as_x - others, lost_as_y - others
    return (gained - lost_as_x - lost_as_y) / count, (gained - lost_as_y) / count


def policy_loss(
    model: LanguageModel, critic: Critic, eos: int, x: Tensor, y: Tensor, baseline: bool = True
) -> Tensor:
    """A scalar whose gradient is -g2 as estimated from the samples x (T, M) and y (T', M)."""
    start = torch.full_like(x[:1], eos)
    with without_dropout(model):
        scores = critic(*encode(model, beside([x, y])).chunk(2))
        of_x, of_y = advantages(scores, baseline)
    nll = continuation_nll(model, start, x, of_x)
    return nll + continuation_nll(model, torch.cat([start, x]), y, of_y)


def raml_loss(model: LanguageModel, bmi: Bmi, batch: PairBatch) -> Tensor:
    """-sum_i w_i ln Q(Y_i | X_i), in nats per sentence (eq. 17); the weights are constants."""
    reward = bmi.reward(model, batch)
    weights = importance_weights(reward, batch.log_proposal, bmi.config.temperature)
    return continuation_nll(model, batch.x, batch.drawn, weights)


def estimators(
    model: LanguageModel,
    bmi: Bmi,
    feed: NeighbourPairs,
    end: SentenceEnd,
    seed: int,
    baseline: bool = True,
) -> tuple[Gradient, Gradient]:
    """The policy gradient of M pairs that the model draws, and IW-RAML's of M pairs of the text.

    M is that of `feed`, whose batches are drawn as in training: no pair twice in a pass. In a pair
    drawn from the model, X starts after an <eos> and a state of zeros, and Y continues X. Both
    gradients are means over M pairs, and read as many sentences.
    """
    if feed.batch < LEAST_SAMPLES:
        raise InfolmError(
            f"regularisers.bmi.batch is {feed.batch} here, and the policy gradient's baseline "
            f"needs {LEAST_SAMPLES} pairs: train with a larger batch, or more text"
        )
    device = model.device
    generator = torch.Generator(device).manual_seed(seed)
    start = torch.full((1, feed.batch), end.eos, device=device)

    def flat(loss: Tensor) -> Tensor:
        return torch.cat([gradient.flatten() for gradient in gradients(model, loss)])

    def policy() -> Tensor:
        with without_dropout(model):
            x = draw_sentence(model, start, end, generator)
            y = draw_sentence(model, torch.cat([start, x]), end, generator)
        with learning(model):
            return flat(policy_loss(model, bmi.critic, end.eos, x, y, baseline))

    def raml() -> Tensor:
        batch = tensors(feed.next(), device)
        with learning(model):
            return flat(raml_loss(model, bmi, batch))

    return policy, raml


class Moments:
    """Running mean and variance of vectors (W,), by Welford's algorithm.

    In double precision: the square of a small gradient underflows in single.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = torch.zeros((), dtype=torch.double)
        self.squares = torch.zeros((), dtype=torch.double)
        """The sum of squared differences from the mean."""

    def add(self, vector: Tensor) -> None:
        vector = vector.double()
        change = vector - self.mean
        self.count += 1
        self.mean = self.mean + change / self.count
        self.squares = self.squares + change * (vector - self.mean)

    def merge(self, other: "Moments") -> None:
        """Merge with `other` (Chan et al. 1979)."""
        count = self.count + other.count
        change = other.mean - self.mean
        between = change.square() * (self.count * other.count / count)
        self.mean = self.mean + change * (other.count / count)
        self.squares = self.squares + other.squares + between
        self.count = count

    @property
    def variance(self) -> Tensor:
        """The unbiased estimate, (W,)."""
        return self.squares / (self.count - 1)

    @property
    def noise(self) -> float:
        """E|g - E g|^2, the sum of the variances of all parameters."""
        return float(self.squares.sum()) / (self.count - 1)

    @property
    def signal(self) -> float:
        """|E g|^2, unbiased: without the noise in the mean. It may be below 0."""
        return float(self.mean.square().sum()) - self.noise / self.count


@dataclass(frozen=True)
class Precision:
    """A gradient estimator's E|g - E g|^2 and |E g|^2 for a batch, and the latter's standard
    error."""

    noise: float
    signal: float
    signal_stderr: float

    @property
    def relative_error(self) -> float | None:
        """noise / signal, the squared relative error of a batch's gradient, independent of the
        objective's scale. The average of this many batches has an error as large as the gradient.

        None if the signal cannot be distinguished from 0, being less than two standard errors.
        """
        told = self.signal > 2 * self.signal_stderr
        return self.noise / self.signal if told else None

    @property
    def least_relative_error(self) -> float:
        """Its lower bound, with the signal two standard errors higher."""
        return self.noise / (max(self.signal, 0.0) + 2 * self.signal_stderr)


@dataclass(frozen=True)
class Comparison:
    """The policy gradient (rl) compared with IW-RAML (raml), for W parameters.

    log_ratios: log10 of Var_rl / Var_raml of each parameter that varies in both, float64.
    Parameters that never vary, such as the rows of words not read, and those that vary in only one
    have none; `unused`, `rl_only` and `raml_only` count them.
    """

    log_ratios: npt.NDArray[np.float64]
    unused: int
    rl_only: int
    raml_only: int
    mean_log_stderr: float
    median_log_stderr: float
    rl: Precision
    raml: Precision
    batches: int

    @property
    def weights(self) -> int:
        return len(self.log_ratios) + self.unused + self.rl_only + self.raml_only

    @property
    def mean_ratio(self) -> float:
        """The mean of the ratios themselves, as in the paper. The largest dominate it: those of the
        rows of rare words that the model drew and the text's batches lack. So it depends on the
        number of batches, unlike the median."""
        return float(np.mean(10**self.log_ratios))

    def numbers(self) -> dict[str, Any]:
        """All results by name."""
        logs = self.log_ratios
        found = (np.quantile(logs, q) for q in QUANTILES)
        rl, raml = self.rl.relative_error, self.raml.relative_error
        return {
            "mean_ratio": self.mean_ratio,
            "median_ratio": float(10 ** np.median(logs)),
            "quantiles": {str(q): float(10**log) for q, log in zip(QUANTILES, found, strict=True)},
            "mean_log10": float(logs.mean()),
            "mean_log10_stderr": self.mean_log_stderr,
            "median_log10": float(np.median(logs)),
            "median_log10_stderr": self.median_log_stderr,
            "above_1": float(np.mean(logs > 0)),
            "above_10": float(np.mean(logs > 1)),
            "below_0.1": float(np.mean(logs < -1)),
            "weights": self.weights,
            "compared": len(logs),
            "unused": self.unused,
            "rl_only": self.rl_only,
            "raml_only": self.raml_only,
            "rl_relative_error": rl,
            "rl_relative_error_at_least": self.rl.least_relative_error,
            "raml_relative_error": raml,
            "raml_relative_error_at_least": self.raml.least_relative_error,
            "relative_error_ratio": rl / raml if rl and raml else None,
            "relative_error_ratio_at_least": self.rl.least_relative_error / raml if raml else None,
            "batches": self.batches,
        }


def log_ratios(rl: Moments, raml: Moments) -> npt.NDArray[np.float64]:
    """log10 of the variances' ratio, (W,): infinite if only one of them is 0, NaN if both are."""
    logs = rl.variance.log10() - raml.variance.log10()
    return np.asarray(logs.cpu().numpy(), np.float64)


def stderr(values: Sequence[float]) -> float:
    """The standard error of the mean of independent values."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def compare(
    rl: Gradient, raml: Gradient, batches: int, report: Progress | None = None
) -> Comparison:
    """Take `batches` gradients of each, and keep only means and variances: eight vectors (W,) of
    doubles, however many batches there are.

    Standard errors are those between `GROUPS` groups of batches. Each group has its own mean and
    variance, so it needs at least two batches.
    """
    if batches < 2 * GROUPS:
        raise InfolmError(
            f"--batches is {batches}, too few to estimate a variance and its error: use at "
            f"least {2 * GROUPS}, or 200 as usual"
        )
    whole = Moments(), Moments()
    means, medians, signals = [], [], []
    for group in np.array_split(np.arange(1, batches + 1), GROUPS):
        part = Moments(), Moments()
        for done in group:
            for moments, gradient in zip(part, (rl, raml), strict=True):
                moments.add(gradient())
            if report:
                report(int(done), batches)
        logs = log_ratios(*part)
        logs = logs[np.isfinite(logs)]
        if not len(logs):
            raise RunError(
                "no parameter's gradient varies in both, so the critic has learnt nothing: train "
                "longer"
            )
        means.append(logs.mean())
        medians.append(np.median(logs))
        signals.append([moments.signal for moments in part])
        for moments, own in zip(whole, part, strict=True):
            moments.merge(own)
    logs = log_ratios(*whole)
    errors = [stderr(each) for each in zip(*signals, strict=True)]
    precise = [Precision(m.noise, m.signal, e) for m, e in zip(whole, errors, strict=True)]
    return Comparison(
        logs[np.isfinite(logs)],
        unused=int(np.isnan(logs).sum()),
        rl_only=int(np.isposinf(logs).sum()),
        raml_only=int(np.isneginf(logs).sum()),
        mean_log_stderr=stderr(means),
        median_log_stderr=stderr(medians),
        rl=precise[0],
        raml=precise[1],
        batches=batches,
    )
