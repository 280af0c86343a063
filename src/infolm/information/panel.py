"""One answer from estimators of different kinds: a value, an interval, a p-value, a verdict.

    answer = Panel().estimate(x, y)
    answer.verdict          # "about 0.35 nats, 0.28 to 0.41"
    answer.warning          # None if nothing contradicts it

No estimator is right everywhere, but each fails in its own way. Canonical correlations of normal
scores miss dependence that is not monotone; nearest neighbours miss dependence that is finer than
their distance, or lies in many columns; a critic misses what it cannot learn from these rows. All
are then too low. So what one finds beyond the others counts, unless shuffled pairs show it too.

With G the Gaussian information of the normal scores, and E what nearest neighbours see in them
beyond what they see in Gaussian rows of the same correlations (`Evidence`),

    value = G + E,     or G alone where E is within its error.

The interval contains those of both, up to G + E / recovery, and the missing part estimated from the
drift. If all columns are discrete and the table is well filled, its counts are used instead.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy.typing as npt

from infolm.information.discrete import table_interval
from infolm.information.estimate import Estimate, Progress, Unit, half_width, joined
from infolm.information.evidence import FEW_COLUMNS, FEWEST, Evidence
from infolm.information.screens import CLASSES, SMOOTH, WALSH, Hit

Kind = Literal["about", "at least", "none", "series"]

ALPHA = 0.05
"""A p-value above is no sign of dependence."""
PERMUTATIONS = 199
SCREEN = 1e-4
"""p-value of a screen that counts against an estimate which does not see the same."""
SEEN = 2.5
"""Standard errors from which on neighbours see more than a Gaussian has."""
LIKELY = 2.0
"""The same of a drift that widens the interval as far as it may go on."""
DRIFT = 3.0
"""Standard errors of a drift that is no chance."""
MISSING = 0.05
"""Nats that may be missing without a warning."""
COPIED = 0.02
"""Share of rows that are copies of others without a warning."""
EXCESS_ERROR, DRIFT_ERROR = 0.9, 0.5
"""Over the standard error of the neighbours' value, on Gaussian rows: the spreads of what is seen
beyond a Gaussian, and of the drift for a halving."""
EDGES = 2.0
"""Standard errors by which ranks must read more than normal scores to be believed."""
FASTEST, SLOWEST = 0.5, 0.9
"""What is left of a drift when the rows are doubled; at least `MANY` with many columns or
classes."""
MANY = 0.75
WIDTH = 2.5
"""Standard errors of an interval: more than for one estimator, as the worst of several counts."""
LEAST_SHARE = 0.2
"""Of a planted dependence: less is not used to scale."""
TABLE_DRIFT = 2.0
"""The same of discrete columns, whose drift is rougher."""
AGREED, AGREED_SHARE = 0.05, 0.15
"""Nats, and share of the value, within which two estimators of different kinds agree."""
FEWEST_FOR_CRITIC = 200
RESOLVED = 0.8
"""Of what a screen implies must be in the interval."""
HALVINGS = 1 + math.log2(10 / 3)
"""Half the rows is one halving; 10 neighbours instead of 3 is the rest."""


@dataclass(frozen=True)
class Answer:
    """A panel's answer about I(X; Y).

    p_value: of independence. kind: the kind of statement. warning: why the value is doubtful; None
    if nothing is known against it.
    """

    value: float
    interval: tuple[float, float]
    p_value: float
    kind: Kind
    warning: str | None
    samples: int
    unit: Unit = "nats"
    estimates: tuple[Estimate, ...] = ()

    @property
    def verdict(self) -> str:
        """A sentence to quote."""
        low, high = self.interval
        if self.kind == "series":
            return "these rows are a time series"
        if self.kind == "none":
            return f"not distinguishable from 0 (p = {self.p_value:.2g})"
        if self.kind == "at least":
            return f"at least {low:.2f} {self.unit}; more cannot be seen with {self.samples:,} rows"
        return f"about {self.value:.2f} {self.unit}, {low:.2f} to {high:.2f}"

    @property
    def normalised(self) -> float:
        """sqrt(1 - e^{-2 I}), from 0 to 1: the correlation of a Gaussian pair with as much
        information (Linfoot, 1957)."""
        nats = self.value * (math.log(2) if self.unit == "bits" else 1.0)
        return math.sqrt(-math.expm1(-2 * max(nats, 0.0)))

    def to(self, unit: Unit) -> "Answer":
        """The same in another unit."""
        per_nat = {"nats": 1.0, "bits": 1 / math.log(2)}
        by = per_nat[unit] / per_nat[self.unit]
        low, high = self.interval
        return replace(
            self,
            value=by * self.value,
            interval=(by * low, by * high),
            unit=unit,
            estimates=tuple(each.to(unit) for each in self.estimates),
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "interval": self.interval,
            "p_value": self.p_value,
            "normalised": self.normalised,
            "verdict": self.verdict,
            "warning": self.warning,
            "samples": self.samples,
            "unit": self.unit,
        }


@dataclass(frozen=True)
class Judgement:
    """The interval of the truth by the evidence, and doubts.

    lower_limit: whether more is likely than can be seen. of_rows: warnings about the rows, whatever
    estimator reads them. of_value: warnings about the value, which an estimator of another kind
    that finds as much can take away.
    """

    value: float
    low: float
    high: float
    lower_limit: bool = False
    of_rows: tuple[str, ...] = ()
    of_value: tuple[str, ...] = ()

    @property
    def warning(self) -> str | None:
        return joined(*self.of_rows, *self.of_value)


def judged(evidence: Evidence) -> Judgement:
    """The combined judgement of nearest neighbours, correlations, counts and screens."""
    found = _of_table(evidence) if evidence.sampled_table else _of_scores(evidence)
    found = _screened(found, evidence)
    of_rows = (evidence.serial.warning, _copies(evidence), _few(evidence), _blind(evidence))
    return replace(found, of_rows=tuple(filter(None, of_rows)))


def _of_table(evidence: Evidence) -> Judgement:
    assert evidence.table is not None
    value, _, low, high = table_interval(evidence.table, evidence.seed)
    return Judgement(max(value, 0.0), low, high)


def _of_scores(evidence: Evidence) -> Judgement:
    near, gaussian = evidence.nearest, evidence.correlated
    widened = math.sqrt(evidence.serial.tau)
    stderr, gaussian_error = widened * near.stderr, widened * gaussian.stderr
    excess, excess_error = near.value - near.bias - gaussian.value, EXCESS_ERROR * stderr
    of_ranks = near.uniform - gaussian.value
    if of_ranks > excess + EDGES * stderr:
        excess = of_ranks
    seen = excess > SEEN * excess_error
    share = max(near.recovery, LEAST_SHARE)
    # The share is that of one kind of dependence, so what it adds is counted twice upwards.
    at_most = (max(excess, of_ranks, 0.0) + WIDTH * excess_error) / share * (2 - share)
    # What neighbours miss of a Gaussian they may not miss of other patterns, such as clusters.
    low = min(gaussian.value + excess, near.value if seen else math.inf) - WIDTH * stderr
    if not seen or share <= 0.5:  # where neighbours see little, they are no ground for a low end
        low = min(low, gaussian.value - WIDTH * gaussian_error)
    high = gaussian.value + max(at_most, WIDTH * gaussian_error, excess + WIDTH * stderr)
    drift = _drift(evidence, stderr)
    found = Judgement(
        value=max(gaussian.value + (excess if seen else 0.0), 0.0),
        low=max(low, 0.0),
        high=max(high, 0.0) + drift.at_most + WIDTH**2 / (2 * evidence.serial.effective),
    )
    limits, doubts = [], []
    if evidence.by_class is not None:
        value, class_error, halving = evidence.by_class
        width, error = WIDTH * widened * class_error, DRIFT_ERROR * widened * class_error
        drift = _of_halving(halving, error, MANY, DRIFT)
        found = replace(
            found,
            value=max(value, 0.0),
            low=max(min(found.low, value - width), 0.0),
            high=max(found.high, value + width + drift.at_most),
        )
    if drift.sure:
        limits.append(
            f"the value still grows with the rows, by {drift.halving:.2f} nats from half to all"
        )
    if near.value > near.ceiling - 1 or gaussian.perfect:
        limits.append(
            f"near the ceiling {near.ceiling:.1f} nats of nearest neighbours with "
            f"{evidence.samples:,} rows"
        )
    if seen and excess / share * (2 - share) - excess > MISSING:
        doubts.append(
            f"not Gaussian, and in {evidence.columns} columns nearest neighbours see only "
            f"{near.recovery:.0%} of what two of them share: the truth may be above"
        )
    if excess < -4 * excess_error and -excess > 2 * MISSING:
        doubts.append(
            f"nearest neighbours see {-excess:.2f} nats less than a Gaussian of these correlations "
            "would show them"
        )
    if abs(near.shuffled) > 4 * near.stderr + 0.01:
        doubts.append(f"on shuffled pairs nearest neighbours still see {near.shuffled:.2f} nats")
    return replace(found, lower_limit=bool(limits), of_value=(*limits, *doubts))


@dataclass(frozen=True)
class Drift:
    """What doubling the rows would still add.

    halving: nats lost for a halving of the rows, beyond what Gaussian rows lose. at_most: nats that
    all further rows may add. sure: whether it is more than chance and than `MISSING`.
    """

    halving: float
    at_most: float
    sure: bool


def _drift(evidence: Evidence, stderr: float) -> Drift:
    """From half the rows, and from `FAR` neighbours instead of `NEAR`, which is more halvings.

    If a doubling adds d, the next one adds a share q of it, so that d q / (1 - q) is left. A
    pattern with edges in D columns converges like N^(-1/D), which is the q of a likely drift.
    """
    near, error = evidence.nearest, DRIFT_ERROR * stderr
    beyond = near.halving - near.bias_halving + near.widening - near.bias_widening
    halving = beyond / HALVINGS
    slow = evidence.columns > FEW_COLUMNS or evidence.classes
    likely = halving > LIKELY * error
    least = max(MANY if slow else FASTEST, min(2 ** (-1 / evidence.columns), MANY) * likely)
    kept = least
    if near.quartering > 2 * error:
        kept = min(max(near.halving / near.quartering, least), SLOWEST)
    return _of_halving(halving, error, kept, DRIFT if evidence.table is None else TABLE_DRIFT)


def _of_halving(halving: float, error: float, kept: float, sure: float) -> Drift:
    """kept: what a doubling adds of what the one before added. sure: standard errors."""
    factor = kept / (1 - kept)
    return Drift(
        halving,
        max(halving + 2 * error, 0.0) * factor,
        halving > sure * error and halving * factor > MISSING,
    )


def _screened(found: Judgement, evidence: Evidence) -> Judgement:
    """Compare with the screens: what they find is the least that the interval may hold.

    What neighbours and correlations missed of it they may have missed of as much again.
    """
    hits = [hit for hit in evidence.screens if hit.p_value <= SCREEN]
    if evidence.serial.series or not hits:
        return found
    missed = [hit for hit in hits if not _resolves(found, hit)]
    hit = max(missed or hits, key=lambda hit: hit.information)
    if not missed:  # of many such limits the highest is often by chance a little too high
        at_least = RESOLVED * hit.information
        return replace(found, value=max(found.value, at_least), low=max(found.low, at_least))
    warning = (
        f"there is {hit.what}, worth {hit.information:.2f} nats or more, which neighbours and "
        "correlations do not resolve"
    )
    return replace(
        found,
        value=max(found.value, hit.information),
        low=max(found.low, hit.information),
        high=max(found.high, 2 * hit.information - found.value),
        lower_limit=True,
        of_value=(*found.of_value, warning),
    )


def _resolves(found: Judgement, hit: Hit) -> bool:
    """Of what is smooth, or of classes, `MISSING` nats may be missed: it is no sign of more."""
    missing = hit.resolved - found.value
    coarse = hit.what in (SMOOTH, CLASSES)
    return RESOLVED * hit.information <= found.high and missing <= (MISSING if coarse else 0.0)


def _copies(evidence: Evidence) -> str | None:
    if evidence.copied <= COPIED:
        return None
    return f"{evidence.copied:.0%} of the rows are exact copies of others: drop them"


def _few(evidence: Evidence) -> str | None:
    if evidence.samples < FEWEST:
        return f"{evidence.samples:,} rows are too few for any self-check"
    if evidence.samples > 2 * evidence.columns:
        return None
    return f"{evidence.samples:,} rows are too few for {evidence.columns} columns"


def _blind(evidence: Evidence) -> str | None:
    if evidence.columns <= WALSH:
        return None
    return (
        f"in {evidence.columns} columns, a dependence of many of them at once that no few of them "
        "show would not be seen"
    )


def with_critic(found: Judgement, critic: Estimate) -> Judgement:
    """The judgement beside a lower bound that a critic has learnt.

    A bound above the interval replaces it; one above the value is the value. A bound that is near
    the value confirms it from another side, and takes the doubts about it away.
    """
    low, high = critic.interval
    low = min(low, critic.value - WIDTH * critic.stderr)
    if low > found.high:
        warning = (
            f"a critic finds {critic.value:.2f} nats where neighbours and correlations show at "
            f"most {found.high:.2f}: the truth may be above"
        )
        return replace(
            found,
            value=critic.value,
            low=low,
            high=max(high, 2 * critic.value - low),
            lower_limit=True,
            of_value=(*found.of_value, warning),
        )
    apart = abs(critic.value - found.value)
    agreed = not found.lower_limit and apart <= max(AGREED, AGREED_SHARE * found.value)
    if low > found.value:
        found = replace(found, value=critic.value, low=low, high=max(found.high, critic.value))
    elif found.lower_limit or agreed:
        found = replace(found, low=max(found.low, min(low, found.value)))
    elif found.low <= critic.value < found.value and found.of_value:
        found = replace(found, value=critic.value)  # the critic need not assume what was missed
    return replace(found, high=max(found.high, high), of_value=()) if agreed else found


@dataclass(frozen=True)
class Panel:
    """Estimators of different kinds, and one answer.

    fast: without a critic, whose training takes most of the time. folds, steps: of the critic.
    permutations: for the p-value. sequence: the rows are a time series.
    """

    fast: bool = False
    folds: int = 5
    steps: int = 2000
    permutations: int = PERMUTATIONS
    sequence: bool = False
    seed: int = 0
    progress: Progress | None = None

    def estimate(self, x: npt.ArrayLike, y: npt.ArrayLike) -> "Answer":
        evidence = Evidence(x, y, self.seed)
        found = judged(evidence)
        estimates = list(_members(evidence))
        enough = evidence.samples >= FEWEST_FOR_CRITIC and not evidence.sampled_table
        if enough and not self.fast:
            from infolm.information.neural import Neural

            neural = Neural(
                folds=self.folds,
                steps=self.steps,
                sequence=self.sequence,
                seed=self.seed,
                progress=self.progress,
            )
            estimates.append(neural.estimate(evidence.x, evidence.y))
            found = with_critic(found, estimates[-1])
        answer = answered(found, evidence, evidence.p_value(self.permutations))
        return replace(answer, estimates=tuple(estimates))


def _members(evidence: Evidence) -> Iterator[Estimate]:
    """The estimates behind the answer."""
    near, gaussian, samples = evidence.nearest, evidence.correlated, evidence.samples

    def member(name: str, value: float, stderr: float, permuted: float) -> Estimate:
        width = half_width(stderr)
        return Estimate(
            name,
            value,
            stderr,
            (max(value - width, 0.0), max(value + width, 0.0)),
            permuted,
            samples,
        )

    yield member("ksg-scores", near.value, near.stderr, near.shuffled)
    yield member("copula", gaussian.value, gaussian.stderr, evidence.shuffled_correlated)
    if evidence.table is not None:
        value, stderr, low, high = table_interval(evidence.table, evidence.seed)
        permuted = evidence.table.shuffled(evidence.seed).miller_madow()
        yield Estimate("miller-madow", value, stderr, (low, high), permuted, samples)


def answered(found: Judgement, evidence: Evidence, p_value: float) -> Answer:
    """The judgement with its p-value: a value that permuted pairs also show is withdrawn."""
    low = found.low if p_value <= ALPHA else 0.0
    kind: Kind = "about"
    if evidence.serial.series:
        kind = "series"
    elif found.lower_limit:
        kind = "at least"
    elif p_value > ALPHA:
        kind = "none"
    interval = (low, max(found.high, found.value))
    return Answer(found.value, interval, p_value, kind, found.warning, evidence.samples)
