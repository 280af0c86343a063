"""Whether a claim is shown: a paired difference over seeds, beyond two standard errors."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from infolm.evaluation.paired import paired_t

Word = Literal["shown", "not shown", "opposite", "not tried"]
ERRORS = 2.0
"""Standard errors beyond which a difference counts."""
FEWEST = 3
"""Seeds below which nothing can be said."""


@dataclass(frozen=True)
class Verdict:
    """word: see `judge`. lower, higher: the means of the two sides over the seeds in pairs.
    difference: higher - lower; stderr: its standard error over seeds; p: of the two-sided paired t
    test that the difference is 0."""

    word: Word
    seeds: int
    lower: float | None = None
    higher: float | None = None
    difference: float | None = None
    stderr: float | None = None
    p: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    lower: Sequence[float], higher: Sequence[float], by: float = 0.0, within: float | None = None
) -> Verdict:
    """What the values of the two sides, seed by seed, say of a claim.

    With d the mean difference higher - lower and s its standard error over seeds, the claim is
    shown if d - by > 2 s, and opposite if d - by < -2 s. A negative `by` is a margin: not worse
    than that. within: the claim is that the sides are as good as each other: shown if
    |d| + 2 s < within, opposite if |d| - 2 s > within. Not tried: fewer than three seeds.
    """
    if len(lower) < FEWEST:
        return Verdict("not tried", len(lower))
    found = paired_t(lower, higher)
    d, s = found.difference, found.stderr or 0.0
    means = sum(lower) / len(lower), sum(higher) / len(higher)
    return Verdict(_word(d, ERRORS * s, by, within), len(lower), *means, d, s, found.p)


def _word(d: float, reach: float, by: float, within: float | None) -> Word:
    if within is not None:
        if abs(d) + reach < within:
            return "shown"
        return "opposite" if abs(d) - reach > within else "not shown"
    if d - by > reach:
        return "shown"
    return "opposite" if d - by < -reach else "not shown"


def of_table(words: Sequence[Word]) -> str:
    """The verdicts of a table's comparisons in a few words: 'shown', or 'shown 3, opposite 1'."""
    tried = [word for word in words if word != "not tried"]
    if not tried:
        return "not tried"
    kinds = [word for word in ("shown", "not shown", "opposite", "not tried") if word in words]
    return kinds[0] if len(kinds) == 1 else ", ".join(f"{k} {words.count(k)}" for k in kinds)
