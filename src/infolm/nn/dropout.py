"""The dropouts of AWD-LSTM (Merity et al. 2017, sections 2, 4.2 and 4.3) and of the Mogrifier
(Melis 2023, section 4.2), as pure functions.

All are inverted dropouts: kept values are divided by 1 - p, so evaluation needs no rescaling. With
p = 0, or outside training, each is the identity and draws no random number.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional

from infolm.errors import InfolmError
from infolm.nn.draws import drawn


@dataclass
class Rates:
    """The dropout rates of a model, shared by its parts, so that one place changes them all."""

    embedding: float = 0.0
    input: float = 0.0
    hidden: float = 0.0
    state: float = 0.0
    output: float = 0.0
    latent: float = 0.0
    weight: float = 0.0

    @contextmanager
    def scaled(self, factor: float) -> Iterator[None]:
        """Inside, every rate is `factor` times what it was."""
        own = astuple(self)
        if factor < 0 or max(own) * factor >= 1:
            raise InfolmError(
                f"dropout rates times {factor} are not all from 0 to below 1: the largest rate "
                f"is {max(own)}"
            )
        self._set(rate * factor for rate in own)
        try:
            yield
        finally:
            self._set(own)

    def _set(self, rates: Iterable[float]) -> None:
        for field, rate in zip(fields(self), rates, strict=True):
            setattr(self, field.name, rate)


def mask(
    shape: Sequence[int], p: float, like: Tensor, copies: int = 1, dim: int | None = None
) -> Tensor:
    """Independent entries, 0 with probability p and otherwise 1 / (1 - p), of the type of `like`.

    copies: this many consecutive rows, copies of one, have the same entries. dim: the dimension of
    the batch's columns, if they have separate entries; see `nn.draws`.

    Each takes 32 random bits, so p is met to 2^-32. PyTorch's own Bernoulli numbers cost several
    times as much on CPUs, where a matrix of weights to be masked is millions of them.
    """
    if copies > 1:
        single = mask((shape[0] // copies, *shape[1:]), p, like, dim=dim)
        return single.repeat_interleave(copies, 0)
    threshold = min(round(p * 2**32), 2**32 - 1) - 2**31

    def kept(shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
        count = math.prod(shape)
        bits = torch.empty((count + 1) // 2, dtype=torch.int64, device=like.device)
        bits.random_(-(2**63), None, generator=generator)
        return bits.view(torch.int32)[:count].view(*shape) >= threshold

    return drawn(kept, shape, like.device, dim).to(like.dtype).mul_(1 / (1 - p))


def locked_dropout(
    x: Tensor, p: float, training: bool, sizes: Tensor | None = None, copies: int = 1
) -> Tensor:
    """Variational ("locked") dropout: one mask per example, shared over time.

    x: (T, B, E). The mask m ~ Bernoulli(1 - p) / (1 - p) has shape (1, B, E). Or x: (N, E), the
    rows of packed sentences, `sizes[t]` of them at step t, with a mask for each sentence, or for
    each `copies` of them that follow each other.
    """
    if not training or p == 0:
        return x
    if sizes is None:
        return x * mask((1, *x.shape[1:]), p, x, dim=1)
    sentence = torch.cat([torch.arange(size, device=x.device) for size in sizes.tolist()])
    return x * mask((int(sizes[0]), x.shape[1]), p, x, copies, dim=0)[sentence]


def step_dropout(
    x: Tensor, p: float, training: bool, sizes: Tensor | None = None, copies: int = 1
) -> Tensor:
    """A new mask at each step: x (T, B, E) or (N, E), as is the mask; copies: as of `mask`."""
    if not training or p == 0:
        return x
    return x * mask(x.shape, p, x, copies, dim=1 if sizes is None else 0)


def embedding_dropout(weight: Tensor, tokens: Tensor, p: float, training: bool) -> Tensor:
    """Look up `tokens` (T, B), or (N,), in `weight` (V, E), whole words of the matrix dropped.

    A dropped word vanishes wherever it occurs in this pass; the others are scaled by 1 / (1 - p).
    Only the mask's entries of the words that occur are applied, which is the same as masking the
    matrix and costs T x B instead of V rows.
    """
    embedded = functional.embedding(tokens, weight)
    if not training or p == 0:
        return embedded
    words = mask(weight.shape[:1], p, weight)
    return embedded * words[tokens].unsqueeze(-1)


def drop_connect(weight: Tensor, p: float, training: bool) -> Tensor:
    """DropConnect: single weights dropped, one mask for the whole pass."""
    if not training or p == 0:
        return weight
    return weight * mask(weight.shape, p, weight)
