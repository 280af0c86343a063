"""Monte Carlo objectives as one small algebra (Melis 2023, chapter 5).

Each of the codes z_1 ... z_K ~ q(z | x) of a sentence gives two numbers:

    l_k = ln p(x | z_k)        r_k = ln p(z_k) / q(z_k | x)        w_k = exp(l_k + r_k)

From these come quantities, as functions of l and r:

    S_alpha = ln 1/K sum_k exp(alpha l_k + r_k)     `log_mean_weight`; S = S_1 is IWAE's bound
    U       = sum_k w_k l_k / sum_k w_k             `weighted_log_likelihood`, eq. 5.9

and objectives, as sums of quantities (`augmented`). A quantity knows its derivatives by l and r,
and an estimator is a rule by which these become the gradient's coefficients (`estimated`):

    gradient = sum_k  decoder_k dl_k/dtheta + path_k dl_k/dz_k dz_k/dphi
                      + ratio_k dr_k/dz_k dz_k/dphi + score_k d ln q(z_k | x)/dphi

with theta the decoder's parameters, phi the encoder's, and q's own parameters fixed in dr_k/dz_k.
`surrogate` is a scalar with that gradient. All tensors are (K, B), samples first.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

Estimator = Literal["elbo", "iwae", "stl", "dreg", "reinforce", "vimco"]
Augmentation = Literal["none", "kl", "renyi", "power"]
Grouping = Literal["likelihood", "information"]
"""Which parts of the objective share their samples; see `information`."""
REPARAMETRISED = ("elbo", "iwae", "stl", "dreg")
"""Estimators whose gradient goes through the code, which must be continuous."""
LEAST = 1e-6
"""A decoder's coefficient below this share of the path's is raised to it; see `surrogate`."""


class Draws(NamedTuple):
    """log_p, log_ratio (K, ...): l and r. kl (...): KL(q(z | x) || p(z)) exactly."""

    log_p: Tensor
    log_ratio: Tensor
    kl: Tensor

    def first(self, count: int) -> "Draws":
        return Draws(self.log_p[:count], self.log_ratio[:count], self.kl)


@dataclass(frozen=True)
class Quantity:
    """A function of l, r and the exact KL, with its derivatives.

    value (...). by_kl: the derivative by the KL. by_log_p, by_log_ratio (K, ...): those by l_k and
    r_k. doubly_by_log_p, doubly_by_log_ratio (K, ...): what multiplies dl_k/dz_k and dr_k/dz_k in
    the doubly reparametrised gradient.
    """

    value: Tensor
    by_kl: float
    by_log_p: Tensor
    by_log_ratio: Tensor
    doubly_by_log_p: Tensor
    doubly_by_log_ratio: Tensor

    def __add__(self, other: "Quantity") -> "Quantity":
        """The sum; of fewer samples, those of the other that are not there count nothing."""
        count = max(len(self.by_log_p), len(other.by_log_p))
        sums = [
            _padded(a, count) + _padded(b, count)
            for a, b in zip(self._derivatives, other._derivatives, strict=True)
        ]
        return Quantity(self.value + other.value, self.by_kl + other.by_kl, *sums)

    def __rmul__(self, factor: float) -> "Quantity":
        scaled = [factor * each for each in self._derivatives]
        return Quantity(factor * self.value, factor * self.by_kl, *scaled)

    def __sub__(self, other: "Quantity") -> "Quantity":
        return self + -1.0 * other

    @property
    def _derivatives(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return (
            self.by_log_p,
            self.by_log_ratio,
            self.doubly_by_log_p,
            self.doubly_by_log_ratio,
        )


def _padded(x: Tensor, count: int) -> Tensor:
    return x if len(x) == count else pad(x, (0, 0) * (x.dim() - 1) + (0, count - len(x)))


def log_mean_weight(draws: Draws, alpha: float = 1.0) -> Quantity:
    """S_alpha, the importance-weighted bound on ln E_p(z) p(x | z)^alpha (eq. 5.17).

    With v_k = exp(alpha l_k + r_k) / sum_j exp(alpha l_j + r_j) the derivatives by l_k and r_k are
    alpha v_k and v_k; doubly reparametrised v_k^2 takes the place of v_k (Tucker et al. 2018).
    """
    weights = alpha * draws.log_p + draws.log_ratio
    value = weights.logsumexp(0) - math.log(len(weights))
    v = weights.softmax(0)
    squared = v.square()
    return Quantity(value, 0.0, alpha * v, v, alpha * squared, squared)


def weighted_log_likelihood(draws: Draws) -> Quantity:
    """U, the self-normalised estimate of E_p(z|x) ln p(x | z) (eq. 5.9).

    With v_k = w_k / sum_j w_j and d_k = l_k - U the derivatives by l_k and r_k are v_k (1 + d_k)
    and v_k d_k. Doubly reparametrised: the score terms are f_k d ln q(z_k)/dphi with f_k = -v_k
    d_k, and E f_k d ln q(z_k)/dphi = E df_k/dz_k dz_k/dphi. Since

        d(v_k d_k)/dz_k = v_k (1 - v_k) dl_k/dz_k + v_k d_k (1 - 2 v_k) d(l_k + r_k)/dz_k,

    what is left of the path is v_k^2 dl_k/dz_k + 2 v_k^2 d_k d(l_k + r_k)/dz_k.
    """
    v = (draws.log_p + draws.log_ratio).softmax(0)
    # A code with p(x | z) = 0 has no weight, and 0 times minus infinity must be 0.
    value = torch.where(v > 0, v * draws.log_p, 0.0).sum(0)
    d = torch.where(v > 0, draws.log_p - value, 0.0)
    squared = v.square()
    return Quantity(value, 0.0, v * (1 + d), v * d, squared * (1 + 2 * d), 2 * squared * d)


def mean_log_likelihood(draws: Draws, alpha: float = 1.0) -> Quantity:
    """alpha mean_k l_k - KL(q(z | x) || p(z)), the ELBO's stand-in for S_alpha, its KL exact."""
    share = torch.full_like(draws.log_p, alpha / len(draws.log_p))
    value = alpha * draws.log_p.mean(0) - draws.kl
    zeros = torch.zeros_like(share)
    return Quantity(value, -1.0, share, zeros, share, zeros)


