"""Screens: quick tests for dependence that estimators may miss, each with a p-value.

All work on the ranks of the columns, as uniform variables U in (0, 1), ties in random order:

- pairs of columns by their characteristic function: under independence
  N |mean of e^{2 pi i (aU + bV)}|^2 is exponential with mean 1, for every a, b != 0. A table of
  them sees rings, crosses and checkerboards; a long scan of the frequencies of one column, beside a
  few functions of the other, sees oscillations of thousands of periods.
- equal values: rows in which a column of x and one of y are nearer to each other than in shuffled
  pairs: copies, imputed and default values, which neighbours of few rows do not resolve.
- signs: the Walsh coefficient of a set of columns is the mean of the product of their
  sign(U - 1/2). That of a set of both sides, less the product of those of its two parts (columns
  of one side may depend on each other), is 0 under independence. A parity of signs is one
  coefficient. Up to `WALSH` columns all sets are tried at once, by the fast Walsh-Hadamard
  transform; above, sets of three columns of a side at most.
- waves: the share of the variance of V's normal scores that smooth functions of U explain, the
  first K cosines (`_cosines`). Of normal scores -1/2 ln(1 - share) is never above I(U; V), so
  that a rough function of one column is seen though no single frequency of it stands out.
- sums: the characteristic function again, of three columns at many frequencies (`_triples`) and of
  up to three of each side at the first few (`_sums`): sums modulo a base, and waves across a plane.

p-values are corrected for the number of coefficients looked at.
"""

import math
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.fft import dct, fft2, fftn, rfft
from scipy.special import betainc, gammainc, i0e, ndtr, ndtri

from infolm.information.discrete import Table, table_stderr
from infolm.information.estimate import Array

Rows = npt.NDArray[Any]

WALSH = 20
"""Columns, at most, whose signs are all combined."""
MOST_PAIRS = 400
"""Pairs of columns that are looked at."""
GRID = 128
LOW = 32  # highest frequency of the table
CELLS = 2**20
"""Cells of the long scans, shared out to the pairs of columns."""
MOST_SETS = 12_000
"""Sets of columns of a side, at most, whose products are tried."""
MOST_ROWS = 4_000
"""Rows for the products of three columns."""
PLANE = 2**19
"""Cells of the tables of three columns, shared out to the triples."""
MOST_TRIPLES = 1_000
OF_ONE = 32
"""Cells of the column that is alone on its side in a triple."""
MOST_SUMS = 2**18
"""Pairs of sums of columns that are tried, and sums of a side."""
MOST_WAVES = 2_000
HIGHEST = 4
"""Times that a column is in a sum."""
SHUFFLED_PAIRS = 20_000
LEAST_EQUAL = 5
"""Rows that must be all but equal to count."""
LEAST_FREE = 0.05
"""Variance of a product of signs: below, it is all but constant."""
HALF_NORMAL = 0.5 * math.log(4 * (1 - 2 / math.pi))
"""Nats by which |Z|, Z normal, has a smaller entropy than a normal variable of its variance."""
TIED = 0.6
"""Of the rows: a column with fewer distinct values has no density to speak of."""


@dataclass(frozen=True)
class Hit:
    """The strongest coefficient of a screen.

    p_value: under independence, corrected for the number of coefficients. information: nats that
    the coefficient alone implies, less two standard errors. resolved: nats that an estimate should
    find if it resolves this. what: a few words.
    """

    p_value: float
    information: float
    resolved: float
    what: str


NONE = Hit(1.0, 0.0, 0.0, "")
SMOOTH = "a smooth dependence"
CLASSES = "a dependence of classes in no order"


def screened(x: Rows, y: Rows, u: Array, v: Array) -> list[Hit]:
    """The strongest sign of dependence of each kind, of rows x (N, Dx) and y (N, Dy).

    u, v: their ranks. p-values are not corrected for the number of kinds.
    """
    hits = [*_pairs(x, y, u, v), _signs(u, v)]
    if u.shape[1] + v.shape[1] > 2:
        hits += [_triples(u, v), _sums(u[:MOST_ROWS], v[:MOST_ROWS])]
    return hits


def strongest(*hits: Hit) -> Hit:
    return min(hits, key=lambda hit: (hit.p_value, -hit.information))


