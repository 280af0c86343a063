"""What the codes of a sentence model look like: are they used, and how much do they tell?"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infolm.data.sentences import Lines
from infolm.errors import InfolmError
from infolm.evaluation.latent import (
    Array,
    draw,
    elbo,
    log_densities,
    log_likelihoods,
    melbo_by_size,
    posteriors,
    some,
)
from infolm.information.nearest import kozachenko_leonenko
from infolm.models.sentence import Posterior, SentenceModel

ACTIVE = 0.01
"""A dimension is active if its mean varies by more than this over sentences (Burda et al. 2016)."""
BLOCK = 2**22
"""Densities held at once: 32 MB."""
SAMPLES = 3
"""Codes of a sentence in a picture."""
OTHERS = 3
"""Sentences that each one is set against in a picture."""


class Information(NamedTuple):
    """I(x; z) in nats, its standard error, and ln N, the most it can be."""

    value: float
    stderr: float
    ceiling: float


def mutual_information(posterior: Posterior, z: Tensor) -> Information:
    """I(x; z) under q with x uniform over N sentences; z (N, Z): a code drawn for each.

        1/N sum_i t_i,    t_i = ln q(z_i | x_i) - ln 1/N sum_j q(z_i | x_j) <= ln N

    Identical posteriors give 0, and those far apart ln N: near that the sentences are too few, and
    of what z tells of sentences at large only this lower bound is known. The mean KL to N(0, 1), or
    to any prior, is a bound from above.

    The error is that over draws of sentences and codes, by the jackknife, which is exact here: with
    r_ki = q(z_k | x_i) / sum_j q(z_k | x_j), leaving out sentence i takes its t_i from the sum and
    adds d_i = -sum_{k != i} ln(1 - r_ki) to the others' t_k. So the error is the deviation of
    t_i - d_i over sqrt N. It is too large rather than too small: by up to sqrt 2 near ln N, where
    what is missing is due to few pairs of sentences.
    """
    count = len(z)
    own, others = np.empty(count), np.zeros(count)
    for rows in torch.arange(count).split(max(1, BLOCK // count)):
        log_q = log_densities(posterior, z[rows])
        log_share = log_q - log_q.logsumexp(1, keepdim=True)
        here = torch.arange(len(rows)), rows
        log_own = log_share[here]
        # What is left without another's share is no less than one's own, whatever the rounding.
        left = torch.log1p(-log_share.exp()).maximum(log_own[:, None])
        left[here] = 0
        own[rows] = log_own.numpy() + math.log(count)
        others -= left.sum(0).numpy()
    stderr = (own - others).std(ddof=1) / math.sqrt(count)
    return Information(float(own.mean()), float(stderr), math.log(count))


def variances(posterior: Posterior) -> Array:
    """The variance of each dimension's mean over sentences, (Z,)."""
    return posterior.mean.double().var(0, correction=0).numpy()


class Entropy(NamedTuple):
    """The differential entropy of codes by nearest neighbours, in nats, and its standard error.

    control: the same estimate from as many draws of N(0, 1), whose entropy is `normal`, exactly:
    the difference is the estimator's bias, which is large in many dimensions.
    """

    value: float
    stderr: float
    control: float
    control_stderr: float
    normal: float


def latent_entropy(z: Tensor, generator: torch.Generator) -> Entropy:
    """Of codes z (N, Z), one a sentence. Codes that coincide are refused; see
    `kozachenko_leonenko`."""
    normal = torch.randn(z.shape, generator=generator, dtype=torch.float64)
    exact = 0.5 * z.shape[1] * math.log(2 * math.pi * math.e)
    return Entropy(*kozachenko_leonenko(z), *kozachenko_leonenko(normal), exact)


class Contrast(NamedTuple):
    """Figure 3 of Livne et al.: ln p(x_i | z_j) and ln q(z_i | x_j), of S sentences and their own
    codes (S,), i = j, and of each with some others, i != j."""

    own_likelihood: Array
    other_likelihood: Array
    own_density: Array
    other_density: Array


def contrast(
    model: SentenceModel, lines: Lines, posterior: Posterior, z: Tensor, others: int, seed: int
) -> Contrast:
    """Each sentence beside its own code and those of `others` sentences, fewer than S; z (S, Z)."""
    shifts = np.random.default_rng(seed).choice(len(lines) - 1, others, replace=False) + 1
    likelihoods, densities = [], []
    for shift in (0, *shifts.tolist()):
        likelihoods.append(log_likelihoods(model, lines, z.roll(shift, 0)).counted(True))
        moved = Posterior(*(side.roll(shift, 0) for side in posterior))
        densities.append(moved.log_density(z).numpy())
    own_p, *other_p = likelihoods
    own_q, *other_q = densities
    return Contrast(own_p, np.concatenate(other_p), own_q, np.concatenate(other_q))


@dataclass(frozen=True, eq=False)
class Picture:
    """What a report shows of S sentences and codes of Z dimensions; nats, with <eos>.

    kl: KL(q(z_d | x) || N(0, 1)) of each dimension, the mean over sentences, (Z,); `mean_kl` is its
    sum. variance: of each dimension's mean over sentences, (Z,); active: where it is above
    `ACTIVE`, (Z,). information, information_error, ceiling: see `mutual_information`.
    own_likelihood ... other_density: see `Contrast`. elbo (S,). melbo (S,): mean ln p(x | z), MELBO
    without its ln N. sizes, bound, bound_error: see `melbo_by_size`. tokens: with an <eos> each.
    """

    kl: Array
    variance: Array
    active: npt.NDArray[np.bool_]
    information: float
    information_error: float
    ceiling: float
    mean_kl: float
    own_likelihood: Array
    other_likelihood: Array
    own_density: Array
    other_density: Array
    elbo: Array
    melbo: Array
    sizes: npt.NDArray[np.int64]
    bound: Array
    bound_error: Array
    sentences: int
    tokens: int


def picture(model: SentenceModel, lines: Lines, seed: int = 1, most: int = 500) -> Picture:
    """Of at most `most` of the sentences, drawn; two at least are needed."""
    lines = some(lines, most, seed)
    count = len(lines)
    if count < 2:
        raise InfolmError(f"a picture of the codes needs 2 sentences at least, not {count}")
    generator = torch.Generator().manual_seed(seed)
    posterior = posteriors(model, lines)
    z = posterior.at(torch.randn(posterior.mean.shape, generator=generator, dtype=torch.float64))
    information = mutual_information(posterior, z)
    log_p = draw(model, lines, posterior, SAMPLES, generator).likelihoods.counted(True)
    kl, variance = posterior.kl().numpy(), variances(posterior)
    sizes = np.unique(np.geomspace(min(10, count), count, 40).round().astype(np.int64))
    bound, bound_error = melbo_by_size(log_p.mean(0), sizes)
    return Picture(
        kl.mean(0),
        variance,
        variance > ACTIVE,
        *information,
        float(kl.sum(1).mean()),
        *contrast(model, lines, posterior, z, min(OTHERS, count - 1), seed),
        elbo(log_p, kl.sum(1)),
        log_p.mean(0),
        sizes,
        bound,
        bound_error,
        count,
        int(lines.lengths.sum()) + count,
    )
