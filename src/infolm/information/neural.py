"""Neural estimators: a critic learns to distinguish pairs from shuffled pairs, and gives a bound.

The rows are cut into folds. For each fold a critic is trained on the others, with early stopping by
its bound on a validation part of them, and evaluated on the fold, which it has never seen. So every
row is tested once, and a lower bound remains one. The value is the mean over the folds.

Three things make this stable on a few thousand rows. None invalidates a bound, since any function
of a pair is a critic:

- The critic of arrays starts from the log density ratio of a Gaussian, after normal scores of
  each column and in canonical coordinates, and learns what that misses. On Gaussian data it begins
  at the truth, up to the error of the correlations.
- What is validated and read are exponential moving averages of the critic's weights.
- Scores are cut off at a height chosen on the validation part, since a few negatives that score too
  high can ruin a mean of e^T.
"""

import copy
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from infolm.errors import InfolmError
from infolm.information import bounds
from infolm.information.critics import (
    Bilinear,
    Concatenated,
    ConditionalGaussian,
    Critic,
    FiveWay,
    GaussianRatio,
    Separable,
)
from infolm.information.estimate import (
    Array,
    Estimate,
    Progress,
    Side,
    ceiling,
    half_width,
    joined,
    pairs,
    shuffled,
)
from infolm.information.gaussian import NormalScores, information

BATCH = 256
RATE = 2e-3
STEPS = 2000
EVERY = 40  # steps between validations
PATIENCE = 5  # validations without a better one
MEMORY = 0.99  # of the moving average of the weights
VALIDATION = 0.1  # of the rows that are not tested; 100 rows, or a quarter, where these are few
GROUPS = 10  # of the jackknife
BLOCK = 256  # rows scored at a time
READ = 4000  # rows whose pairs are all read at once, at most: 64 MB of scores
CUTS = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 1.0)  # of the pairs' scores lie below the cut
SHRINKAGE = (0.0, 0.5, 1.0, 2.0, 4.0)  # times (Dx + Dy) / N, off the squared correlations
CLIP = 5.0  # of SMILE, as its authors recommend
ALPHA = 0.5  # of the interpolated bound
TOLERANCE = 0.002  # nats that do not matter
READ_ON = "pairs a fold is read on"
NOTHING = "the critics found nothing, which does not prove independence"
GAP = 0.1  # nats between training and test that are worth a warning

Kind = Literal["mine", "nwj", "js", "js-dv", "infonce", "interpolated", "smile", "club"]
CriticKind = Literal["separable", "bilinear", "concatenated", "five-way"]
Rows = npt.NDArray[Any]
Read = Callable[[Tensor, Tensor], Tensor]


class Mine:
    """`bounds.mine` with its moving average kept from one batch to the next."""

    def __init__(self) -> None:
        self.log_average: Tensor | None = None

    def __call__(self, positive: Tensor, negative: Tensor) -> Tensor:
        objective, self.log_average = bounds.mine(positive, negative, self.log_average)
        return objective


class Bound(NamedTuple):
    """How a critic of ln r is trained, selected on the validation part, and evaluated.

    cut: whether its scores are cut off at a height; only where that leaves a bound a bound.
    """

    side: Side | None
    trained: Callable[[], Read]  # made anew for each training
    chosen: Read
    read: Read
    cut: bool


def _lower(trained: Callable[[], Read], read: Read) -> Bound:
    return Bound("lower", trained, chosen=read, read=read, cut=True)


def _interpolated(positive: Tensor, negative: Tensor) -> Tensor:
    return bounds.interpolated(positive, negative, 0.0, ALPHA)


def _smile(positive: Tensor, negative: Tensor) -> Tensor:
    return bounds.smile(positive, negative, CLIP)


def _likelihood(positive: Tensor, negative: Tensor) -> Tensor:
    return positive.mean(-1)


_JS, _JS_INFORMATION = bounds.jensen_shannon, bounds.jensen_shannon_information

