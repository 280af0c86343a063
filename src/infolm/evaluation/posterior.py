"""Statistics of a model's codes: are they used, and how much information do they carry?"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple, cast

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
    encoded,
    log_likelihoods,
    melbo_by_size,
    some,
)
from infolm.models.codes.categorical import Categories
from infolm.models.codes.gaussian import Posterior
from infolm.models.codes.proposal import Proposal
from infolm.models.latent import LatentModel

ACTIVE = 0.01
"""A dimension is active if its mean has a variance above this over sentences (Burda et al. 2016);
a variable of classes, if it carries more nats than this about its sentence."""
ABOVE_NOISE = 1.0
"""A dimension stands above the noise if the variance of its mean is more than this many times the
mean variance of q(z_d | x). At 1 more than half of the variance of its codes is between sentences,
and a Gaussian channel of that ratio carries 1/2 ln 2 nats, half a bit. It has no unit, so it holds
for any width of q, where `ACTIVE` is for one about as wide as the prior."""
BLOCK = 2**22
"""Densities held at once: 32 MB."""
SAMPLES = 3
"""Codes per sentence in a picture."""
OTHERS = 3
"""Other sentences that each one is compared with in a picture."""


class Information(NamedTuple):
    """I(x; z) in nats, its standard error, and ln N, the most it can be."""

    value: float
    stderr: float
    ceiling: float


def mutual_information(posterior: Posterior | Categories, z: Tensor) -> Information:
    """I(x; z) under q with x uniform over N sentences; z (N, ...): a code drawn for each.

        1/N sum_i t_i,    t_i = ln q(z_i | x_i) - ln 1/N sum_j q(z_i | x_j) <= ln N

    Identical posteriors give 0, and those far apart ln N: near that the sentences are too few, and
    this is only a lower bound on the information about sentences in general. The mean KL to any
    prior is an upper bound. If q is deterministic, this is the entropy of codes.

    The error is that over draws of sentences and codes, by the jackknife, which is exact here: with
    r_ki = q(z_k | x_i) / sum_j q(z_k | x_j), leaving out sentence i takes its t_i from the sum and
    adds d_i = -sum_{k != i} ln(1 - r_ki) to the others' t_k. So the error is the standard deviation
    of t_i - d_i over sqrt N. It is too large rather than too small: by up to sqrt 2 near ln N,
    where what is missing is due to few pairs of sentences.
    """
    count = len(z)
    own, others = np.empty(count), np.zeros(count)
    for rows in torch.arange(count).split(max(1, BLOCK // count)):
        log_q = posterior.log_densities(z[rows])
        log_share = log_q - log_q.logsumexp(1, keepdim=True)
        here = torch.arange(len(rows)), rows
        log_own = log_share[here]
        # The rest without another's share is at least the own share, despite rounding.
        left = torch.log1p(-log_share.exp()).maximum(log_own[:, None])
        left[here] = 0
        own[rows] = log_own.numpy() + math.log(count)
        others -= left.sum(0).numpy()
    stderr = (own - others).std(ddof=1) / math.sqrt(count)
    return Information(float(own.mean()), float(stderr), math.log(count))


def code_information(proposal: Proposal, z: Tensor) -> Information:
    """The same of codes of any kind, (N, ...), as a decoder takes them."""
    return mutual_information(*proposal.with_densities(z))


def variances(posterior: Posterior) -> Array:
    """The variance of each dimension's mean over sentences, (Z,)."""
    return posterior.mean.double().var(0, correction=0).numpy()


def above_noise(proposal: Proposal) -> npt.NDArray[np.bool_]:
    """Which dimensions d of Gaussian codes stand above the noise, (Z,):

        Var_x mu_d(x) > `ABOVE_NOISE` E_x sigma_d^2(x),    mean and variance over S sentences

    Their sum is Var z_d, x and z ~ q(z | x) both drawn (the law of total variance). A dimension
    whose mean is the same for all sentences never does, however narrow it is. Empty for classes:
    their `activity` is already information.
    """
    if proposal.gaussian is None:
        return np.empty(0, np.bool_)
    noise = proposal.gaussian.log_variance.double().exp().mean(0).numpy()
    return np.asarray(variances(proposal.gaussian) > ABOVE_NOISE * noise)


def entropies(q: Categories) -> tuple[Array, Array]:
    """Of each variable, in nats, (L,) each: the entropy of its class over all sentences together,
    H(1/S sum_x q(z_l | x)), and the mean of H(q(z_l | x)). The difference is I(x; z_l)."""
    p = q.log_probs.double().exp()
    together, single = torch.special.entr(p.mean(0)).sum(-1), torch.special.entr(p).sum(-1)
    return together.numpy(), single.mean(0).numpy()


def activity(proposal: Proposal) -> Array:
    """How much each unit of a code varies with the sentence: the variance of a dimension's mean,
    (Z,), or the information of a variable's class, (L,). See `ACTIVE`."""
    classes = proposal.over_classes
    if classes is None:
        return variances(cast(Posterior, proposal))
    together, single = entropies(classes)
    return together - single


