"""Bounds on the likelihood of sentences under a model with a latent code.

    ln p(x) = ln E_{p(z)} p(x | z)

is bounded from below with codes drawn from q(z | x), or from a wider proposal r(z | x):

    ELBO    E_q ln p(x | z) - KL(q(z | x) || p(z))
    IWAE    ln 1/K sum_k p(x | z_k) p(z_k) / r(z_k | x)      (Burda et al. 2016)
    MELBO   E_q ln p(x | z) - ln N                           (Livne et al. 2020, eqs. 15 and 16)

The meaning of a bound depends on the prior. ELBO and IWAE hold for the prior a model was trained
with, N(0, 1) or the uniform one of classes, and IWAE for any other, such as the aggregated
posterior of the *training* sentences. MELBO holds only for one prior, the aggregated posterior of
the N sentences that are measured, 1/N sum_j q(z | x_j): the code of each test sentence is in it. So
it is not a likelihood that was fixed before the test set was seen, and must not be compared with
one.

Results are in nats, in double precision and in the order of the sentences, however they are
batched. A sentence's log-likelihood comes in two parts, that of its words and that of the <eos>
after them. <eos> counts either in both the loss and the number of tokens or in neither; in the
latter case a bound is on the probability that a sentence begins with these words.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infolm.data.sentences import Lines
from infolm.errors import InfolmError
from infolm.evaluation.likelihood import Progress, evaluating
from infolm.models.codes.base import Prior
from infolm.models.codes.gaussian import NORMAL, Posterior
from infolm.models.codes.proposal import Proposal
from infolm.models.latent import LatentModel
from infolm.training.loop import tensors

SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""Candidate widths of a proposal, in standard deviations of q; at MIM's floor the last is 1.7."""
TOGETHER = 2**16
"""Tokens decoded together, if there are enough codes."""
COMPONENTS, ROWS = 1024, 4096
"""Densities of a mixture held in memory at once: 32 MB."""

Array = npt.NDArray[np.float64]


def encoded(model: LatentModel, lines: Lines, report: Progress | None = None) -> Proposal:
    """q(z | x) of all S > 0 sentences, in double precision on the CPU."""
    found, order = [], []
    done, total = 0, int(lines.lengths.sum()) + len(lines)
    with evaluating(model) as device:
        for numbers, batch in lines.batches():
            found.append(model.encode(torch.from_numpy(batch.read).to(device), batch.sizes))
            order.append(numbers)
            done += batch.tokens
            if report:
                report(done, total)
    places = torch.from_numpy(np.concatenate(order)).argsort()
    every: Proposal = found[0].joined(found, places)
    return every


def posteriors(model: LatentModel, lines: Lines, report: Progress | None = None) -> Posterior:
    """The same for a model with Gaussian codes, (S, Z); other models are refused."""
    found = encoded(model, lines, report).gaussian
    if found is None:
        raise InfolmError(
            "this needs Gaussian codes, which have a mean and a standard deviation: choose a run "
            "whose "
            "model.latent.kind is gaussian"
        )
    return found


def placed(model: LatentModel, z: Tensor) -> Tensor:
    """Codes on the model's device; vectors also in its precision."""
    return z.to(model.embedding if z.is_floating_point() else model.embedding.device)


class LogLikelihoods(NamedTuple):
    """ln p(w_1 ... w_n | z) and ln p(<eos> | w_1 ... w_n, z), shaped alike: (S,) or (K, S)."""

    words: Array
    eos: Array

    def counted(self, eos: bool) -> Array:
        """The log-likelihood that counts, with <eos> or without."""
        return self.words + self.eos if eos else self.words


def log_likelihoods(
    model: LatentModel, lines: Lines, z: Tensor, report: Progress | None = None
) -> LogLikelihoods:
    """Log-likelihoods of each sentence given its own code, z (S, ...): (S,) twice. The <eos> of a
    single symbol is certain."""
    words, ends = np.empty(len(lines)), np.empty(len(lines))
    done, total = 0, int(lines.lengths.sum()) + len(lines)
    with evaluating(model) as device:
        for numbers, batch in lines.batches():
            codes = placed(model, z[torch.from_numpy(numbers)])
            of_words, of_ends = model.log_likelihood_parts(codes, tensors(batch, device))
            words[numbers], ends[numbers] = of_words.numpy(), of_ends.numpy()
            done += batch.tokens
            if report:
                report(done, total)
    return LogLikelihoods(words, ends)


@dataclass(frozen=True, eq=False)
class Aggregated:
    """1/N sum_j N(z; mean_j, (scale sigma_j)^2), the aggregated posterior of N sentences, with
    scale = 1; exact.

    source: the sentences' split, for the name. With training sentences this prior is fixed before
    any test sentence is seen. If q is narrow, as MIM's, only a wider one has mass between the
    sentences: a kernel density estimate of the codes.
    """

    posterior: Posterior
    source: str
    scale: float = 1.0

    @property
    def name(self) -> str:
        of = f"the aggregated posterior of {len(self.posterior.mean):,} {self.source} sentences"
        return of if self.scale == 1 else f"{of}, each {self.scale:g} times as wide"

    def log_density(self, z: Tensor) -> Tensor:
        total = torch.full((len(z),), -math.inf, dtype=torch.float64)
        wide = self.posterior.widened(self.scale)
        for part in zip(*(side.split(COMPONENTS) for side in wide), strict=True):
            for rows, codes in zip(total.split(ROWS), z.split(ROWS), strict=True):
                torch.logaddexp(rows, Posterior(*part).log_densities(codes).logsumexp(1), out=rows)
        return total - math.log(len(self.posterior.mean))


