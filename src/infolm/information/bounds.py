"""Variational bounds on mutual information, as functions of a critic's scores.

A critic T(x, y) scores a pair. Every bound here takes two tensors of scores in the same way:

    positive: (..., N)      T(x_i, y_i), pairs drawn together
    negative: (..., N, K)   T(x_i, y') for K y' of other pairs: drawn from the product of marginals

and returns (...,), in nats; leading dimensions are separate batches. `contrast` extracts both from
the matrix of all scores of a batch. All exponentials stay in the log domain. With r = p(x, y) /
p(x) p(y), each bound is tight at the critic its docstring names.

| bound | side | best critic | limit |
| --- | --- | --- | --- |
| `donsker_varadhan` | lower | ln r + c | any I, given enough negatives |
| `nwj` | lower, unbiased | 1 + ln r | any I, variance grows as e^I |
| `tuba` | lower, unbiased | ln r + ln a(x) | `nwj` for a = e |
| `info_nce` | lower, low variance | ln r + c(x) | never above ln(K + 1) |
| `interpolated` | lower | between the last two | near ln(K / alpha) |
| `smile` | neither | ln r | `donsker_varadhan` for a clip of infinity |
| `club` | upper | ln p(y given x) | loose: adds the reverse divergence |
| `jensen_shannon` | a proxy, not of I | ln r | stable training of T |

Poole et al. (2019), "On variational bounds of mutual information", compare most of them; Song and
Ermon (2020) give SMILE, Cheng et al. (2020) CLUB, Belghazi et al. (2018) MINE.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus


def contrast(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Positive (..., N) and negative (..., N, N - 1) of all scores T(x_i, y_j), (..., N, N)."""
    size = scores.shape[-1]
    # Without its first entry, the flat matrix has the diagonal in the last column of N + 1.
    others = scores.flatten(-2)[..., 1:].unflatten(-1, (size - 1, size + 1))[..., :-1]
    return scores.diagonal(dim1=-2, dim2=-1), others.reshape(*scores.shape[:-1], size - 1)


def log_mean_exp(scores: Tensor, dimensions: tuple[int, ...] = (-1,)) -> Tensor:
    """ln of the mean of exp over the dimensions."""
    count = math.prod(scores.shape[d] for d in dimensions)
    return scores.logsumexp(dimensions) - math.log(count)


def donsker_varadhan(positive: Tensor, negative: Tensor) -> Tensor:
    """I >= E_p[T] - ln E_q[e^T], with q = p(x) p(y). BMI's eq. 4, the value MINE reports.

    The ln of a sample mean is biased low, so with few negatives the value is biased high, by about
    the variance of that mean over twice its square.
    """
    return positive.mean(-1) - log_mean_exp(negative, (-2, -1))


def mine(
    positive: Tensor, negative: Tensor, log_average: Tensor | None, rate: float = 0.01
) -> tuple[Tensor, Tensor]:
    """What MINE maximises, and the new ln of its moving average of e^T.

    The gradient of `donsker_varadhan` on a mini-batch is biased, since it divides by the mean of
    e^T in that batch; MINE divides by a moving average a of it (Belghazi et al., section 3.2), so

        gradient = E_p[T'] - E_q[e^T T'] / a.

    The first element has this gradient; its value is meaningless. `log_average` is None at first.
    """
    log_mean = log_mean_exp(negative, (-2, -1))
    old = log_mean.detach() if log_average is None else log_average
    new = torch.logaddexp(old + math.log1p(-rate), log_mean.detach() + math.log(rate))
    return positive.mean(-1) - (log_mean - new).exp(), new


def tuba(positive: Tensor, negative: Tensor, log_baseline: Tensor | float) -> Tensor:
    """I >= 1 + E_p[T - ln a(x)] - E_q[e^T / a(x)] for every a > 0: unbiased (Poole et al.).

    log_baseline: ln a(x_i), (..., N) or a number.
    """
    baseline = torch.as_tensor(log_baseline, dtype=positive.dtype, device=positive.device)
    excess = log_mean_exp(negative - baseline.unsqueeze(-1), (-2, -1))
    return 1 + (positive - baseline).mean(-1) - excess.exp()


