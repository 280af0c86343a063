"""Pareto frontiers of data fit against latent usage (Melis 2023, section 5.7.1).

A model lies at (information, nll). One with a higher information and a lower nll is better; where
neither of two is, they are different answers to one trade-off. So methods are compared by their
Pareto frontiers.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Position(NamedTuple):
    """Nats per sentence, or per token."""

    information: float
    nll: float


def frontier(positions: Sequence[Position]) -> list[int]:
    """Which of the positions no other one dominates, by rising information, and so rising nll.

    One dominates another that it is not worse than in either respect and better in one. Of equal
    positions the first stays; those that are not finite never do.
    """
    finite = [i for i, each in enumerate(positions) if all(map(math.isfinite, each))]
    finite.sort(key=lambda i: (-positions[i].information, positions[i].nll))
    kept: list[int] = []
    for i in finite:
        if not kept or positions[i].nll < positions[kept[-1]].nll:
            kept.append(i)
    return kept[::-1]


def nll_at(positions: Sequence[Position], information: float) -> float | None:
    """The lowest nll at so much information or more, interpolated along the frontier.

    None where the frontier does not reach so far. Below its first position it is the nll there.
    """
    edge = [positions[i] for i in frontier(positions)]
    above = next((i for i, each in enumerate(edge) if each.information >= information), None)
    if above is None:
        return None
    if above == 0:
        return edge[0].nll
    low, high = edge[above - 1], edge[above]
    share = (information - low.information) / (high.information - low.information)
    between = low.nll + share * (high.nll - low.nll)
    return min(max(between, low.nll), high.nll)  # which rounding can pass by a bit