@dataclass(frozen=True)
class Settings:
    """The objective and its estimator. samples, mi_samples: the numbers of codes for the likelihood
    and for the mutual information, taken from the start of one draw. grouping: the use of each if
    they differ."""

    estimator: Estimator = "iwae"
    augment: Augmentation = "none"
    samples: int = 1
    mi_samples: int = 1
    weight: float = 0.0
    alpha: float = 1.0
    grouping: Grouping = "likelihood"

    @property
    def drawn(self) -> int:
        """Codes of each sentence that are drawn."""
        return max(self.samples, self.mi_samples)


def information(settings: Settings, draws: Draws) -> Quantity:
    """The estimate of KL(p(z | x) || p(z)), the mutual information's part of one sentence.

        kl       U - S                               (eq. 5.12)
        renyi    (S_alpha - alpha S) / (alpha - 1)   Renyi's divergence in its place (eq. 5.16)

    U and S_alpha are of `settings.mi_samples`, M, and S is of the samples of the grouping: with
    `likelihood` of `settings.samples`, K, as all that estimates ln p(x) is; with `information` of
    M, as all that estimates the divergence is.

    Of one sample, K = M = 1, both are ln q(z | x) / p(z), or with the ELBO the exact KL(q(z | x) ||
    p(z)); as alpha tends to 1 and K = M, renyi is kl, sample by sample. With v = p(z | x) / q(z |
    x), the bias of U - S is (Var_q(v) / 2 - Cov_p(z|x)(v, ln p(x | z))) / K to first order: upwards
    where q is narrower than p(z | x), but not always, as proposition 9 has it. Where q is the prior
    it is downwards, and one sample says 0.
    """
    bound = mean_log_likelihood if settings.estimator == "elbo" else log_mean_weight
    ours = draws.first(settings.mi_samples)
    by_likelihood = settings.grouping == "likelihood"
    likelihood = bound(draws.first(settings.samples) if by_likelihood else ours)
    if settings.augment == "renyi":
        alpha = settings.alpha
        return (1 / (alpha - 1)) * (bound(ours, alpha) - alpha * likelihood)
    return weighted_log_likelihood(ours) - likelihood


def augmented(settings: Settings, draws: Draws) -> Quantity:
    """The objective, to be maximised; `draws` holds `settings.drawn` samples.

        none           S                         ~ ln p(x)
        kl, renyi      S + lambda information    ~ ln p(x) + lambda KL(p(z | x) || p(z))  (eq. 5.6)
        power          S_alpha / alpha           renyi with lambda = (alpha - 1) / alpha (eq. 5.18)

    With K samples for the likelihood and M for the information, by the grouping:

                       likelihood (eqs. 5.11, 5.15)              information (eqs. 5.12, 5.16)
        kl             (1 - lambda) S_K + lambda U_M             S_K + lambda (U_M - S_M)
        renyi          a S_alpha,M - (a alpha - 1) S_K           S_K + a (S_alpha,M - alpha S_M)

    with a = lambda / (alpha - 1). They are the same where K = M. Not all of them have a maximum
    with Gaussian codes: -r_k of a single sample grows faster with the width of q than S of several
    falls (docs/monte-carlo.md).

    One sample: the beta-VAE with beta = 1 - lambda, for power 1 / alpha (proposition 13).
    """
    bound = mean_log_likelihood if settings.estimator == "elbo" else log_mean_weight
    ours = draws.first(settings.samples)
    match settings.augment:
        case "none":
            return bound(ours)
        case "power":
            return (1 / settings.alpha) * bound(ours, settings.alpha)
        case _:
            return bound(ours) + settings.weight * information(settings, draws)


