"""Noise-contrastive estimation: a loss over a vocabulary that needs only few of its words.

A model's scores s(w) = W_w y + b_w are compared on the target and on k words drawn from a noise
distribution q, as the logarithms of ratios

    d(w) = s(w) - ln(k q(w)).

No sum over the vocabulary is needed: time and memory are those of k words, not of all.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from infolm.nn.draws import uniform


class Noise:
    """q(w) proportional to (n(w) + 1)^power, with n the counts of a text.

    Power 1 is the text's unigram distribution (Mnih & Teh 2012), 0 is uniform, 0.75 what word2vec
    made usual. The added one keeps every word possible. counts: (V,); draws cost k log V.
    """

    def __init__(self, counts: Tensor, power: float = 1.0) -> None:
        weights = (counts.double() + 1) ** power
        cumulative = weights.cumsum(0)
        self._cumulative = cumulative / cumulative[-1]
        self.log_q = (weights / cumulative[-1]).log()

    def draw(self, k: int) -> Tensor:
        """k words, each drawn by itself, (k,)."""
        places = uniform((k,), None, torch.double, self._cumulative.device)
        return torch.searchsorted(self._cumulative, places, right=True)

    def log_ratio(self, scores: Tensor, words: Tensor, k: int) -> Tensor:
        """d(w) = s(w) - ln(k q(w)); the shape of `words` is that of the scores or of their end."""
        return scores - (self.log_q[words] + math.log(k)).to(scores.dtype)


def binary_loss(target: Tensor, noise: Tensor) -> Tensor:
    """sum_n (-ln sigma(d_n) - sum_j ln sigma(-d_nj)): is a word data or noise?

    target: d of each token's target, (N,); noise: d of the noise, (N, k). Gutmann & Hyvarinen
    (2010), equation 3; Mnih & Teh (2012), equation 8. At its minimum over all scores these are the
    log-probabilities themselves, Z = sum_w exp(s(w)) = 1. Its gradient tends to that of maximum
    likelihood as k grows (Mnih & Teh, equation 12), if Z = 1.
    """
    return functional.softplus(-target).sum() + functional.softplus(noise).sum()


def ranking_loss(target: Tensor, noise: Tensor) -> Tensor:
    """sum_n -ln(exp(d_n) / (exp(d_n) + sum_j exp(d_nj))): which of k + 1 words is the data?

    Shapes as in `binary_loss`. InfoNCE over the vocabulary, the sampled softmax; Ma & Collins
    (2018) call it the ranking objective. Scores are determined up to a constant of each context, so
    Z is free. Its gradient tends to that of maximum likelihood as k grows, for every Z.
    """
    together = torch.cat([target[:, None], noise], 1)
    return -together.log_softmax(1)[:, 0].sum()


def log_z(score: Tensor, noise: Tensor, targets: Tensor, words: Tensor) -> Tensor:
    """An estimate of ln Z for each token, (N,), from the ratios that the losses compute anyway.

    Z = exp(s(t)) + sum_{w != t} exp(s(w)), the second part being the expectation under q of
    exp(s(w)) / q(w), w != t, estimated with the noise: unbiased for Z, hence too low on average for
    ln Z. Never below the target's own score, so the estimate of -ln p(t), ln Z - s(t), is not
    negative.

    score: s of the targets, (N,); noise: d of the words, (N, k); targets: (N,); words: (k,).
    """
    others = noise.masked_fill(words == targets[:, None], -math.inf)
    return torch.cat([score[:, None], others], 1).logsumexp(1)
