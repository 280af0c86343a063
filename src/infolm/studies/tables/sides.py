"""The sides of a comparison, lower and higher.

lstm                          the table's first figure of that arm
lstm:perplexity               a figure by its name
lstm:cache / lstm:perplexity  the ratio of two, seed by seed
lstm - mogrifier              their difference
2.5                           a number
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infolm.section import nearest

Values = Mapping[int, float]
"""By seed."""


@dataclass(frozen=True)
class Term:
    """An arm's figure, or a number."""

    arm: str = ""
    figure: str = ""
    number: float = 0.0

    def value(self, figures: Mapping[str, Mapping[int, Mapping[str, float]]], seed: int) -> float:
        return figures[self.arm][seed][self.figure] if self.arm else self.number

    def seeds(self, figures: Mapping[str, Mapping[int, Mapping[str, float]]]) -> set[int] | None:
        """Those that the figure was measured for; None: of a number, which has no seeds."""
        if not self.arm:
            return None
        found = figures.get(self.arm, {})
        return {seed for seed, each in found.items() if self.figure in each}


@dataclass(frozen=True)
class Side:
    """One term, or two with - or / between them."""

    first: Term
    operator: str = ""
    second: Term | None = None

    @property
    def terms(self) -> list[Term]:
        return [self.first, *([self.second] if self.second else [])]

    def value(self, figures: Mapping[str, Mapping[int, Mapping[str, float]]], seed: int) -> float:
        first = self.first.value(figures, seed)
        if self.second is None:
            return first
        second = self.second.value(figures, seed)
        return first / second if self.operator == "/" else first - second

    def exists(self, figures: Mapping[str, Mapping[int, Mapping[str, float]]], seed: int) -> bool:
        """Whether it has a value: nothing is divided by 0."""
        zero = self.second is not None and self.second.value(figures, seed) == 0
        return not (zero and self.operator == "/")


def parse(text: str, arms: Sequence[str], figures: Sequence[str]) -> Side:
    """The side that a text names; ValueError with a sentence where it names nothing."""
    parts = re.split(r"\s([-/])\s", text.strip())
    if len(parts) not in (1, 3):
        raise ValueError(f"'{text}' is not a side of a comparison: write A, A - B or A / B")
    terms = [_term(part.strip(), arms, figures) for part in parts[::2]]
    return Side(terms[0], *([parts[1], terms[1]] if len(parts) == 3 else []))  # type: ignore[arg-type]


def _term(text: str, arms: Sequence[str], figures: Sequence[str]) -> Term:
    arm, _, figure = text.partition(":")
    if arm in arms:
        if figure and figure not in figures:
            raise ValueError(f"'{text}': there is no figure '{figure}'{nearest(figure, figures)}")
        return Term(arm, figure or figures[0])
    try:
        return Term(number=float(text))
    except ValueError:
        raise ValueError(f"'{text}': there is no arm '{arm}'{nearest(arm, arms)}") from None


def common_seeds(
    sides: Sequence[Side], figures: Mapping[str, Mapping[int, Mapping[str, float]]]
) -> list[int]:
    """The seeds for which every term of the sides was measured, and both have a value."""
    found = [
        seeds for side in sides for term in side.terms if (seeds := term.seeds(figures)) is not None
    ]
    common = sorted(set.intersection(*found)) if found else []
    return [seed for seed in common if all(side.exists(figures, seed) for side in sides)]
