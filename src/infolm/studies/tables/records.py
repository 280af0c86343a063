"""The measurements of a table: one JSON file, from which pages, pictures and the ledger are made.

PAPER/TABLE.json
    table, scale, overrides, title, paper, claim, measure
    arms: by name: recipe, every value resolved; seeds: by number: the figures, or a failure
    tuning: the trainings that chose a value, likewise
    comparisons: each claim with its verdict

The file is self-contained: its page does not depend on the runs.
"""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infolm import files
from infolm.config import Recipe
from infolm.errors import InfolmError
from infolm.section import OF_A_RUN
from infolm.studies.reproduction.plan import identity
from infolm.studies.tables.sides import common_seeds
from infolm.studies.tables.table import (
    SMALL,
    TUNING_SEED,
    ScaleName,
    Table,
    Value,
    recipe_of,
)
from infolm.studies.tables.verdict import Verdict, judge
from infolm.training import checkpoint

LOSS = "loss"
"""The figure of a training that chooses a value."""
Figures = dict[str, dict[int, dict[str, float]]]
"""By arm, seed and name."""


class _Part(BaseModel):
    """What is read of the file; each value must have its type."""

    model_config = ConfigDict(strict=True)


class _OfSeed(_Part):
    figures: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = {}
    failure: str = ""


class _OfArm(_Part):
    recipe: dict[str, Any]
    seeds: dict[Annotated[str, Field(pattern=r"^[0-9]{1,18}$")], _OfSeed]
    sweep: dict[str, list[Any]] = {}


class _Whole(_Part):
    overrides: list[str]
    measure: dict[str, Any]
    arms: dict[str, _OfArm]
    tuning: dict[str, _OfArm] = {}


@dataclass(frozen=True)
class Work:
    """A table at one scale. source: its name from the list, or a YAML file."""

    source: str
    table: Table
    scale: ScaleName
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """paper/table, or paper/table-paper at the paper's scale."""
        short = self.source.removesuffix(".yaml").removesuffix(".yml").lstrip("./")
        return short if self.scale == SMALL else f"{short}-{self.scale}"


