"""Tables of the papers: arms to train and measure, and claims about them.

A table is a YAML file under `reproductions/`. An arm is a recipe with changes, trained with several
seeds. A comparison says which of two sides a paper claims to be lower; see `sides` and `verdict`.
"""

import json
import re
import shlex
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, ValidationError, model_validator

from infolm.config import Recipe, explain, load_recipe
from infolm.errors import InfolmError
from infolm.section import Section, nearest
from infolm.shelf import Shelf
from infolm.studies.tables import sides
from infolm.studies.tables.measures.base import MEASURES, FigureConfig, MeasureConfig

if TYPE_CHECKING:
    AnyMeasure = MeasureConfig
else:
    AnyMeasure = MEASURES.section("evaluate")

Value = bool | int | float | str
ScaleName = Literal["small", "paper"]
SMALL: ScaleName = "small"
TUNING_SEED = 11
"""Of trainings that choose a value; no arm has it."""


class Scale(Section):
    """The size at which a table is trained."""

    recipe: str = Field(description="a name from `infolm recipes`, or a YAML file")
    set: str = Field("", description="changes to it in every arm: key=value key=value")
    minutes: float | None = Field(
        None,
        gt=0,
        description="of one core for one training and its measurement, until some are measured",
    )


class Arm(Section):
    """Trainings that differ only in their seed."""

    label: str = Field(description="the row's title")
    set: str = Field("", description="changes to the recipe: key=value key=value")
    at: dict[ScaleName, str] = Field(
        default_factory=dict, description="changes in the place of `set` at one scale"
    )
    recipe: dict[ScaleName, str] = Field(
        default_factory=dict, description="another recipe than the scale's"
    )
    sweep: dict[str, list[Value]] = Field(
        default_factory=dict,
        description="key -> its values: the arm is a curve of trainings, one of every combination",
    )
    start: str | None = Field(
        None, description="an arm whose run of the same seed training starts from"
    )
    paper: dict[str, float] = Field(
        default_factory=dict, description="figure -> what the paper has"
    )

    def points(self) -> list[list[str]]:
        """What the swept keys are in each training of the curve; one training without a sweep."""
        return [
            [f"{key}={json.dumps(value)}" for key, value in zip(self.sweep, values, strict=True)]
            for values in product(*self.sweep.values())
        ]


class Tuning(Section):
    """A key whose value is chosen before the arms are trained: by the best validation loss of one
    arm, on a seed that no arm has. Tunings follow each other; each has what was chosen before."""

    arm: str = Field(alias="with", description="the arm that is trained with each value")
    key: str = Field(description="or several, with blanks between them, which have the same value")
    values: list[Value] = Field(min_length=2)
    arms: list[str] = Field(
        default_factory=list, description="those that get the value; none named: all"
    )

    def applies(self, arm: str) -> bool:
        return not self.arms or arm in self.arms

    def change(self, value: object) -> str:
        """key=value, or several."""
        return " ".join(f"{key}={json.dumps(value)}" for key in self.key.split())


class Comparison(Section):
    """One claim: which side is lower, by how much at least, or that there is no difference."""

    claim: str = Field(description="in one sentence")
    lower: str = Field(description="a side, such as an arm, or arm:figure")
    higher: str
    by: float = Field(
        0.0, description="the least difference; below 0: how much worse is still not worse"
    )
    within: float | None = Field(
        None, gt=0, description="the claim is that the sides differ by less than this"
    )


class Table(Section):
    """A table or figure of a paper."""

    title: str
    paper: str = Field(description="where the table stands")
    claim: str = Field(description="the claim of the table, in one sentence")
    note: str = Field("", description="a note on the setting for readers of the page")
    seeds: int = Field(3, ge=1, lt=TUNING_SEED, description="1, 2, ... up to this number")
    scales: dict[ScaleName, Scale]
    arms: dict[str, Arm] = Field(min_length=1)
    tuning: list[Tuning] = Field(default_factory=list, description="at the small scale")
    measure: AnyMeasure
    comparisons: list[Comparison] = Field(min_length=1)

    @property
    def figures(self) -> dict[str, FigureConfig]:
        return self.measure.columns

    def sides(self, comparison: Comparison) -> tuple[sides.Side, sides.Side]:
        """The lower and the higher one."""
        arms, figures = list(self.arms), list(self.figures)
        return (
            sides.parse(comparison.lower, arms, figures),
            sides.parse(comparison.higher, arms, figures),
        )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if SMALL not in self.scales:
            raise ValueError("scales: small is missing")
        for name, arm in self.arms.items():
            if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
                raise ValueError(
                    f"arms: '{name}' must be a folder's name: use small letters, digits, - and ."
                )
            if arm.start is not None and (
                arm.start not in self.arms or self.arms[arm.start].start is not None
            ):
                raise ValueError(
                    f"arms.{name}.start: '{arm.start}' is not an arm without a start: name another"
                    f"{nearest(arm.start, self.arms)}"
                )
            if bool(arm.sweep) != self.measure.of_curves:
                raise ValueError(
                    f"arms.{name}.sweep: measure.kind {self.measure.kind} is of "
                    f"{'curves' if self.measure.of_curves else 'single trainings'}: "
                    f"{'add' if self.measure.of_curves else 'leave out'} the sweep"
                )
            for figure in arm.paper:
                if figure not in self.figures:
                    raise ValueError(
                        f"arms.{name}.paper: there is no figure '{figure}'"
                        f"{nearest(figure, self.figures)}"
                    )
        for each in self.tuning:
            for name in (each.arm, *each.arms):
                if name not in self.arms:
                    raise ValueError(f"tuning: there is no arm '{name}'{nearest(name, self.arms)}")
        for number, comparison in enumerate(self.comparisons, 1):
            try:
                self.sides(comparison)
            except ValueError as error:
                raise ValueError(f"comparison {number}: {error}") from None
        return self


TABLES = Shelf("reproductions", "table", "infolm reproduce --list", "arms")


def names() -> list[str]:
    """The built-in tables, as paper/table."""
    return [name for name in TABLES.names() if is_table(name)]


def is_table(source: str) -> bool:
    """Whether `source` is a table; a sweep (`studies.reproduction`) is none."""
    return "arms" in TABLES.tree(source)


def load(source: str) -> Table:
    """The table `source`: a name from the list, or a YAML file."""
    tree = TABLES.tree(source)
    try:
        return Table.model_validate(tree)
    except ValidationError as error:
        raise InfolmError(f"{source}: {explain(error, tree)}") from None


def recipe_of(
    table: Table,
    scale: ScaleName,
    arm: str,
    seed: int,
    overrides: Sequence[str],
    tuned: Sequence[str] = (),
) -> Recipe:
    """What is trained for an arm; `start_from`, which is a folder, is left to the caller.

    tuned: what was chosen before, as key=value.
    """
    if scale not in table.scales:
        raise InfolmError(
            f"{table.title}: there are no settings for --scale {scale} (there are "
            f"{', '.join(table.scales)})"
        )
    setting, chosen = table.scales[scale], table.arms[arm]
    source = chosen.recipe.get(scale, setting.recipe)
    changes = shlex.split(setting.set) + shlex.split(chosen.at.get(scale, chosen.set))
    try:
        recipe = load_recipe(source, [*changes, *tuned, *overrides, f"seed={seed}"])
        table.measure.check(recipe)
    except InfolmError as error:
        raise InfolmError(f"{table.title}: arm {arm}: {error}") from None
    return recipe
