"""Parts of a batch, for several processes or for gradient accumulation in one.

The columns of a batch (streams, sentences, sequences, pairs) are assigned in turn, so that parts of
sentences sorted by length take equally long. A part knows its whole batch, and so its share of a
mean over the batch, without communication.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


class Whole(NamedTuple):
    """The origin of a part. batch: the whole batch. columns: (n,), the part's columns in it.
    weight: 1; or 0 if there are more parts than columns, and this part has the first column as a
    stand-in."""

    batch: Any
    columns: Numbers
    weight: float


class Divisible(Protocol):
    """A batch that can be divided; a named tuple."""

    whole: Whole | None

    @property
    def columns(self) -> int:
        """The number of columns."""
        ...

    def chosen(self, columns: Numbers) -> Self:
        """The batch of only these columns, in ascending order."""
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
    """The part's share of the `count` of its batch; 1 for a whole batch.

    A mean over the part times its share, summed over all parts, is the mean over the whole.
    """
    if batch.whole is None:
        return 1.0
    return float(batch.whole.weight * count(batch) / max(count(batch.whole.batch), 1))