def classes_in_use(proposal: Proposal) -> Array:
    """exp of the entropy of each variable's class over all sentences together, (L,): C if all are
    equally frequent, 1 if only one is used. Empty if a code has no classes."""
    classes = proposal.over_classes
    if classes is None:
        return np.empty(0)
    together, _ = entropies(classes)
    return np.exp(together)


class Entropy(NamedTuple):
    """The differential entropy of codes by nearest neighbours, in nats, and its standard error.

    control: the same estimate from as many draws of N(0, 1), whose entropy is `normal`, exactly:
    the difference is the estimator's bias, which is large in many dimensions.

    Neighbours are those of standardised columns, which is more accurate if dimensions differ in
    width. unstandardised: those of the plain codes, as in the paper's table 6.
    """

    value: float
    stderr: float
    control: float
    control_stderr: float
    normal: float
    unstandardised: float
    unstandardised_stderr: float


def latent_entropy(z: Tensor, generator: torch.Generator) -> Entropy:
    """Of codes z (N, Z), one a sentence. Codes that coincide are refused; see
    `kozachenko_leonenko`."""
    from infolm.information.nearest import kozachenko_leonenko  # SciPy's trees, rarely needed

    normal = torch.randn(z.shape, generator=generator, dtype=torch.float64)
    exact = 0.5 * z.shape[1] * math.log(2 * math.pi * math.e)
    plain = kozachenko_leonenko(z, standardise=False)
    return Entropy(*kozachenko_leonenko(z), *kozachenko_leonenko(normal), exact, *plain)


class Contrast(NamedTuple):
    """Figure 3 of Livne et al.: ln p(x_i | z_j) and ln q(z_i | x_j), of S sentences and their own
    codes (S,), i = j, and of each with some others, i != j. The latter is meaningless if q is
    deterministic."""

    own_likelihood: Array
    other_likelihood: Array
    own_density: Array
    other_density: Array


def contrast(
    model: LatentModel, lines: Lines, posterior: Proposal, z: Tensor, others: int, seed: int
) -> Contrast:
    """Compare each sentence with its own code and with those of `others`, fewer than S; z (S,
    ...)."""
    shifts = np.random.default_rng(seed).choice(len(lines) - 1, others, replace=False) + 1
    likelihoods, densities = [], []
    for shift in (0, *shifts.tolist()):
        likelihoods.append(log_likelihoods(model, lines, z.roll(shift, 0)).counted(True))
        moved = posterior.rows(torch.arange(len(z)).roll(shift))
        densities.append(moved.log_density(z).numpy())
    own_p, *other_p = likelihoods
    own_q, *other_q = densities
    return Contrast(own_p, np.concatenate(other_p), own_q, np.concatenate(other_q))


@dataclass(frozen=True, eq=False)
class Picture:
    """The report's statistics of S sentences and codes of Z units, which are dimensions, or
    variables with classes; nats, with <eos>.

    kl: KL(q(z_d | x) || p(z_d)) of each unit, the mean over sentences, (Z,); `mean_kl` is its sum.
    active: where `activity` is above `ACTIVE`, (Z,). information, information_error, ceiling: see
    `mutual_information`. own_likelihood ... other_density: see `Contrast`. elbo (S,). melbo (S,):
    mean ln p(x | z), MELBO without its ln N. sizes, bound, bound_error: see `melbo_by_size`.
    tokens: with an <eos> each, where it counts. classes: see `classes_in_use`. above_noise: see
    there, (Z,) or empty.
    """

    kl: Array
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
    classes: Array = field(default_factory=lambda: np.empty(0))
    above_noise: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))


def picture(model: LatentModel, lines: Lines, seed: int = 1, most: int = 500) -> Picture:
    """Of at most `most` of the sentences, drawn; two at least are needed."""
    lines = some(lines, most, seed)
    count = len(lines)
    if count < 2:
        raise InfolmError(
            f"a picture of the codes needs at least 2 sentences, not {count}: give more text"
        )
    generator = torch.Generator().manual_seed(seed)
    posterior = encoded(model, lines)
    z = posterior.one_drawn(generator)
    information = code_information(posterior, z)
    log_p = draw(model, lines, posterior, SAMPLES, generator).likelihoods.counted(True)
    kl = posterior.kl().double().numpy()
    sizes = np.unique(np.geomspace(min(10, count), count, 40).round().astype(np.int64))
    bound, bound_error = melbo_by_size(log_p.mean(0), sizes)
    return Picture(
        kl.mean(0),
        activity(posterior) > ACTIVE,
        *information,
        float(kl.sum(1).mean()),
        *contrast(model, lines, posterior, z, min(OTHERS, count - 1), seed),
        elbo(log_p, kl.sum(1)),
        log_p.mean(0),
        sizes,
        bound,
        bound_error,
        count,
        int(lines.lengths.sum()) + count * model.ends,
        classes_in_use(posterior),
        above_noise(posterior),
    )
