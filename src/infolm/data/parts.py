"""A batch in parts: for several processes side by side, or one after another in one.

The columns of a batch (streams, sentences, sequences, pairs) are dealt out in turn, so that parts
of sentences sorted by length take equally long. A part knows the whole batch that it is of, hence
what share of a mean over the batch is its own, without asking anybody.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


class Whole(NamedTuple):
    """What a part is of. batch: the whole, as the feed gave it. columns: (n,), the numbers in it of
    the part's columns. weight: 1; or 0 where there are more parts than columns, and this one has
    the first column in place of none."""

    batch: Any
    columns: Numbers
    weight: float


class Divisible(Protocol):
    """A batch that can be divided; a named tuple."""

    whole: Whole | None

    @property
    def columns(self) -> int:
        """How many there are."""
        ...

    def chosen(self, columns: Numbers) -> Self:
        """The batch of these columns alone, in their order, which rises."""
        ...


def part(batch: Any, number: int, count: int) -> Any:
    """Part `number` of `count`: columns number, number + count, ...; of one, the batch itself."""
    if count == 1:
        return batch
    columns = np.arange(number, batch.columns, count)
    weight = 1.0
    if not len(columns):
        columns, weight = np.zeros(1, np.int64), 0.0
    return batch.chosen(columns)._replace(whole=Whole(batch, columns, weight))


def share(batch: Any, count: Callable[[Any], Any]) -> float:
    """The part's share of what `count` counts in a batch; 1 of a batch that is whole.

    A mean over the part times its share, summed over all parts, is the mean over the whole.
    """
    if batch.whole is None:
        return 1.0
    return float(batch.whole.weight * count(batch) / max(count(batch.whole.batch), 1))