def nwj(positive: Tensor, negative: Tensor) -> Tensor:
    """I >= E_p[T] - E_q[e^(T - 1)]: `tuba` with a = e (Nguyen, Wainwright and Jordan, 2010)."""
    return tuba(positive, negative, 1.0)


def info_nce(positive: Tensor, negative: Tensor) -> Tensor:
    """I >= ln(K + 1) + E[T(x, y) - ln(e^T(x, y) + sum_k e^T(x, y_k))] (van den Oord et al., 2018).

    Never above ln(K + 1); 0 without negatives.
    """
    everything = torch.cat([positive.unsqueeze(-1), negative], -1)
    return (positive - log_mean_exp(everything)).mean(-1)


def interpolated(
    positive: Tensor, negative: Tensor, log_baseline: Tensor | float, alpha: float
) -> Tensor:
    """`tuba` whose a(x) is mixed with the K scores of the batch (Poole et al., 2019).

    a(x) = alpha m(x; y_1..K) + (1 - alpha) baseline(x), with m the mean of e^T over K of the y. In
    the first expectation they are the pair's own and K - 1 others; which one of the K negatives is
    left out is averaged over inside the logarithm, which can only lower the bound.
    alpha = 0 is `tuba`; alpha = 1 has the ceiling ln K of contrastive bounds. Needs K >= 2.
    """
    count = negative.shape[-1]
    baseline = torch.as_tensor(log_baseline, dtype=positive.dtype, device=positive.device)
    baseline = baseline.expand_as(positive)
    others = log_mean_exp(negative)
    with_own = torch.logaddexp(positive, others + math.log(count - 1)) - math.log(count)
    joint = positive - _log_mixture(with_own, baseline, alpha)
    product = negative - _log_mixture(others, baseline, alpha).unsqueeze(-1)
    return 1 + joint.mean(-1) - log_mean_exp(product, (-2, -1)).exp()


def _log_mixture(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """ln(alpha e^a + (1 - alpha) e^b)."""
    if alpha in (0.0, 1.0):
        return a if alpha else b
    return torch.logaddexp(a + math.log(alpha), b + math.log1p(-alpha))


def smile(positive: Tensor, negative: Tensor, clip: float) -> Tensor:
    """E_p[T] - ln E_q[clip(e^T, e^-clip, e^clip)]: `donsker_varadhan`, steadier but biased.

    The clipped mean may be too low, so this is not a bound (Song and Ermon, 2020).
    """
    return donsker_varadhan(positive, negative.clamp(-clip, clip))


def club(positive: Tensor, negative: Tensor) -> Tensor:
    """I <= E_p[ln q(y|x)] - E_q[ln q(y|x)] where q(y|x) = p(y|x) (Cheng et al., 2020).

    The scores are ln q(y|x), up to a function of x. At the true conditional it is I plus the
    divergence of p(x) p(y) from p(x, y), so it can be far above I. A poor q may fall below I.
    """
    return positive.mean(-1) - negative.mean((-2, -1))


def jensen_shannon(positive: Tensor, negative: Tensor) -> Tensor:
    """E_p[-softplus(-T)] - E_q[softplus(T)]: BMI's eq. 6, a proxy to train a critic by.

    Twice the Jensen-Shannon divergence of p from q, less 2 ln 2, at its best critic ln r.
    """
    return -softplus(-positive).mean(-1) - softplus(negative).mean((-2, -1))


def jensen_shannon_information(positive: Tensor, negative: Tensor) -> Tensor:
    """The lower bound of a critic trained with `jensen_shannon`: `nwj` of 1 + T."""
    return nwj(1 + positive, 1 + negative)
