"""Ties in accuracies and rankings.

If several candidates have the same score, an accuracy is its mean over all orders of the tied ones.
So equal scores give exactly the result of chance: 1/2 of pairs, 1/K of K candidates. The functions
take NumPy arrays and PyTorch tensors alike.
"""

from typing import Any


def standing(scores: Any, right: Any) -> tuple[Any, Any]:
    """How many candidates are above the right one, and how many have its score, itself included.

    scores: (..., K), of all candidates, the higher the better; right: (...,), of the right one,
    which is among them. Gives (...,) each.
    """
    own = right[..., None]
    return (scores > own).sum(-1), (scores == own).sum(-1)


def first(better: Any, tied: Any) -> Any:
    """The probability that the right one comes first in a random order of the tied, (...,): 1/t
    where none is better, else 0."""
    return (better == 0) / tied


def above(scores: Any, threshold: float = 0.0) -> Any:
    """Whether each score is above the threshold: 1, 0, or 1/2 where it is equal."""
    return first(scores < threshold, 1 + (scores == threshold))
