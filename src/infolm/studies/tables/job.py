"""A training of a table as a job of the pool: trained, then measured."""

import time
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from infolm.config import Recipe
from infolm.families.train import train
from infolm.studies.claims import FileClaims
from infolm.studies.tables.table import AnyMeasure
from infolm.studies.worker import Reporter

CALL = "infolm.studies.tables.job:train_and_measure"


def train_and_measure(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Train the recipe of each of `runs` in its folder, or resume it, and measure them by each of
    `measures`.

    Gives the figures of each, and the seconds of this process that both stages took.
    """
    measures = TypeAdapter(dict[str, AnyMeasure]).validate_python(arguments["measures"])
    folders = [Path(each["folder"]) for each in arguments["runs"]]
    claims = FileClaims(Path(arguments["claims"]))
    # A worker of a command that was killed may be at its last step there.
    with claims.held(arguments["name"].replace("/", "-")):
        began = time.process_time()
        for each, path in zip(arguments["runs"], folders, strict=True):
            recipe = Recipe.model_validate(each["recipe"])
            train(recipe, path, True, reporter, lambda stage, done, total: None)
        trained = time.process_time()
        found = {
            table: measure.measure(folders, lambda stage: reporter.progress(1.0, stage))
            for table, measure in measures.items()
        }
    seconds = {"training": trained - began, "measuring": time.process_time() - trained}
    return {
        "figures": found,
        "seconds": {stage: round(each, 1) for stage, each in seconds.items()},
    }