BOUNDS: dict[Kind, Bound] = {
    "mine": _lower(Mine, bounds.donsker_varadhan),
    "nwj": _lower(lambda: _JS_INFORMATION, _JS_INFORMATION),
    "js": _lower(lambda: _JS, _JS_INFORMATION),
    "js-dv": _lower(lambda: _JS, bounds.donsker_varadhan),
    "infonce": _lower(lambda: bounds.info_nce, bounds.info_nce),
    "interpolated": _lower(lambda: _interpolated, _interpolated),
    "smile": Bound(None, lambda: _JS, _JS, _smile, cut=False),
    "club": Bound("upper", lambda: _likelihood, _likelihood, bounds.club, cut=False),
}
CRITICS: dict[CriticKind, type[Critic]] = {
    "separable": Separable,
    "bilinear": Bilinear,
    "concatenated": Concatenated,
    "five-way": FiveWay,
}


@dataclass(frozen=True)
class Coordinates:
    """Rows (N, D) as white coordinates (N, R): normal scores of each column, then linear.

    Fitted on training rows. Collinear columns are merged; those that happen to be constant in
    the training rows are left out.
    """

    columns: npt.NDArray[np.intp]
    scores: NormalScores
    mean: Array  # (D,)
    axes: Array  # (D, R)

    @classmethod
    def fit(cls, x: Rows) -> "Coordinates":
        columns = np.flatnonzero((x != x[0]).any(0))
        if not len(columns):
            raise InfolmError(
                "one side varies so rarely that it is constant in some folds: use miller-madow"
            )
        scores = NormalScores.fit(x[:, columns])
        z = scores(x[:, columns])
        _, size, axes = np.linalg.svd(z - z.mean(0), full_matrices=False)
        keep = size > 1e-6 * size[0]
        return cls(columns, scores, z.mean(0), axes[keep].T / size[keep] * math.sqrt(len(z)))

    def __call__(self, x: Rows) -> Array:
        return (self.scores(x[:, self.columns]) - self.mean) @ self.axes

    def turned(self, rotation: Array) -> "Coordinates":
        return replace(self, axes=self.axes @ rotation)


@dataclass(frozen=True)
class Canonical:
    """Both sides' rows as canonical coordinates u and v.

    On the training rows column i of u and of v correlate by rho_i, descending, and all other pairs
    of columns not at all.
    """

    of_x: Coordinates
    of_y: Coordinates
    rho: Array  # (min(Rx, Ry),)

    @classmethod
    def fit(cls, x: Rows, y: Rows) -> "Canonical":
        of_x, of_y = Coordinates.fit(x), Coordinates.fit(y)
        left, rho, right = np.linalg.svd(of_x(x).T @ of_y(y) / len(x))
        return cls(of_x.turned(left), of_y.turned(right.T), rho)

    def __call__(self, x: Rows, y: Rows) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.of_x(x)).float(), torch.from_numpy(self.of_y(y)).float()

    @property
    def sizes(self) -> tuple[int, int]:
        return self.of_x.axes.shape[1], self.of_y.axes.shape[1]

    def shrunk(self, share: float) -> Array:
        """The correlations with `share` of what independence would leave taken off the squares."""
        chance = min(share, 0.99)
        return np.sqrt(np.clip((np.square(self.rho) - chance) / (1 - chance), 0, 1 - 1e-6))


class Prepared(NamedTuple):
    """For one fold: how its rows become tensors, and the untrained critics to choose from.

    optimistic: what the boldest of them reads on the training rows, in nats.
    """

    encode: Callable[[Rows, Rows], tuple[Tensor, Tensor]]
    candidates: list[Critic]
    optimistic: float = 0.0


Prepare = Callable[[Rows, Rows], Prepared]


class Parts(NamedTuple):
    """Indices of the rows a fold trains on, validates on and is read on."""

    train: npt.NDArray[np.intp]
    valid: npt.NDArray[np.intp]
    test: npt.NDArray[np.intp]


class Reading(NamedTuple):
    """A fold's bound on rows never seen, on its training rows, and how its training ended."""

    value: float
    stderr: float
    in_sample: float
    exhausted: bool


