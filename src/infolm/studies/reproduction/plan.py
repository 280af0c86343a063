"""The plan of a reproduction: curves of points, each a recipe to train, and figures.

A reproduction is a YAML file. A curve is a recipe with changes, and a sweep over the values of some
of its keys; a figure shows several curves. A training that several curves have in common is one
point.
"""

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from infolm.config import Recipe, explain, load_recipe
from infolm.data import uniform
from infolm.errors import InfolmError
from infolm.section import Section, nearest
from infolm.shelf import Shelf

Value = bool | int | float | str
Values = dict[str, Value]
Split = Literal["train", "valid", "test"]

ABOUT = ("title", "paper", "expected", "variants", "tuning")
ABOUT_TRAINING = ("checkpoint_seconds", "log_every", "accelerator")
"""Keys of a recipe, and of its `train`, that change no result."""


class Curve(Section):
    """Trainings that differ in the values of a few keys."""

    label: str = Field(description="in the legend; the curves of one label share a colour")
    recipe: str = Field(description="a name from `infolm recipes`, or a YAML file")
    set: str = Field("", description="changes to the recipe: key=value key=value")
    sweep: dict[str, list[Value]] = Field(
        default_factory=dict, description="key -> its values; every combination is a point"
    )

    def combinations(self) -> list[Values]:
        """What the swept keys are in each point."""
        return [
            dict(zip(self.sweep, values, strict=True)) for values in product(*self.sweep.values())
        ]


class Figure(Section):
    """Frontiers of some of the curves."""

    title: str = ""
    curves: list[str] = Field(min_length=1)
    split: Split = "train"


class Reproduction(Section):
    """A published sweep."""

    title: str = ""
    paper: str = ""
    claim: str = Field("", description="the claim of the sweep, in one sentence")
    hours: float | None = Field(None, gt=0, description="measured hours of one core for all of it")
    per: Literal["sentence", "token"] = Field("sentence", description="the unit of the figures")
    splits: list[Split] = Field(["train"], min_length=1, description="the splits to measure")
    samples: int = Field(100, ge=1, description="codes per sentence when measuring")
    sentences: int | None = Field(
        None, ge=2, description="maximum sentences of a split, drawn at random; none: all"
    )
    curves: dict[str, Curve]
    figures: dict[str, Figure]

    @model_validator(mode="after")
    def _figures_can_be_drawn(self) -> Self:
        for name in [*self.curves, *self.figures]:
            if not re.fullmatch(r"\w[\w.-]*", name):
                raise ValueError(
                    f"'{name}' must be part of a file's name: use letters, digits, - and ."
                )
        for number, figure in self.figures.items():
            for curve in figure.curves:
                if curve not in self.curves:
                    raise ValueError(
                        f"figure {number} shows '{curve}', and there is no such curve"
                        f"{nearest(curve, self.curves)}"
                    )
            if figure.split not in self.splits:
                raise ValueError(
                    f"figure {number} shows the {figure.split} split, which is not among splits: "
                    "add it there"
                )
        return self


@dataclass(frozen=True)
class Point:
    """One training. values: what its keys are in the sweep of each curve that it belongs to."""

    name: str
    recipe: Recipe
    values: dict[str, Values]

    @property
    def optimum(self) -> float | None:
        """The entropy of a line in nats, where it is known: no nll is lower, no information higher
        but by chance."""
        data = self.recipe.data
        if data.path is not None or data.corpus != uniform.NAME:
            return None
        return math.log((data.uniform or uniform.UniformConfig()).symbols)


@dataclass(frozen=True)
class Plan:
    """A reproduction with all its points. source, overrides: as a person gave them."""

    source: str
    overrides: list[str]
    reproduction: Reproduction
    points: dict[str, Point]

    def of_curve(self, curve: str) -> list[Point]:
        """By the order of the sweep."""
        return [point for point in self.points.values() if curve in point.values]


REPRODUCTIONS = Shelf("reproductions", "reproduction", "infolm reproduce", "curves")


def load(source: str) -> Reproduction:
    """The reproduction `source`: a name from the list, or a YAML file."""
    tree = REPRODUCTIONS.tree(source)
    try:
        return Reproduction.model_validate(tree)
    except ValidationError as error:
        raise InfolmError(f"{source}: {explain(error, tree)}") from None


def load_plan(source: str, overrides: Sequence[str] = ()) -> Plan:
    """The reproduction `source` with `key=value` changes to each of its recipes."""
    found = load(source)
    changed = {override.partition("=")[0] for override in overrides}
    points: dict[str, Point] = {}  # by identity
    for name, curve in found.curves.items():
        if both := changed & curve.sweep.keys():
            raise InfolmError(
                f"{min(both)} is what curve {name} sweeps over, and can have no other value: leave "
                "it out"
            )
        for values in curve.combinations():
            recipe = _recipe(source, name, curve, values, overrides)
            mark = identity(recipe)
            if mark not in points:
                points[mark] = Point(_point_name(name, values), recipe, {})
            points[mark].values[name] = values
    return Plan(source, list(overrides), found, {each.name: each for each in points.values()})


def identity(recipe: Recipe) -> str:
    """A SHA-256 that recipes have in common where they say the same."""
    tree = recipe.model_dump(mode="json", exclude=set(ABOUT))
    for key in ABOUT_TRAINING:
        del tree["train"][key]
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def _recipe(
    source: str, name: str, curve: Curve, values: Values, overrides: Sequence[str]
) -> Recipe:
    swept = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    try:
        recipe = load_recipe(curve.recipe, [*curve.set.split(), *swept, *overrides])
    except InfolmError as error:
        raise InfolmError(f"{source}: curve {name}: {error}") from None
    if recipe.feed.kind != "sentences":
        raise InfolmError(
            f"{source}: curve {name}: {curve.recipe} has no latent code to measure: choose a "
            "recipe "
            "whose model.kind is sentence or symbol"
        )
    return recipe


def _point_name(curve: str, values: Values) -> str:
    """dreg-16-kl, {objective.lambda: 0.5} -> dreg-16-kl-lambda-0.5."""
    parts = [f"{key.rpartition('.')[2]}-{value}" for key, value in values.items()]
    return "-".join([curve, *parts]).replace("/", "-")


def names() -> list[str]:
    """The built-in sweeps, as paper/experiment; tables have no curves."""
    return [name for name in REPRODUCTIONS.names() if "curves" in REPRODUCTIONS.tree(name)]