class Draws(NamedTuple):
    """K codes for each of S sentences, drawn from r(z | x): their log-likelihoods (K, S), and ln
    p(z) / r(z | x), (K, S)."""

    likelihoods: LogLikelihoods
    log_ratio: Array


def draw(
    model: LatentModel,
    lines: Lines,
    posterior: Proposal,
    samples: int,
    generator: torch.Generator,
    prior: Prior | None = None,
    scale: float = 1.0,
    report: Progress | None = None,
) -> Draws:
    """`samples` codes for each sentence, from r = N(mean, (scale sigma)^2), or from q if it is not
    Gaussian; see `Draws`.

    posterior: of the sentences. prior: by default the posterior's own. Any scale gives a bound,
    scale 1 the usual one. The q of MIM is far narrower than p(z | x), so its best scale is far
    above 1.
    """
    proposal = posterior.widened(scale)
    prior, count = prior or posterior.prior, len(lines)
    words, eos, ratio = (np.empty((samples, count)) for _ in range(3))
    copies = max(1, TOGETHER // (int(lines.lengths.sum()) + count))
    for rows in np.split(np.arange(samples), range(copies, samples, copies)):
        z = proposal.drawn(len(rows), generator)
        repeated = lines.chosen(np.tile(np.arange(count), len(rows)))
        found = log_likelihoods(model, repeated, z.flatten(0, 1))
        words[rows], eos[rows] = (part.reshape(-1, count) for part in found)
        density = prior.log_density(z.flatten(0, 1)).view(-1, count)
        ratio[rows] = (density - proposal.log_density(z)).numpy()
        if report:
            report(int(rows[-1]) + 1, samples)
    return Draws(LogLikelihoods(words, eos), ratio)


def elbo(log_p: Array, kl: Array) -> Array:
    """mean_k ln p(x | z_k) - KL(q || p): (K, S) with codes of q, (S,) -> (S,)."""
    return log_p.mean(0) - kl


def importance_weighted(log_p: Array, log_ratio: Array) -> Array:
    """ln 1/K sum_k p(x | z_k) p(z_k) / r(z_k | x): (K, S) twice -> (S,).

    Its mean over the draws rises with K and tends to ln p(x); for K = 1 and r = q it is the ELBO's.
    """
    return np.logaddexp.reduce(log_p + log_ratio, 0) - math.log(len(log_p))


class Weighting(NamedTuple):
    """The prior and the proposal's scale of an importance-weighted bound."""

    prior: Prior = NORMAL
    scale: float = 1.0


def tuned_weighting(
    model: LatentModel,
    lines: Lines,
    choices: Sequence[Weighting],
    samples: int = 20,
    most: int = 100,
    seed: int = 1,
    report: Progress | None = None,
) -> Weighting:
    """The choice whose `importance_weighted` bound is highest on some of `lines`, from the
    validation split. All use the same noise."""
    lines = some(lines, most, seed)
    posterior = posteriors(model, lines)
    bounds = []
    for done, (prior, scale) in enumerate(choices, 1):
        generator = torch.Generator().manual_seed(seed)
        draws = draw(model, lines, posterior, samples, generator, prior, scale)
        bounds.append(importance_weighted(draws.likelihoods.counted(True), draws.log_ratio).mean())
        if report:
            report(done, len(choices))
    return choices[int(np.argmax(bounds))]


def some(lines: Lines, most: int, seed: int) -> Lines:
    """At most `most` of the sentences, drawn, in the order of the text."""
    if len(lines) <= most:
        return lines
    drawn = np.random.default_rng(seed).choice(len(lines), most, replace=False)
    return lines.chosen(np.sort(drawn))


def melbo(log_p: Array, sentences: int) -> Array:
    """mean_k ln p(x | z_k) - ln N: (K, S) with codes of q -> (S,) (eqs. 15 and 16).

    At most ln p(x) if the prior is the aggregated posterior of N sentences including x, since that
    is nowhere less than q(z | x) / N. Equal if no other sentence's q reaches x's codes and p(x | z)
    is the same for all of these.
    """
    return log_p.mean(0) - math.log(sentences)


def melbo_by_size(log_p: Array, sizes: npt.ArrayLike) -> tuple[Array, Array]:
    """MELBO's bound on the NLL per sentence with only K of the S sentences (figure 5).

    log_p: mean_k ln p(x | z_k) of each sentence, (S,), S >= 2; sizes: k values of K. Gives the mean
    -mean log_p + ln K and the standard deviation, (k,) each, over all subsets of size K. The latter
    is s sqrt((1 - K / S) / K), as for any mean of draws without replacement, s^2 the variance over
    the sentences. Beyond S the mean is an extrapolation, without a standard deviation.
    """
    k = np.asarray(sizes, np.float64)
    spread = log_p.std(ddof=1) * np.sqrt(np.clip(1 - k / len(log_p), 0, None) / k)
    return np.log(k) - log_p.mean(), spread


def melbo_meets(log_p: Array, nll: float) -> float:
    """ln K of the number of sentences at which MELBO's bound is a competitor's `nll` per sentence,
    if reconstruction stays as good; log_p (S,) as in `melbo_by_size`."""
    return nll + float(log_p.mean())