class Records:
    """The file of one table, read and written."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.work = work
        self.path = folder / f"{work.name}.json"
        self.arms: dict[str, dict[str, Any]] = {}
        self._recipes: dict[tuple[str, int, tuple[str, ...]], Recipe] = {}
        self._marks: dict[str, str] = {}
        self._before: set[tuple[str, str]] = set()
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        try:
            tree = json.loads(self.path.read_bytes())
            _Whole.model_validate(tree)
        except ValidationError as error:
            raise self._damaged(".".join(map(str, error.errors()[0]["loc"])) or "its top") from None
        except (ValueError, RecursionError) as error:
            raise self._damaged(str(error)) from None
        if tree["overrides"] != list(self.work.overrides):
            raise InfolmError(
                f"{self.path} was started with {' '.join(tree['overrides']) or 'no KEY=VALUE'}, "
                f"and now has {' '.join(self.work.overrides) or 'none'}: name another folder "
                "with --out"
            )
        self._before = _measured({**tree.get("tuning", {}), **tree["arms"]})
        # By another measure, the runs are to be measured again.
        arms = tree["arms"] if tree["measure"] == self._how else {}
        self.arms = {**tree.get("tuning", {}), **arms}

    def _damaged(self, why: str) -> InfolmError:
        return InfolmError(
            f"{self.path} is damaged ({why}): put a copy of it back, or move it away, and all "
            "trainings are measured again"
        )

    def keep(self, arm: str, recipe: Recipe, seed: int, result: Mapping[str, Any]) -> None:
        """Add what is known of a training, or of a curve of them: `figures`, or a `failure`.

        recipe: the training's, or that of the first on the curve.
        """
        wrong = [k for k, v in result.get("figures", {}).items() if not math.isfinite(v)]
        if wrong:
            result = {"failure": f"{', '.join(wrong)}: not a finite number"}
        if self._outdated(arm, recipe):
            self.arms[arm] = {"recipe": described(recipe), "seeds": {}}
            if sweep := self._sweep(arm):
                self.arms[arm]["sweep"] = sweep
            self._marks[arm] = mark(recipe)
        self.arms[arm]["seeds"][str(seed)] = dict(result)

    def done(self, arm: str, recipe: Recipe, seed: int) -> bool:
        """Whether this very training was measured as the table has it now."""
        if self._outdated(arm, recipe):
            return False
        return "figures" in self.arms[arm]["seeds"].get(str(seed), {})

    def _outdated(self, arm: str, recipe: Recipe) -> bool:
        """Whether nothing is known of the arm, or of another recipe than it has now. Keys that are
        newer than the record have the value that it was trained with. A recipe that this version
        cannot read is another one."""
        if arm not in self.arms or self.arms[arm].get("sweep", {}) != self._sweep(arm):
            return True
        if arm not in self._marks:
            try:
                before = Recipe.model_validate(self.arms[arm]["recipe"], context=OF_A_RUN)
            except (ValidationError, InfolmError):
                return True
            self._marks[arm] = mark(before)
        return self._marks[arm] != mark(recipe)

    def _sweep(self, arm: str) -> dict[str, list[Value]]:
        found = self.work.table.arms.get(arm)
        return found.sweep if found else {}

    # -- tuning before the arms are trained -------------------------------------------------

    def candidates(self, number: int) -> dict[str, Recipe] | None:
        """Of the table's tuning of this number, the trainings by name; None: one before it is not
        decided yet."""
        tuning = self.work.table.tuning[number]
        before = self.tuned(tuning.arm, number)
        if before is None:
            return None
        return {
            f"{tuning.arm}, {change}": self._recipe(
                tuning.arm, TUNING_SEED, [*before, *change.split()]
            )
            for change in map(tuning.change, tuning.values)
        }

    def losses(self, number: int) -> dict[str, float | None] | None:
        """The validation loss of each candidate, None of one that failed; None: some are not
        trained yet."""
        found: dict[str, float | None] = {}
        candidates = self.candidates(number)
        for name, recipe in (candidates or {}).items():
            result = {} if self._outdated(name, recipe) else self.arms[name]["seeds"]
            result = result.get(str(TUNING_SEED), {})
            if not result:
                return None
            found[name] = result["figures"].get(LOSS) if "figures" in result else None
        return found or None

    def chosen(self, number: int) -> str | None:
        """The changes, key=value, that the tuning of this number has decided for."""
        losses = self.losses(number)
        known = {name: loss for name, loss in (losses or {}).items() if loss is not None}
        return min(known, key=lambda name: known[name]).split(", ", 1)[1] if known else None

    def tuned(self, arm: str, until: int | None = None) -> list[str] | None:
        """What was chosen for an arm, by the tunings before number `until`, or by all; None: that
        is not known yet."""
        if self.work.scale != SMALL:
            return []
        found = []
        for number, tuning in enumerate(self.work.table.tuning[:until]):
            if tuning.applies(arm):
                if (change := self.chosen(number)) is None:
                    return None
                found += change.split()
        return found

    def recipes(self, arm: str, seed: int) -> list[Recipe]:
        """What is trained for an arm: one recipe, or all of a curve; none: a value is still to be
        chosen."""
        tuned = self.tuned(arm)
        if tuned is None:
            return []
        points = self.work.table.arms[arm].points()
        return [self._recipe(arm, seed, [*tuned, *point]) for point in points]

    def _recipe(self, arm: str, seed: int, tuned: list[str]) -> Recipe:
        """Needed often, and so cached."""
        key, work = (arm, seed, tuple(tuned)), self.work
        if key not in self._recipes:
            made = recipe_of(work.table, work.scale, arm, seed, work.overrides, tuned)
            self._recipes[key] = made
        return self._recipes[key]

    @property
    def _how(self) -> dict[str, Any]:
        return self.work.table.measure.model_dump(mode="json")

    @property
    def figures(self) -> Figures:
        """Of the arms that the table has."""
        return {
            arm: {
                int(seed): found["figures"]
                for seed, found in self.arms[arm]["seeds"].items()
                if "figures" in found
            }
            for arm in self.work.table.arms
            if arm in self.arms
        }

    @property
    def failures(self) -> dict[str, str]:
        return {
            f"{arm}, seed {seed}": found["failure"]
            for arm, each in self.arms.items()
            for seed, found in each["seeds"].items()
            if "failure" in found
        }

    def verdicts(self) -> list[Verdict]:
        """Of the table's comparisons, in their order."""
        found, figures = [], self.figures
        for comparison in self.work.table.comparisons:
            pair = self.work.table.sides(comparison)
            seeds = common_seeds(pair, figures)
            lower, higher = ([side.value(figures, seed) for seed in seeds] for side in pair)
            found.append(judge(lower, higher, comparison.by, comparison.within))
        return found

    def to_json(self) -> dict[str, Any]:
        table = self.work.table
        return {
            "table": self.work.source,
            "scale": self.work.scale,
            "overrides": list(self.work.overrides),
            "title": table.title,
            "paper": table.paper,
            "claim": table.claim,
            "measure": self._how,
            "comparisons": [
                {**comparison.model_dump(mode="json"), **verdict.to_json()}
                for comparison, verdict in zip(table.comparisons, self.verdicts(), strict=True)
            ],
            "tuning": {name: each for name, each in self.arms.items() if name not in table.arms},
            "arms": {name: self.arms[name] for name in table.arms if name in self.arms},
        }

    def write(self) -> Path | None:
        """Replace the file. If it had measurements that are no longer among these, by another
        recipe or measure, it is kept under another name, which is returned."""
        files.make_folder(self.path.parent)
        tree = self.to_json()
        measured = _measured({**tree["tuning"], **tree["arms"]})
        former = None
        if self._before - measured:
            former = self._put_aside()
            self._before = set()  # all of them are there now
        text = json.dumps(tree, indent=1) + "\n"
        checkpoint.atomically(self.path, lambda path: path.write_text(text))
        return former

    def _put_aside(self) -> Path:
        names = (self.path.with_suffix(f".former-{number}.json") for number in count(1))
        former = next(name for name in names if not name.exists())
        checkpoint.atomically(former, lambda path: shutil.copyfile(self.path, path))
        return former


def _measured(arms: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The arms and seeds that have figures."""
    return {
        (arm, seed)
        for arm, each in arms.items()
        for seed, found in each["seeds"].items()
        if "figures" in found
    }


def described(recipe: Recipe) -> dict[str, Any]:
    """What an arm's trainings have in common, as JSON."""
    away = {"title", "paper", "expected", "variants", "tuning", "seed"}
    tree = recipe.model_dump(mode="json", exclude=away)
    return {**tree, "start_from": None}


def mark(recipe: Recipe) -> str:
    """The same for recipes that differ in seed, titles and the folder that they start from."""
    return identity(recipe.model_copy(update={"seed": 1, "start_from": None}))
