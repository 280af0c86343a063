"""InfoNCE, the one bound behind skip-gram, BERT, XLNet and Deep InfoMax (Kong et al. 2020, eq. 1).

    InfoNCE = E[ f(a, b) - ln sum_{b' in B} exp f(a, b') ] + ln |B|  <=  I(a; b),  ln |B|

with f(a, b) = g_psi(b) . g_omega(a) and B the positive b and others. The objectives differ in a and
b, and in whether B is the whole set (then the bound is the log-likelihood of a softmax, up to a
constant) or a sample.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from infolm.nn.softmax import block_elements

LOG_ZERO = -1e30
"""Used as ln 0 where a whole sum may be 0: with only -inf the gradient would be nan."""

Weights = Callable[[slice], Tensor]
"""For some rows of anchors: ln of how often each candidate counts, (rows, M)."""


def log_sum_exp(
    anchors: Tensor,
    candidates: Tensor,
    bias: Tensor | None = None,
    weights: Weights | None = None,
    block: int | None = None,
) -> Tensor:
    """ln sum_j w_ij exp(a_i . b_j + bias_j), (N,), for anchors (N, D) and candidates (M, D).

    No more than `block` of the N M scores are ever in memory; none: as many as the softmax holds.
    Beyond that the backward pass recomputes them, block by block. bias: (M,). Computed at least in
    single precision, even if the encoder used less.
    """
    anchors, candidates = wide(anchors), wide(candidates)
    block = block or block_elements(anchors.device, anchors.itemsize)
    with torch.autocast(anchors.device.type, enabled=False):
        if len(anchors) * len(candidates) <= block:
            return _scores(anchors, candidates, bias, weights, slice(0, len(anchors))).logsumexp(1)
        return _LogSumExp.apply(anchors, candidates, bias, weights, block)


def wide(vectors: Tensor) -> Tensor:
    """At least in single precision."""
    return vectors.to(torch.promote_types(vectors.dtype, torch.float))


def _scores(
    anchors: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    weights: Weights | None,
    rows: slice,
) -> Tensor:
    """a_i . b_j + bias_j + ln w_ij of some rows."""
    part = anchors[rows]
    scores = part @ candidates.T if bias is None else torch.addmm(bias, part, candidates.T)
    return scores if weights is None else scores + weights(rows)


class _LogSumExp(torch.autograd.Function):
    """In blocks. The gradient by a score is exp(score_ij - the row's sum) times the row's."""

    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        candidates: Tensor,
        bias: Tensor | None,
        weights: Weights | None,
        block: int,
    ) -> Tensor:
        given = anchors, candidates, bias
        ctx.step, ctx.weights = max(1, block // len(candidates)), weights
        sums = [_scores(*given, weights, rows).logsumexp(1) for rows in _blocks(anchors, ctx.step)]
        total = torch.cat(sums)
        ctx.save_for_backward(*given, total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        anchors, candidates, bias, total = ctx.saved_tensors
        by_anchors, by_candidates = torch.empty_like(anchors), torch.zeros_like(candidates)
        by_bias = None if bias is None else torch.zeros_like(bias)
        for rows in _blocks(anchors, ctx.step):
            p = _scores(anchors, candidates, bias, ctx.weights, rows)
            p.sub_(total[rows, None]).exp_()
            # A row's gradient scales the narrow factors of the products, never a block of scores.
            scale = gradients[0][rows, None]
            torch.mm(p, candidates, out=by_anchors[rows]).mul_(scale)
            by_candidates.addmm_(p.T, scale * anchors[rows])
            if by_bias is not None:
                by_bias.addmv_(p.T, scale.squeeze(1))
        return by_anchors, by_candidates, by_bias, None, None


def _blocks(anchors: Tensor, step: int) -> Iterator[slice]:
    return (slice(at, at + step) for at in range(0, len(anchors), step))


def info_nce(positive: Tensor, others: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """f(a, b) - ln(e^f(a, b) + e^others) + ln |B| and ln |B| of each anchor, (N,) both.

    positive: f(a, b). others: ln of the sum of exp f over the rest of B, which has `count` members.
    Never above ln |B|; 0 where there are no others.
    """
    size = (count + 1).log()
    return positive - torch.logaddexp(positive, others) + size, size