def parts(
    samples: int, folds: int, margin: int | None, seed: int, apart: Rows | None = None
) -> Iterator[Parts]:
    """The folds of independent rows, drawn at random; or, with a margin, of a sequence.

    A sequence is cut into stretches, the validation part following the test part in a circle, and
    `margin` rows on either side of a cut are left out of training and validation.

    apart: indices of rows of a sequence that do not overlap each other, ascending. Only they are
    validated and tested on, and what lies between those of a test part is not used in its fold.
    """
    if margin is None:
        order = np.random.default_rng(seed).permutation(samples)
        margin = 0
    else:
        order = np.arange(samples)
    apart = np.arange(samples) if apart is None else apart
    for test in np.array_split(apart, folds):
        rest = (test[-1] + 1 + np.arange(samples - (test[-1] + 1 - test[0]))) % samples
        rest = rest[margin : len(rest) - margin]
        of_rest = np.flatnonzero(np.isin(rest, apart))
        valid = round(max(VALIDATION * len(of_rest), min(100, len(of_rest) / 4)))
        train = rest[of_rest[valid - 1] + 1 + margin :] if valid else rest[:0]
        if len(train) < GROUPS:
            raise InfolmError(
                f"{len(train)} rows are left to train on: give more rows, or fewer that overlap"
            )
        yield Parts(order[train], order[rest[of_rest[:valid]]], order[test])


@torch.no_grad()
def all_scores(critic: Critic, x: Tensor, y: Tensor) -> Tensor:
    """T(x_i, y_j) of all pairs, (N, N), some rows at a time."""
    return torch.cat([critic(some, y) for some in x.split(BLOCK)])


def best_cut(scores: Tensor, bound: Bound) -> tuple[float, float]:
    """What the bound is chosen by, best over the heights to cut scores off at; and the height.

    The heights are quantiles of the scores of true pairs, so that none counts that is higher than
    all of theirs, nor one that could outweigh all others together. The lowest within `TOLERANCE`
    of the best is taken.
    """
    positive, negative = bounds.contrast(scores)
    most = 2 * math.log(len(scores))  # e to its power is the number of pairs
    heights = positive.quantile(torch.tensor(CUTS)).clamp(max=most).tolist()
    heights = heights if bound.cut else [math.inf]
    values = [bound.chosen(positive.clamp(max=h), negative.clamp(max=h)).item() for h in heights]
    at = next(i for i, value in enumerate(values) if value >= max(values) - TOLERANCE)
    return values[at], heights[at]


class Fitted(NamedTuple):
    critic: Critic
    cut: float
    exhausted: bool  # steps ran out while the critic was still getting better


def fit(
    prepared: Prepared,
    bound: Bound,
    train: tuple[Tensor, Tensor],
    valid: tuple[Tensor, Tensor],
    steps: int,
    seed: int,
) -> Fitted:
    """Train the candidate that validates best; keep its moving average where that is best."""
    candidates = [critic.eval() for critic in prepared.candidates]
    trials = [best_cut(all_scores(critic, *valid), bound) for critic in candidates]
    at = int(np.argmax([value for value, _ in trials]))
    best, cut = trials[at]
    mean, kept = copy.deepcopy(candidates[at]), copy.deepcopy(candidates[at])
    critic = candidates[at].train()
    averages: list[Tensor] = list(mean.parameters())
    weights: list[Tensor] = list(critic.parameters())
    optimiser = torch.optim.Adam(weights, lr=RATE, fused=True)
    objective, waited = bound.trained(), 0
    for step, (x, y) in enumerate(_batches(*train, critic.group, steps, seed), 1):
        positive, negative = bounds.contrast(critic(x, y))
        optimiser.zero_grad()
        (-objective(positive.flatten(), negative.flatten(0, -2))).backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, max(1 - MEMORY, 1 / (step + 1)))
        if step % EVERY == 0 or step == steps:
            value, height = best_cut(all_scores(mean, *valid), bound)
            waited += 1
            if value > best + TOLERANCE:
                best, cut, waited = value, height, 0
                kept.load_state_dict(mean.state_dict())
            if waited == PATIENCE:
                break
    return Fitted(kept, cut, exhausted=waited == 0)


