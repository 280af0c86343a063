"""The dropouts of AWD-LSTM (Merity et al. 2017, sections 2, 4.2 and 4.3), as pure functions.

All are inverted dropouts: what survives is divided by 1 - p, so that evaluation needs no
rescaling. With p = 0, or outside training, each is the identity and draws no random number.
"""

from torch import Tensor
from torch.nn import functional


def locked_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Variational ("locked") dropout: one mask per example, shared over time.

    x: (T, B, E). The mask m ~ Bernoulli(1 - p) / (1 - p) has shape (1, B, E).
    """
    if not training or p == 0:
        return x
    return x * functional.dropout(x.new_ones(1, *x.shape[1:]), p)


def embedding_dropout(weight: Tensor, tokens: Tensor, p: float, training: bool) -> Tensor:
    """Look up `tokens` (T, B) in `weight` (V, E), whole words of the matrix dropped.

    A dropped word vanishes wherever it occurs in this pass; the others are scaled by 1 / (1 - p).
    Only the mask's entries of the words that occur are applied, which is the same as masking the
    matrix and costs T x B instead of V rows.
    """
    embedded = functional.embedding(tokens, weight)
    if not training or p == 0:
        return embedded
    mask = functional.dropout(weight.new_ones(weight.shape[0]), p)
    return embedded * mask[tokens].unsqueeze(-1)


def drop_connect(weight: Tensor, p: float, training: bool) -> Tensor:
    """DropConnect: single weights dropped, one mask for the whole pass."""
    if not training or p == 0:
        return weight
    return functional.dropout(weight, p)
