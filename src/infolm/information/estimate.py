"""The interface of estimators of information.

An estimator is an object with `estimate(x, y) -> Estimate`; its settings are the arguments of its
constructor. Samples are rows: (N,) or (N, D), NumPy arrays, torch tensors or lists.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from infolm.errors import InfolmError

Array = npt.NDArray[np.float64]
Unit = Literal["nats", "bits"]
Side = Literal["lower", "upper"]

CONFIDENCE = 0.95
"""The confidence of every interval."""


@dataclass(frozen=True)
class Estimate:
    """Mutual information from samples, and how far to trust it.

    value: the estimate, or a bound if `bound` says so.
    stderr: the standard error of `value` over samples of this size.
    interval: of the mutual information itself, with `CONFIDENCE`, as far as the estimator knows; it
    includes the estimator's own bias if that can be measured.
    permuted: the same estimator on pairs whose y were shuffled, so that the truth is 0.
    folds: the value of each fold, where there are folds.
    warning: why the value is doubtful; None if nothing is known against it.
    """

    estimator: str
    value: float
    stderr: float
    interval: tuple[float, float]
    permuted: float
    samples: int
    bound: Side | None = None
    folds: tuple[float, ...] = ()
    warning: str | None = None
    unit: Unit = "nats"

    def to(self, unit: Unit) -> "Estimate":
        """The same in another unit: 1 nat = 1 / ln 2 bits."""
        per_nat = {"nats": 1.0, "bits": 1 / math.log(2)}
        scale = per_nat[unit] / per_nat[self.unit]
        low, high = self.interval
        return replace(
            self,
            value=scale * self.value,
            stderr=scale * self.stderr,
            interval=(scale * low, scale * high),
            permuted=scale * self.permuted,
            folds=tuple(scale * fold for fold in self.folds),
            unit=unit,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Progress(Protocol):
    """Called with how many parts of the work are done."""

    def __call__(self, done: int, total: int) -> None: ...


class Estimator(Protocol):
    """Estimates I(X; Y) from paired rows."""

    @property
    def name(self) -> str: ...

    def estimate(self, x: npt.ArrayLike, y: npt.ArrayLike) -> Estimate: ...


def rows(data: Any, name: str) -> npt.NDArray[Any]:
    """The samples as (N, D), checked: numbers, finite, no constant column.

    data: (N,) or (N, D); a torch tensor may lie on any device and carry gradients.
    """
    if hasattr(data, "detach"):
        data = data.detach().cpu()
        # NumPy has no bfloat16.
        data = (data.float() if "bfloat16" in str(data.dtype) else data).numpy()
    if hasattr(data, "__arrow_c_stream__"):
        data = _of_arrow(data, name)
    array = np.asarray(data)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or not array.size:
        raise InfolmError(
            f"{name} has the shape {array.shape}: give one sample per row, (N,) or (N, D)"
        )
    if array.dtype.kind not in "biuf":
        raise InfolmError(f"{name} does not hold numbers but {array.dtype}: encode it as numbers")
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise InfolmError(
            f"{name} is not a finite number in row {row}, column {column}: drop or correct that row"
        )
    constant = np.flatnonzero((array == array[0]).all(0))
    if len(constant):
        raise InfolmError(
            f"column {constant[0]} of {name} is constant, so it carries no information: drop it"
        )
    return array


def _of_arrow(data: Any, name: str) -> npt.NDArray[Any]:
    """A data frame, table or series with the Arrow interface (pandas, polars, PyArrow), as (N, D).

    Words and categories become codes.
    """
    try:
        import pyarrow
    except ImportError:
        return np.asarray(data)
    stream = pyarrow.chunked_array(data)
    if not pyarrow.types.is_struct(stream.type):
        return _of_cells(stream, name)[:, None]
    labels = [field.name for field in stream.type]
    columns = [
        _of_cells(cells, f"column '{label}' of {name}")
        for label, cells in zip(labels, stream.flatten(), strict=True)
    ]
    return np.stack(columns, axis=1) if columns else np.empty((len(stream), 0))


def _of_cells(cells: Any, name: str) -> npt.NDArray[Any]:
    """The numbers of one Arrow column (N,); words as the codes of their order."""
    import pyarrow

    if cells.null_count:
        raise InfolmError(f"{name} misses values: drop those rows")
    kind = cells.type.value_type if pyarrow.types.is_dictionary(cells.type) else cells.type
    if pyarrow.types.is_decimal(kind):
        cells = cells.cast(pyarrow.float64())
    values: npt.NDArray[Any] = cells.to_numpy()
    if kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
        return np.unique(values.astype(str), return_inverse=True)[1]
    if values.dtype.kind not in "biuf":
        raise InfolmError(f"{name} does not hold numbers but {kind}: encode it as numbers")
    return values


def pairs(x: Any, y: Any, at_least: int = 2) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Both samples as (N, D), checked, of one length of `at_least` rows."""
    x, y = rows(x, "x"), rows(y, "y")
    if len(x) != len(y):
        raise InfolmError(
            f"x has {len(x):,} rows and y has {len(y):,}: row i of both must be one pair"
        )
    if len(x) < at_least:
        raise InfolmError(f"{len(x):,} pairs are too few: this estimator needs {at_least:,}")
    return x, y


def shuffled(y: npt.NDArray[Any], seed: int) -> npt.NDArray[Any]:
    """The rows of y in random order, and so independent of x."""
    return np.random.default_rng(seed).permutation(y)


def half_width(stderr: float, degrees: float = math.inf) -> float:
    """Half the width of the `CONFIDENCE` interval around a mean: Student's t times the error."""
    from scipy.special import stdtrit  # the quantile of Student's t; of the normal for inf

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2)) * stderr


def ceiling(value: float, samples: int, name: str = "sample") -> str | None:
    """A warning where a value in nats is within one nat of ln N.

    No distribution-free lower confidence bound on mutual information from N samples can be
    much larger than ln N (McAllester and Stratos, 2020), and InfoNCE never exceeds the ln of its
    batch.
    """
    if value <= math.log(samples) - 1:
        return None
    return (
        f"near the ceiling ln {samples:,} = {math.log(samples):.2f} nats of the {name}: "
        "the truth may be far above"
    )


def joined(*warnings: str | None) -> str | None:
    """Several reasons as one sentence; None where there is none."""
    return "; ".join(filter(None, warnings)) or None