def _batches(
    x: Tensor, y: Tensor, group: int, steps: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """`steps` batches (G, group, ...) of rows in an order drawn anew for each pass."""
    generator = torch.Generator().manual_seed(seed)
    group = min(group, len(x))
    size = min(BATCH, len(x)) // group * group
    per_pass = len(x) // size
    for step in range(steps):
        at = step % per_pass
        if at == 0:
            order = torch.randperm(len(x), generator=generator)
        some = order[at * size : (at + 1) * size].view(-1, group)
        yield x[some], y[some]


def jackknife(scores: Tensor, read: Read) -> float:
    """The standard error of a bound read on all pairs of N rows, (N, N).

    Each of `GROUPS` stretches of rows is left out in turn, with all pairs that a row of it is part
    of: v = (G - 1) / G sum_g (b_g - mean b)^2. So it knows that pairs share rows, and that
    neighbouring rows may depend on each other.
    """
    rows = torch.arange(len(scores))
    values = []
    for left_out in rows.tensor_split(GROUPS):
        kept = torch.cat([rows[: left_out[0]], rows[left_out[-1] + 1 :]])
        values.append(read(*bounds.contrast(scores[kept][:, kept])).item())
    return math.sqrt((GROUPS - 1) * np.var(values))


def read_fold(
    fold: Parts,
    x: Rows,
    y: Rows,
    prepared: Prepared,
    bound: Bound,
    steps: int,
    seed: int,
    apart: Rows | None = None,
) -> Reading:
    """Train on the fold's training rows and read on its test rows.

    apart: as in `parts`; of the training rows, too, the bound is read on no others. Where x and y'
    of a negative pair overlap they are no draw from the product of the marginals.
    """
    seen = fold.train if apart is None else fold.train[np.isin(fold.train, apart)]
    chosen = fold.train, fold.valid[:READ], fold.test, seen
    train, valid, test, again = (prepared.encode(x[rows], y[rows]) for rows in chosen)
    critic, cut, exhausted = fit(prepared, bound, train, valid, steps, seed)

    def scores(rows: tuple[Tensor, Tensor]) -> Tensor:
        return all_scores(critic, *rows).clamp(max=cut)

    def value(scores: Tensor) -> float:
        return bound.read(*bounds.contrast(scores)).item()

    size = min(READ, len(fold.test))  # the same for rows seen and not: some bounds depend on it
    tested = [scores(rows) for rows in _stretches(test, size)]
    stderrs = [jackknife(matrix, bound.read) for matrix in tested]
    return Reading(
        float(np.mean([value(matrix) for matrix in tested])),
        math.hypot(*stderrs) / len(stderrs),
        float(np.mean([value(scores(rows)) for rows in _stretches(again, size)])),
        exhausted,
    )


def _stretches(rows: tuple[Tensor, Tensor], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows in equal parts of about this size."""
    count = max(1, round(len(rows[0]) / size))
    return zip(*(side.tensor_split(count) for side in rows), strict=True)


@contextmanager
def _one_thread_each() -> Iterator[ThreadPoolExecutor]:
    """As many workers as torch has threads, of one thread each: best for small networks."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)


def cross_fitted(
    name: str,
    x: Rows,
    y: Rows,
    prepare: Prepare,
    kind: Kind,
    folds: int,
    margin: int | None,
    steps: int,
    seed: int,
    progress: Progress | None,
    apart: Rows | None = None,
) -> Estimate:
    """An estimate from every fold's reading, and one of shuffled pairs.

    margin: None for independent rows; else as in `parts`, as is `apart`. The estimate's `samples`
    are the rows that it was read on.
    """
    samples, bound = len(x) if apart is None else len(apart), BOUNDS[kind]
    with torch.random.fork_rng(devices=[]):  # what draws a network's first weights
        torch.manual_seed(seed)
        cut = list(parts(len(x), folds, margin, seed, apart))
        # Shuffled pairs are a control, for which one fold is enough.
        work = [(y, fold) for fold in cut] + [(shuffled(y, seed), cut[0])]
        prepared = [prepare(x[fold.train], other[fold.train]) for other, fold in work]

    def read(at: int) -> Reading:
        other, fold = work[at]
        return read_fold(fold, x, other, prepared[at], bound, steps, seed, apart)

    readings: list[Reading] = []
    if progress:
        progress(0, len(work))
    with _one_thread_each() as pool:
        for reading in pool.map(read, range(len(work))):
            readings.append(reading)
            if progress:
                progress(len(readings), len(work))
    *readings, permuted = readings
    value, in_sample = _mean(readings, "value"), _mean(readings, "in_sample")
    optimistic = float(np.mean([each.optimistic for each in prepared[:folds]]))
    stderr = math.hypot(*(reading.stderr for reading in readings)) / folds
    width = half_width(stderr, folds * (GROUPS - 1))
    low = 0.0 if bound.side == "upper" else value - width
    high = value if bound.side == "upper" else max(value, in_sample, optimistic)
    return Estimate(
        name,
        value,
        stderr,
        interval=(max(low, 0.0), max(high + width, 0.0)),
        permuted=permuted.value,
        samples=samples,
        bound=bound.side,
        folds=tuple(reading.value for reading in readings),
        warning=joined(
            None if bound.side == "upper" else ceiling(value, samples // folds, READ_ON),
            None if bound.side == "upper" else _gap(value, in_sample, optimistic),
            _exhausted(readings, steps),
            _control(permuted),
        ),
    )


def _mean(readings: list[Reading], field: Literal["value", "in_sample"]) -> float:
    return float(np.mean([getattr(reading, field) for reading in readings]))


def _gap(value: float, in_sample: float, optimistic: float) -> str | None:
    """A warning where the rows are too few to learn what they may share."""
    if in_sample - value > GAP:
        return (
            f"the critics read {in_sample - value:.2f} nats more on the rows they were trained on "
            "than on new ones: the truth may lie between, so use more rows"
        )
    if optimistic - value > 2 * GAP:
        return (
            "the rows are too few to distinguish chance from correlations worth "
            f"{optimistic:.2f} nats: use more rows"
        )
    if value == in_sample == 0:
        return NOTHING
    return None


def _exhausted(readings: list[Reading], steps: int) -> str | None:
    count = sum(reading.exhausted for reading in readings)
    if count <= len(readings) // 2:
        return None
    return f"{count} of {len(readings)} critics were still improving after {steps:,} steps"


def _control(permuted: Reading) -> str | None:
    if permuted.value <= 3 * permuted.stderr + TOLERANCE:
        return None
    return f"shuffled pairs, which share nothing, give {permuted.value:.2f} nats"


def fewest_rows(folds: int) -> int:
    """The fewest rows that so many folds need."""
    if folds < 2:
        raise InfolmError(
            f"{folds} folds are too few: use at least 2, one to train on and one to test"
        )
    return 4 * GROUPS * folds


@dataclass(frozen=True)
class Neural:
    """I(X; Y) of rows of numbers by a bound and a critic; see the module's docstring.

    bound: how the critic is trained and read. `mine`, the one to choose: the Donsker-Varadhan bound
    with MINE's gradient; `nwj`; `js`: trained by the Jensen-Shannon proxy, read by NWJ; `js-dv`:
    read by Donsker-Varadhan, as BMI does; `infonce`; `interpolated`; `smile`; and `club`, an upper
    bound with a conditional Gaussian for a critic.
    gaussian_start: start from the Gaussian's ratio, or from nothing.
    sequence: neighbouring rows depend on each other, as in a time series: folds are stretches, and
    rows next to a cut are left out, so that no test row has its neighbour in training.
    """

    bound: Kind = "mine"
    critic: CriticKind = "separable"
    gaussian_start: bool = True
    folds: int = 5
    steps: int = STEPS
    sequence: bool = False
    seed: int = 0
    progress: Progress | None = None

    @property
    def name(self) -> str:
        return self.bound

    def estimate(self, x: npt.ArrayLike, y: npt.ArrayLike) -> Estimate:
        a, b = pairs(x, y, at_least=fewest_rows(self.folds))
        return cross_fitted(
            self.name,
            a,
            b,
            self._prepare,
            self.bound,
            self.folds,
            1 if self.sequence else None,
            self.steps,
            self.seed,
            self.progress,
        )

    def _prepare(self, x: Rows, y: Rows) -> Prepared:
        canonical = Canonical.fit(x, y)
        sizes, chance = canonical.sizes, sum(canonical.sizes) / len(x)
        rhos = [torch.from_numpy(canonical.shrunk(share * chance)).float() for share in SHRINKAGE]
        if not self.gaussian_start:
            rhos = [torch.zeros_like(rhos[0])]
        if self.bound == "club":
            return Prepared(canonical, [ConditionalGaussian(rho, *sizes) for rho in rhos])
        correction = CRITICS[self.critic](*sizes)
        optimistic = information(canonical.shrunk(0.0))
        return Prepared(canonical, [GaussianRatio(rho, correction) for rho in rhos], optimistic)