def corrected(hit: Hit, tried: int) -> Hit:
    """The best of so many."""
    return replace(hit, p_value=min(1.0, tried * hit.p_value))


def _pairs(x: Rows, y: Rows, u: Array, v: Array) -> list[Hit]:
    places = [(i, j) for i in range(u.shape[1]) for j in range(v.shape[1])]
    if len(places) > MOST_PAIRS:
        chosen = np.random.default_rng(0).choice(len(places), MOST_PAIRS, replace=False)
        places = [places[at] for at in chosen]
    cells = 1 << int(np.clip(math.log2(CELLS / len(places)), 12, 18))
    waves_x, waves_y = ([_most_waves(each) for each in side.T] for side in (x, y))
    best = [NONE] * 7
    orders, scores = [[each.argsort() for each in side.T] for side in (u, v)], (ndtri(u), ndtri(v))
    for i, j in places:
        of_x, of_y = waves_x[i], waves_y[j]
        tied = min(of_x, of_y) < math.inf
        hits = (
            _table(u[:, i], v[:, j], False, of_x, of_y),
            _table(_spanned(x[:, i]), _spanned(y[:, j]), tied, of_x, of_y),
            _scan(x[:, i], v[:, j], cells, of_x),
            _scan(y[:, j], u[:, i], cells, of_y),
            _equal(x[:, i], y[:, j], tied),
            _cosines(scores[1][orders[0][i], j], of_x),
            _cosines(scores[0][orders[1][j], i], of_y),
        )
        best = [strongest(*each) for each in zip(best, hits, strict=True)]
    return [corrected(hit, len(places)) for hit in best]


def _most_waves(x: Rows) -> float:
    """Along the values of a column with ties: half as many as it has values."""
    distinct = len(np.unique(x))
    return distinct / 2 if distinct < TIED * len(x) else math.inf


def of_resultant(length: float) -> float:
    """The least information of an angle whose mean of e^{i angle} has this length, in nats.

    The angle is 2 pi (aU + bV), uniform under independence; the von Mises distribution is the
    nearest one to uniform, KL = kappa R - ln I_0(kappa) with I_1 / I_0 (kappa) = R. Processing does
    not add information, so I(U; V) is no less.
    """
    r = min(length, 0.999)
    if r < 0.53:  # Fisher (1993), section 3.3.6
        kappa = 2 * r + r**3 + 5 * r**5 / 6
    elif r < 0.85:
        kappa = -0.4 + 1.39 * r + 0.43 / (1 - r)
    else:
        kappa = 1 / (r**3 - 4 * r**2 + 3 * r)
    return max(float(kappa * r - math.log(i0e(kappa)) - kappa), 0.0)


def of_share(share: float) -> float:
    """-1/2 ln(1 - share): the information of a linear relation that explains so much."""
    return -0.5 * math.log(1 - min(share, 0.98))


def _exceeds(power: float, tried: int) -> float:
    """The probability that one of `tried` exponential variables exceeds this power."""
    return float(-np.expm1(tried * np.log1p(-min(math.exp(-power), 1 - 1e-12))))


def _spanned(x: Rows) -> Array:
    """The values from 0 to 1 over the middle 98 % of them, cut off outside."""
    low, high = np.quantile(x, [0.01, 0.99])
    return np.clip((x - low) / max(high - low, 1e-300), 0.0, 1.0)


def _table(u: Array, v: Array, tied: bool, of_x: float, of_y: float) -> Hit:
    """The characteristic function of two columns, less that of independent ones.

    tied: they are no uniform variables, so that the information is that of the quarters of a turn
    in which the two phases fall. of_x, of_y: `_most_waves` of the columns.
    """
    samples = len(u)
    cells = [np.minimum(side * GRID, GRID - 1).astype(int) for side in (u, v)]
    counts = np.bincount(cells[0] * GRID + cells[1], minlength=GRID * GRID).reshape(GRID, GRID)
    joint = fft2(counts) / samples
    twice = 2 * np.arange(GRID) % GRID
    of_u, of_v = joint[:, :1], joint[:1]
    lengths, lines = _beyond(joint, of_u, of_v, of_u[twice], of_v[:, twice])

    def low(part: Array) -> Array:
        return np.concatenate([part[1 : LOW + 1, 1 : LOW + 1], part[1 : LOW + 1, -LOW:]], axis=1)

    kept, lines = low(lengths), low(lines)
    powers = np.square(kept) / lines
    a, b = np.unravel_index(powers.argmax(), powers.shape)
    length = float(kept[a, b])
    fine = max(a, min(b, 2 * LOW - 1 - b)) >= 2
    sure, near = (max(length - by / math.sqrt(samples), 0.0) for by in (2, 1))
    if tied:
        turns = (a + 1, b + 1 if b < LOW else b - 2 * LOW)
        information, resolved = _of_quarters(cells[0] * turns[0], cells[1] * turns[1])
    else:
        information, resolved = of_resultant(sure), of_resultant(near)
    what = "a fine pattern of two columns" if fine else SMOOTH
    what = CLASSES if fine and (a + 1 >= of_x or min(b + 1, 2 * LOW - b) >= of_y) else what
    return Hit(_exceeds(samples * float(powers[a, b]), kept.size), information, resolved, what)