class Coefficients(NamedTuple):
    """The coefficients of the gradient, (K, B) each; see the module. by_kl: of the KL."""

    value: Tensor
    decoder: Tensor
    path: Tensor
    ratio: Tensor
    score: Tensor
    by_kl: float


def estimated(settings: Settings, draws: Draws, baseline: Tensor | float = 0.0) -> Coefficients:
    """The gradient of `augmented` by the estimator. With g_k and h_k its derivatives by l_k and
    r_k, g2_k and h2_k the doubly reparametrised ones, O its value:

                     decoder  path  ratio   score
        iwae, elbo   g        g     h       -h                  the plain derivative
        stl          g        g     h       0                   Roeder et al. 2017
        dreg         g        g2    h2      0                   Tucker et al. 2018
        reinforce    g        0     0       O - baseline - h    Williams 1992
        vimco        g        0     0       O - O_k - h         Mnih & Rezende 2016

    O_k is O with l_k and r_k replaced by the mean of the others'. stl leaves out a term with mean 0
    for one sample; for more samples the mean is not 0, and the gradient is biased. baseline (B,):
    anything that does not depend on the draws.
    """
    found = augmented(settings, draws)
    g, h = found.by_log_p, found.by_log_ratio
    nothing = torch.zeros_like(g)
    match settings.estimator:
        case "elbo" | "iwae":
            path, ratio, score = g, h, -h
        case "stl":
            path, ratio, score = g, h, nothing
        case "dreg":
            path, ratio, score = found.doubly_by_log_p, found.doubly_by_log_ratio, nothing
        case "reinforce":
            path, ratio, score = nothing, nothing, found.value - baseline - h
        case "vimco":
            others = augmented(settings, left_out(draws)).value
            path, ratio, score = nothing, nothing, found.value - others - h
    return Coefficients(found.value, g, path, ratio, score, found.by_kl)


def left_out(draws: Draws) -> Draws:
    """K times the draws, (K, K, B): in the k-th, [:, k], sample k is the mean of the others."""
    count = len(draws.log_p)
    own = torch.eye(count, dtype=torch.bool, device=draws.log_p.device)[..., None]

    def without(x: Tensor) -> Tensor:
        others = torch.where(own, 0.0, x[:, None]).sum(0) / (count - 1)
        return torch.where(own, others, x[:, None])

    return Draws(without(draws.log_p), without(draws.log_ratio), draws.kl)


def surrogate(
    coefficients: Coefficients, log_p: Tensor, log_ratio: Tensor, log_q: Tensor, kl: Tensor
) -> Tensor:
    """A scalar whose gradient is the estimator's, summed over the sentences.

    log_p (K, B): l_k as a function of the decoder's weights, and of codes that `gated` has sent
    through. log_ratio: r_k as a function of the code alone. log_q: ln q(z_k | x) as a function of
    q's weights alone. kl (B,).
    """
    decoder, _ = _gate(coefficients)
    parts = decoder * log_p + coefficients.ratio * log_ratio + coefficients.score * log_q
    return parts.sum() + coefficients.by_kl * kl.sum()


def gated(z: Tensor, coefficients: list[Coefficients]) -> Tensor:
    """z (K, B, ...) for the decoder. What comes back to z_k through l_k is multiplied by path_k /
    decoder_k, so that one backward pass serves both. The coefficients are put into the list before
    that pass: they depend on what the decoder makes of z."""
    if not z.requires_grad:
        return z
    passed = z.view_as(z)

    def scaled(gradient: Tensor) -> Tensor:
        _, factor = _gate(coefficients[0])
        return gradient * factor.view(*factor.shape, *[1] * (gradient.dim() - 2))

    passed.register_hook(scaled)
    return passed


def _gate(coefficients: Coefficients) -> tuple[Tensor, Tensor]:
    """The decoder's coefficients and path / decoder, (K, B). Where the former all but vanish and
    the latter do not, as U's can, the former are raised to a millionth of it: below what rounding
    leaves of the gradient, and the quotient is a number."""
    _, decoder, path, *_ = coefficients
    least = LEAST * path
    decoder = torch.where(decoder.abs() < least.abs(), least, decoder)
    return decoder, torch.where(decoder == 0, 0.0, path / decoder)
