"""Every estimate held against the evidence of the sample: a self-check.

An estimator knows its own error, and often its own bias. What it cannot know is that the rows are a
time series, that columns are rounded, that the dependence is of a kind it does not see. So each
estimate is compared with what neighbours, correlations, counts and screens say (`panel.judged`):

- warnings about the rows hold for every estimator;
- an interval that excludes 0, where that on shuffled pairs does too, is withdrawn;
- the interval is widened to hold theirs, and where the value is outside it there is a warning.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from infolm.information.estimate import Estimate, joined, pairs

APART = 0.05
"""Nats by which a value may miss the interval of the others without a warning."""
VETO = 0.05
"""Nats on shuffled pairs, above three standard errors, that withdraw an interval."""


def checked(unchecked: Callable[[Any, Any], Estimate], x: Any, y: Any, seed: int = 0) -> Estimate:
    """The estimate, wider and with warnings where the evidence speaks against it."""
    from infolm.information.evidence import FEWEST, Evidence
    from infolm.information.panel import judged, with_critic

    a, b = pairs(x, y)
    found = _vetoed(unchecked(a, b))
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
        of_value = ()  # of another kind, and it agrees
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
    """With an interval from 0 where shuffled pairs, which share nothing, seem to share as well."""
    if found.permuted <= max(VETO, 3 * found.stderr):
        return found
    told = (
        f"shuffled pairs, which share nothing, give {found.permuted:.2f} nats, so that the value "
        "is withdrawn"
    )
    return replace(
        found, interval=(0.0, max(found.interval[1], 0.0)), warning=joined(found.warning, told)
    )