def _beyond(joint: Rows, of_x: Rows, of_y: Rows, of_2x: Rows, of_2y: Rows) -> tuple[Array, Array]:
    """|E fg - E f E g| in units of its deviation under independence times sqrt N, and 1 + |r|.

    f and g are waves e^{i a} and e^{i b} of the sides; of_x is E f, of_2x is E f^2. |r|, from 0 to
    1, says how far the coefficient lies on a line, as for columns of two values. N length^2 over
    1 + |r| exceeds t with a probability of e^{-t} at most: no axis is longer than the longer one.
    """
    excess = np.abs(joint - of_x * of_y)
    free_x, free_y = (np.maximum(1 - np.square(np.abs(each)), 0.0) for each in (of_x, of_y))
    free = np.maximum(np.sqrt(free_x * free_y), LEAST_FREE)
    lines = np.abs(of_2x - np.square(of_x)) * np.abs(of_2y - np.square(of_y)) / np.square(free)
    return excess / free, 1 + np.minimum(lines, 1.0)


def _cosines(scores: Array, most_waves: float = math.inf) -> Hit:
    """What smooth functions of one column explain of another, whose scores come in its order.

    The first K cosines of the place, K up to half of the rows. The share of the variance that
    they explain of shuffled scores is beta distributed. Of the scores and their absolute values:
    for the former, of normal distribution, -1/2 ln(1 - share) is no more than the information.
    """
    samples = len(scores)
    if samples < 40:
        return NONE
    counts = 2 ** np.arange(1, int(math.log2(samples / 2)) + 1)
    best = NONE
    for values, short in ((scores, 0.0), (np.abs(scores), HALF_NORMAL)):
        waves = np.square(dct(values - values.mean(), norm="ortho")[1:])
        shares = np.minimum(np.cumsum(waves)[counts - 1] / waves.sum(), 1 - 1e-9)
        rest = samples - 1 - counts
        p = betainc(rest / 2, counts / 2, 1 - shares)
        at = int(p.argmin()) if p.min() > 0 else int((shares - counts / samples).argmax())
        share = 1 - (1 - shares[at]) * (samples - 1) / rest[at]
        variance = 4 * max(share, 0.0) * (1 - share) ** 2 / samples + 2 * counts[at] / samples**2
        error = math.sqrt(variance)
        told = max(of_share(max(share - 2 * error, 0.0)) - short, 0.0)
        what = SMOOTH if counts[at] < 6 else f"a function of about {counts[at] / 2:,.0f} waves"
        what = CLASSES if counts[at] / 2 >= most_waves else what
        hit = Hit(min(1.0, 2 * len(counts) * float(p[at])), told, 0.8 * told, what)
        best = strongest(best, hit)
    return best


