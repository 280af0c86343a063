"""`infolm tune`: a pool of workers trains a study's trials until it is finished."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

from infolm.config import Recipe
from infolm.data.corpora import load as load_corpus
from infolm.data.ingest import Report
from infolm.errors import InfolmError, RunError
from infolm.objectives.base import OBJECTIVES
from infolm.studies.pool import Pool, share_of_cores
from infolm.studies.tuning import results
from infolm.studies.tuning.study import (
    PER_MILLE,
    Study,
    StudyFolder,
    check_space,
    database_url,
    prepare_folder,
)
from infolm.studies.tuning.trials import Order, jobs

DEATHS = 8
"""Workers that may die one after another, with no trial of theirs finished, until we give up."""

Show = Callable[[float, str], None]
Say = Callable[[str], None]


def tune(
    recipe: Recipe,
    out: Path,
    trials: int,
    workers: int,
    seeds: int,
    storage: str | None,
    show: Show,
    say: Say,
    report: Report,
) -> dict[str, Any]:
    """Search the recipe's ranges with `trials` trainings; returns `results.summary`.

    `show` gets the share done and a text now and then, `say` a line for each trial. An existing
    study is resumed: finished trials stay, and a trial whose process died resumes from its
    checkpoint. KeyboardInterrupt passes when a person ends it; all is saved then.
    """
    if trials < 1:
        raise InfolmError(f"--trials is {trials}: a study needs at least one trial")
    if not recipe.objective.of_all_words:
        needs = recipe.objective.needs["model.capability"]
        others = [
            kind
            for kind, config in OBJECTIVES.items()
            if config.of_all_words and config.needs.get("model.capability") == needs
        ]
        raise InfolmError(
            "a study compares perplexities, and an encoder has one only if it predicts among all "
            f"words; objective.kind is {recipe.objective.kind}: choose {' or '.join(others)}"
        )
    check_space(recipe)
    folder = StudyFolder(out)
    database_url(folder, storage)  # refuses an address of no use
    text = load_corpus(recipe.data, report).source  # tokenised once, before the workers start
    prepare_folder(folder, recipe, text)
    study = Study(folder, recipe, text, storage)
    order = Order(str(out), text, storage, trials, seeds, uuid4().hex)
    with closing(study), study.answering():
        _train(study, order, workers, show, say)
        study.tidy()
        results.write_table(study)
        result = results.summary(study, seeds)
        results.write(study, result)
    return result


def _train(study: Study, order: Order, workers: int, show: Show, say: Say) -> None:
    if study.finished(order.trials, order.seeds):
        return
    progress = _Progress(study, order, show, say)
    with Pool(workers, share_of_cores(workers), attempts=DEATHS) as pool:
        for ended in pool.run(jobs(study, order), lambda pool: progress.look()):
            if ended.code is not None:
                raise RunError(
                    f"{DEATHS} workers died one after another (the last with code {ended.code}): "
                    "there may be too little memory for so many --workers; all that finished is "
                    "kept"
                )
            if ended.failure:
                raise RunError(ended.failure)


class _Progress:
    """Tells each trial that finished, and the share of all training that is done."""

    def __init__(self, study: Study, order: Order, show: Show, say: Say) -> None:
        self._study, self._order, self._show, self._say = study, order, show, say
        self._told: set[tuple[int, int | None]] = {
            (trial.number, None) for trial in study.trials() if trial.state.is_finished()
        }

    def look(self) -> None:
        """Once the study is finished, the last look tells the rest."""
        study = self._study
        best, trials = study.best(), study.trials()  # in this order: the best is then among them
        finished = [trial for trial in trials if trial.state.is_finished()]
        lines: dict[tuple[int, int | None], str]
        lines = {(trial.number, None): results.describe(study, trial) for trial in finished}
        again: dict[int, dict[str, Any]] = {}
        text = f"{len(finished)} of {max(len(trials), self._order.trials)} trials"
        if best is not None:
            lines[best.number, None] += ", the best so far"
            text += f"  best perplexity {results.perplexity(best.values[0]):.2f}"
            if len(finished) >= self._order.trials:
                again = study.retrained(best.number)
            for seed, outcome in again.items():
                lines[best.number, seed] = results.describe_again(best.number, seed, outcome)
        new = lines.keys() - self._told
        for key in sorted(new, key=lambda key: (key[1] or 0, key[0])):
            self._say(lines[key])
        self._told |= new
        if new:
            results.write_table(study)
        running = [trial for trial in trials if not trial.state.is_finished()]
        begun = sum((trial.last_step or 0) / PER_MILLE for trial in running)
        total = max(len(trials), self._order.trials) + self._order.seeds
        self._show(min((len(finished) + begun + len(again)) / total, 1.0), text)
