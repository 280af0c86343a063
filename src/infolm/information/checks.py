"""Self-checks: each estimate compared with the evidence of the sample.

An estimator knows its own error, and often its own bias. It cannot know that the rows are a time
series, that columns are rounded, or that the dependence is of a kind it misses. So each estimate is
compared with neighbours, correlations, counts and screens (`panel.judged`):

- warnings about the rows hold for every estimator;
- an interval that excludes 0 is withdrawn if the interval on shuffled pairs does too;
- the interval is widened to contain theirs, with a warning if the value is outside theirs.
"""

from dataclasses import dataclass, replace

import numpy.typing as npt

from infolm.information.estimate import Estimate, Estimator, joined, pairs
from infolm.information.evidence import FEWEST, Evidence
from infolm.information.panel import judged, with_critic

APART = 0.05
"""Nats by which a value may lie outside the others' interval without a warning."""
VETO = 0.05
"""Nats on shuffled pairs, above three standard errors, that withdraw an interval."""


@dataclass(frozen=True)
class Checked:
    """An estimator with self-checks: `registry.estimator` makes all of them so.

    seed: of what is drawn for the checks.
    """

    plain: Estimator
    seed: int = 0

    @property
    def name(self) -> str:
        return self.plain.name

    def estimate(self, x: npt.ArrayLike, y: npt.ArrayLike) -> Estimate:
        return checked(self.plain, x, y, self.seed)


def checked(plain: Estimator, x: npt.ArrayLike, y: npt.ArrayLike, seed: int = 0) -> Estimate:
    """The estimate, widened and with warnings if the evidence contradicts it."""
    a, b = pairs(x, y)
    found = _vetoed(plain.estimate(a, b))
    if len(a) < FEWEST:
        return replace(
            found, warning=joined(found.warning, f"{len(a)} rows are too few for any self-check")
        )
    evidence = Evidence(a, b, seed)
    judgement = judged(evidence)
    if found.bound == "upper":
        return replace(found, warning=joined(found.warning, *judgement.of_rows))
    low, high = found.interval
    of_value = judgement.of_value
    if found.bound == "lower":
        judgement = with_critic(judgement, found)
        of_value = judgement.of_value
    elif low <= judgement.value <= high and not judgement.lower_limit:
        of_value = ()  # an estimator of another kind agrees
    return replace(
        found,
        interval=(min(low, judgement.low), max(high, judgement.high)),
        warning=joined(
            found.warning,
            *judgement.of_rows,
            *of_value,
            _apart(found, judgement.low, judgement.high),
        ),
    )


def _apart(found: Estimate, low: float, high: float) -> str | None:
    if low - APART <= found.value <= high + APART:
        return None
    return (
        f"estimators of other kinds disagree: neighbours and correlations together give "
        f"{low:.2f} to {high:.2f} nats"
    )


def _vetoed(found: Estimate) -> Estimate:
    """With an interval from 0 if shuffled pairs, which share nothing, also give information."""
    if found.permuted <= max(VETO, 3 * found.stderr):
        return found
    told = (
        f"shuffled pairs, which share nothing, give {found.permuted:.2f} nats, so that the value "
        "is withdrawn"
    )
    return replace(
        found, interval=(0.0, max(found.interval[1], 0.0)), warning=joined(found.warning, told)
    )