def _triples(u: Array, v: Array) -> Hit:
    """Waves across two columns of a side, beside one of the other."""
    sides = [
        (a, i, j, b, k)
        for a, b in ((u, v), (v, u))
        for i, j in combinations(range(a.shape[1]), 2)
        for k in range(b.shape[1])
    ]
    if not 0 < len(sides) <= MOST_TRIPLES:
        return NONE
    size = 1 << int(math.log2(PLANE / OF_ONE / len(sides)) / 2)
    if size < 8:
        return NONE
    samples, best = len(u), NONE
    alone = OF_ONE // 4
    twice, of_one = 2 * np.arange(size) % size, 2 * np.arange(1, alone + 1)
    for a, i, j, b, k in sides:
        p, q = ((side * size).astype(int) for side in (a[:, i], a[:, j]))
        r = (b[:, k] * OF_ONE).astype(int)
        cells = np.bincount((p * size + q) * OF_ONE + r, minlength=size * size * OF_ONE)
        joint = fftn(cells.reshape(size, size, OF_ONE)) / samples
        two, one = joint[:, :, 0], joint[0, 0]
        lengths, lines = _beyond(
            joint[:, :, 1 : alone + 1],
            two[:, :, None],
            one[1 : alone + 1],
            two[twice][:, twice][:, :, None],
            one[of_one],
        )
        powers = np.square(lengths) / lines
        powers[0] = powers[:, 0] = 0.0
        at = np.unravel_index(powers.argmax(), powers.shape)
        length, tried = float(lengths[at]), (size - 1) ** 2 * alone
        best = strongest(best, _of_sum(length, float(powers[at]), samples, tried, 3))
    return corrected(best, len(sides))


def _of_sum(length: float, power: float, samples: int, tried: int, columns: int) -> Hit:
    sure, near = (of_resultant(max(length - by / math.sqrt(samples), 0.0)) for by in (2, 1))
    what = f"a periodic pattern of {columns} columns"
    return Hit(_exceeds(samples * power, tried), sure, near, what)


def _sums(u: Array, v: Array) -> Hit:
    """Waves e^{2 pi i (k U_a + l U_b ...)} of up to three columns of each side, k, l, ... from
    -`HIGHEST` to `HIGHEST`, or as far as there is room."""
    counts = [
        {
            (most, height): count
            for most in range(1, min(side.shape[1], 3) + 1)
            for height in range(1, HIGHEST + 1)
            if (count := _sum_count(side, most, height)) <= MOST_WAVES
        }
        for side in (u, v)
    ]
    able = [
        both for both in product(*counts) if counts[0][both[0]] * counts[1][both[1]] <= MOST_SUMS
    ]
    if not able:
        return NONE
    chosen = max(able, key=lambda both: np.sum(both, axis=0).tolist())  # columns, then heights
    (of_x, sizes_x), (of_y, sizes_y) = (
        _waves(side, *each) for side, each in zip((u, v), chosen, strict=True)
    )
    samples, best = len(u), NONE
    mean_x, mean_y = of_x.mean(0)[:, None], of_y.mean(0)
    twice_x, twice_y = np.square(of_x).mean(0)[:, None], np.square(of_y).mean(0)
    for turned in (False, True):  # sums and differences of the sides
        other, mean, twice = (each.conj() if turned else each for each in (of_y, mean_y, twice_y))
        lengths, lines = _beyond(of_x.T @ other / samples, mean_x, mean, twice_x, twice)
        powers = np.square(lengths) / lines
        a, b = np.unravel_index(powers.argmax(), powers.shape)
        columns, tried = int(sizes_x[a] + sizes_y[b]), 2 * powers.size
        length, power = float(lengths[a, b]), float(powers[a, b])
        best = strongest(best, _of_sum(length, power, samples, tried, columns))
    return best


def _sum_count(side: Array, most: int, height: int) -> int:
    columns = side.shape[1]
    return sum(
        math.comb(columns, size) * 2 ** (size - 1) * height**size for size in range(1, most + 1)
    )


def _waves(
    side: Array, most: int, height: int
) -> tuple[npt.NDArray[np.complex64], npt.NDArray[np.intp]]:
    """The waves of all sums of at most so many columns, each up to `height` times, the first with a
    plus: (N, C), and how many columns each has."""
    wave = np.exp(2j * math.pi * side).astype(np.complex64)
    found, sizes = [], []
    for size in range(1, min(most, side.shape[1]) + 1):
        for chosen in combinations(range(side.shape[1]), size):
            parts = [wave[:, chosen[0]] ** times for times in range(1, height + 1)]
            for column in chosen[1:]:
                times = [wave[:, column] ** each for each in range(1, height + 1)]
                parts = [part * z for part in parts for each in times for z in (each, each.conj())]
            found += parts
            sizes += [size] * len(parts)
    return np.stack(found, axis=1), np.array(sizes)


