"""The softmax over the vocabulary, without a (tokens x vocabulary) tensor.

The logits of a few hundred tokens at a time are made, used and overwritten, and since the loss is
a weighted sum of the tokens' losses, its gradient is known as soon as the logits are: it is
computed in the forward pass, while they are still in the processor's cache. Peak memory is
one block of logits, whatever the number of tokens.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

BLOCK_ELEMENTS = 2**22
"""Logits held at once: 16 MB in single precision, measured as the fastest on CPUs."""


def _block_rows(vocabulary: int) -> int:
    return max(16, BLOCK_ELEMENTS // vocabulary)


class _NegativeLogLikelihood(torch.autograd.Function):
    """sum_n -ln softmax(W x_n + b)[y_n], and its gradients, block by block."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        grad_x, grad_weight, grad_bias = (torch.zeros_like(t) for t in (x, weight, bias))
        total = x.new_zeros(())
        rows = _block_rows(len(weight))
        for start in range(0, len(x), rows):
            inputs = x[start : start + rows]
            target = targets[start : start + rows, None]
            logits = torch.addmm(bias, inputs, weight.t())
            probabilities = torch.softmax(logits, 1)
            # ln Z from the largest logit: its probability is at least 1/V, so its log is safe,
            # where the target's own probability might have underflowed.
            log_z = logits.amax(1, keepdim=True) - probabilities.amax(1, keepdim=True).log()
            total += (log_z - logits.gather(1, target)).sum()
            probabilities.scatter_add_(1, target, probabilities.new_full(target.shape, -1.0))
            torch.mm(probabilities, weight, out=grad_x[start : start + rows])
            grad_weight.addmm_(probabilities.t(), inputs)
            grad_bias += probabilities.sum(0)
        ctx.save_for_backward(grad_x, grad_weight, grad_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        return *(grad * saved for saved in ctx.saved_tensors), None


class Softmax(nn.Module):
    """p(w | x) = softmax(W x + b)[w], W tied to the input embedding unless `tied` is false.

    A tied weight belongs to the embedding and is handed in at each call, so that it stands in
    `state_dict` once. Shapes: x (..., E), targets (...), W (V, E), b (V,).
    """

    def __init__(self, vocabulary: int, size: int, tied: bool, bound: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(vocabulary).uniform_(-bound, bound))
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary, size))
        if self.weight is not None:
            nn.init.uniform_(self.weight, -1 / math.sqrt(size), 1 / math.sqrt(size))

    def _weight(self, embedding: Tensor) -> Tensor:
        return embedding if self.weight is None else self.weight

    def nll_sum(self, x: Tensor, targets: Tensor, embedding: Tensor) -> Tensor:
        """The summed negative log-likelihood in nats, a scalar to differentiate."""
        weight = self._weight(embedding)
        flat = x.reshape(-1, x.shape[-1]).to(weight.dtype)
        return _NegativeLogLikelihood.apply(flat, weight, self.bias, targets.reshape(-1))

    @torch.no_grad()
    def log_prob(self, x: Tensor, targets: Tensor, embedding: Tensor) -> Tensor:
        """ln p(target | x) for each token, shaped like `targets`; no gradient."""
        weight = self._weight(embedding)
        flat = x.reshape(-1, x.shape[-1])
        rows = _block_rows(len(weight))
        blocks = []
        for inputs, target in zip(
            flat.split(rows), targets.reshape(-1, 1).split(rows), strict=True
        ):
            logits = functional.linear(inputs, weight, self.bias)
            blocks.append(logits.gather(1, target).squeeze(1) - logits.logsumexp(1))
        return torch.cat(blocks).reshape(targets.shape)

    def log_probs(self, x: Tensor, embedding: Tensor) -> Tensor:
        """The whole distribution ln p(. | x), (..., V), for one position at a time."""
        logits = functional.linear(x, self._weight(embedding), self.bias)
        return functional.log_softmax(logits, -1)