def _equal(x: Rows, y: Rows, tied: bool) -> Hit:
    """Rows in which x and y are almost equal, compared with shuffled pairs.

    With q the share of rows with |x - y| < d, and f that of shuffled pairs, the event alone tells
    q ln(q / f) + (1 - q) ln((1 - q) / (1 - f)) nats, whatever the margins are.
    """
    samples = len(x)
    if tied or samples < 2 * LEAST_EQUAL:
        return NONE
    rng = np.random.default_rng(0)
    apart = np.sort(np.abs(x - y))
    shuffles = max(SHUFFLED_PAIRS // samples, 2)
    others = [np.abs(x - y[np.roll(rng.permutation(samples), 1)]) for _ in range(shuffles)]
    counts = np.unique(np.geomspace(LEAST_EQUAL, samples / 2, 12).astype(int))
    below = np.searchsorted(np.sort(np.concatenate(others)), apart[counts - 1], "right")
    f = (below + 3) / (shuffles * samples)  # at most, but for chance
    p_values = gammainc(counts, samples * f)  # Poisson: so many or more
    at = int(p_values.argmin())
    count, share = int(counts[at]), float(min(f[at], 0.5))
    p = min(1.0, len(counts) * float(p_values[at]))
    sure, near = (
        _of_event(max(count - by * math.sqrt(count), 0.0) / samples, share) for by in (2, 1)
    )
    return Hit(p, sure, 0.8 * near, f"near equality of x and y in {count:,} rows")


def _of_event(q: float, f: float) -> float:
    """The divergence of a coin of probability q from one of f; 0 where q is below f."""
    if q <= f:
        return 0.0
    rest = (1 - q) * math.log((1 - q) / (1 - f)) if q < 1 else 0.0
    return q * math.log(q / f) + rest


def _of_quarters(a: Rows, b: Rows) -> tuple[float, float]:
    """What the quarters of the turn that two phases fall into tell of each other, in nats, less
    two standard errors and less one; the phases in `GRID` steps a turn."""
    quarters = [(phase % GRID * 4 // GRID)[:, None] for phase in (a, b)]
    table = Table.of(*quarters)
    value, stderr = table.miller_madow(), table_stderr(table)
    return max(value - 2 * stderr, 0.0), max(value - stderr, 0.0)


def _scan(x: Rows, v: Array, cells: int, most_waves: float) -> Hit:
    """Oscillations of functions of the ranks v along the values x, of 1 to cells / 16 periods.

    Along the values, not their ranks, which would blur the phase; over the middle 98 % of them.
    most_waves: along a column of few values; so many are no wave, but classes in no order.
    """
    low, high = np.quantile(x, [0.01, 0.99])
    inside = (x >= low) & (x <= high)
    if high <= low or inside.sum() < 20:
        return NONE
    samples, highest = int(inside.sum()), cells // 8
    # Half of the cells stay empty, so that frequencies between whole ones are seen.
    place = ((x[inside] - low) / (high - low) * (cells // 2 - 1)).astype(int)
    best = NONE
    for values in (v[inside] - 0.5, np.square(v[inside] - 0.5)):
        centred = values - values.mean()
        weights = np.bincount(place, centred / max(centred.std(), 1e-12), cells)
        power = np.square(np.abs(rfft(weights)[1 : highest + 1])) / samples
        at = int(power.argmax())
        # The share of the values that a wave of this frequency explains, whatever its phase: where
        # x has but a few values the waves are not orthogonal, and the power overstates it.
        turn = 2 * math.pi * (at + 1) * place / cells
        waves = np.column_stack([np.cos(turn), np.sin(turn)])
        explained = np.linalg.lstsq(waves - waves.mean(0), centred, rcond=1e-6)[0]
        fitted = (waves - waves.mean(0)) @ explained
        most = float(np.square(fitted).sum() / max(np.square(centred).sum(), 1e-300))
        strength = most * samples / 2
        share = 2 * max(strength - 2 * math.sqrt(strength), 0.0) / samples
        periods = (at + 1) / 2
        what = SMOOTH if periods < 3 else f"an oscillation of about {periods:,.0f} periods"
        what = CLASSES if periods >= most_waves else what
        p = _exceeds(strength, 2 * highest)
        hit = Hit(p, of_share(share), 0.6 * of_share(most), what)
        best = strongest(best, hit)
    return best


def _signs(u: Array, v: Array) -> Hit:
    dx, dy = u.shape[1], v.shape[1]
    x, y = np.where(u < 0.5, -1.0, 1.0), np.where(v < 0.5, -1.0, 1.0)
    if dx + dy <= WALSH:
        return _walsh(x, y)
    return _products(x[:MOST_ROWS], y[:MOST_ROWS])


def _walsh(x: Array, y: Array) -> Hit:
    (samples, dx), dy = x.shape, y.shape[1]
    bits = np.concatenate([x, y], axis=1) < 0
    codes = bits @ (1 << np.arange(dx + dy))
    table = np.bincount(codes, minlength=1 << (dx + dy)).astype(np.float64)
    for bit in range(dx + dy):
        pair = table.reshape(-1, 2, 1 << bit)
        table = np.stack([pair[:, 0] + pair[:, 1], pair[:, 0] - pair[:, 1]], axis=1).reshape(-1)
    means = table.reshape(1 << dy, 1 << dx) / samples
    of_y, of_x = means[1:, :1], means[:1, 1:]
    shared = np.abs(means[1:, 1:] - of_y * of_x)
    scaled = shared / np.sqrt(np.maximum((1 - of_y**2) * (1 - of_x**2), LEAST_FREE))
    b, a = np.unravel_index(int(scaled.argmax()), scaled.shape)
    columns = int(a + 1).bit_count() + int(b + 1).bit_count()
    return _of_signs(float(scaled[b, a]), float(shared[b, a]), samples, shared.size, columns)


def _products(x: Array, y: Array) -> Hit:
    samples = len(x)
    best, shared, tried, columns = 0.0, 0.0, 0, 2
    singles, doubles = [_sets(side, 1) for side in (x, y)], [_sets(side, 2) for side in (x, y)]
    for a, b, count in (
        (singles[0], singles[1], 2),
        (doubles[0], singles[1], 3),
        (singles[0], doubles[1], 3),
        (doubles[0], doubles[1], 4),
        (_sets(x, 3), singles[1], 4),
        (singles[0], _sets(y, 3), 4),
    ):
        if not a.shape[1] or not b.shape[1]:
            continue
        tried += a.shape[1] * b.shape[1]
        centred = b - b.mean(0)
        free_b = np.maximum(1 - np.square(b.mean(0)), LEAST_FREE)
        for start in range(0, a.shape[1], 512):
            part = a[:, start : start + 512]
            covariances = np.abs(part.T @ centred) / samples
            free_a = np.maximum(1 - np.square(part.mean(0)), LEAST_FREE)
            scaled = covariances / np.sqrt(np.outer(free_a, free_b))
            at = np.unravel_index(int(scaled.argmax()), scaled.shape)
            if scaled[at] > best:
                best, shared, columns = float(scaled[at]), float(covariances[at]), count
    return _of_signs(best, shared, samples, tried, columns)


def _sets(signs: Array, size: int) -> npt.NDArray[np.float32]:
    """Products of all sets of so many columns, (N, C); none where they would be too many."""
    count = math.comb(signs.shape[1], size)
    if not 0 < count <= MOST_SETS:
        return np.empty((len(signs), 0), np.float32)
    sets = np.array(list(combinations(range(signs.shape[1]), size)))
    product = np.ones((len(signs), count), np.float32)
    for place in sets.T:
        product *= signs[:, place].astype(np.float32)
    return product


def _of_signs(scaled: float, mean: float, samples: int, tried: int, columns: int) -> Hit:
    """scaled: the correlation of two products of signs. mean: their covariance, no larger."""
    p = min(1.0, 2 * tried * float(ndtr(-scaled * math.sqrt(samples))))
    sure, near = (max(mean - by / math.sqrt(samples), 0.0) for by in (2, 1))
    if columns == 2:
        return Hit(p, _of_coin(sure), _of_coin(near), SMOOTH)
    what = f"a parity of the signs of {columns} columns"
    return Hit(p, _of_coin(sure), 1.1 * _of_coin(mean), what)


def _of_coin(mean: float) -> float:
    """ln 2 - H of a sign with this mean: what a sign that predicts another so well tells of it."""
    q = (1 + min(mean, 1.0)) / 2
    return math.log(2) + sum(s * math.log(s) for s in (q, 1 - q) if s > 0)
