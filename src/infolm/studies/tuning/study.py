"""A study: the trials of one recipe, in a database that all its workers share.

A study's folder:

study.yaml      the recipe with its ranges
study.db        the trials, unless they are in a PostgreSQL database
trials/NNN/     a trial's run: recipe and metrics; of the best one the model too
retrained/      the winner trained again, NNN-S with seed S
trials.jsonl    every trial on a line
best.yaml       the winner, as a recipe
result.json     the result
parallel.svg    parallel coordinates of the complete trials (and .png)
history.svg     their losses one after another, and the importance of each key (and .png)

Every choice of what to do next is made under the claim `study`, from what the database holds. So
workers need no leader: they may be killed, join late, or run on several machines.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import sqlalchemy
from optuna.trial import FrozenTrial, Trial, TrialState
from pydantic import ValidationError

from infolm import files
from infolm.config import Recipe, explain
from infolm.errors import InfolmError, RunError
from infolm.section import nearest
from infolm.shelf import parse_yaml
from infolm.space import Value, suggest, values
from infolm.studies.claims import TIMEOUT, Claims, DatabaseClaims, FileClaims, Release
from infolm.studies.tuning.history import importance
from infolm.training import checkpoint
from infolm.training.run import RunFolder
from infolm.trees import leaves

PRUNING_STARTUP = 5
"""Complete trials before any is pruned."""
PRUNING_WARM_UP = 1 / 3
"""The share of its training that every trial gets."""
TIMES = 3
"""A trial whose process dies so often at the same checkpoint, while the command that started the
process lives, is given up. Where the command was killed too, it may have nothing to do with it."""
PER_MILLE = 1000
"""Optuna counts in whole steps; ours are thousandths of the training."""

FREE = ("title", "paper", "expected", "variants")
FREE_OF_TRAIN = ("checkpoint_seconds", "log_every", "accelerator")
"""Keys without effect on the result, which may change when a study is resumed."""


@dataclass(frozen=True)
class Task:
    """Something to train: a trial, or its recipe again with another seed."""

    number: int
    seed: int | None
    release: Release


class StudyFolder:
    """The names of a study's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "study.yaml"
        self.database = path / "study.db"
        self.claims = path / ".claims"
        self.table = path / "trials.jsonl"
        self.best = path / "best.yaml"
        self.result = path / "result.json"
        self.picture = path / "parallel.svg"
        self.history = path / "history.svg"

    def trial(self, number: int) -> RunFolder:
        return RunFolder(self.path / "trials" / f"{number:03d}")

    def retrained(self, number: int, seed: int) -> RunFolder:
        return RunFolder(self.path / "retrained" / f"{number:03d}-{seed}")


def with_values(recipe: Recipe, new: Mapping[str, Value]) -> Recipe:
    """`recipe` with other values of some keys, and nothing left to tune."""
    tree = recipe.model_dump(mode="json", exclude={"tuning", "expected"})
    for key, value in new.items():
        *parents, last = key.split(".")
        node = tree
        for parent in parents:
            node = node[parent]
        node[last] = value
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise InfolmError(explain(error, tree)) from None


def check_space(recipe: Recipe) -> None:
    """Refuse a recipe without ranges, ranges of keys it has not, and ends it would not accept."""
    if not recipe.tuning:
        raise InfolmError(
            "the recipe has no ranges to search: add a section 'tuning', as in "
            "tuning: {optimiser.learning_rate: {low: 0.001, high: 0.004, log: true}}"
        )
    known = leaves(recipe.model_dump(mode="json", exclude={"tuning"}))
    for key, section in recipe.tuning.items():
        if key not in known:
            raise InfolmError(f"tuning: the recipe has no key '{key}'{nearest(key, known)}")
        for end in section.ends():
            try:
                with_values(recipe, {key: end})
            except InfolmError as error:
                if key in str(error):  # else the fault is in how it goes with the other keys
                    raise InfolmError(f"tuning: {error}") from None


def identity(recipe: Recipe, text: str) -> dict[str, Any]:
    """What makes trials comparable: the recipe's keys, and the SHA-256 of the text."""
    tree = recipe.model_dump(mode="json", exclude=set(FREE))
    for key in FREE_OF_TRAIN:
        del tree["train"][key]
    return {"text": text, **tree}


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    """Refuse to resume a study of another recipe."""
    old, new = leaves(_completed(before)), leaves(now)
    for key in {**old, **new}:
        if old.get(key) != new.get(key):
            raise InfolmError(
                f"{where} holds a study of another recipe ({key} was {old.get(key)} and is now "
                f"{new.get(key)}): resume with that recipe, or name another folder with --out"
            )


def _completed(before: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the defaults of keys that recipes have had only since the study was begun."""
    tree = {key: value for key, value in before.items() if key != "text"}
    try:
        return identity(Recipe.model_validate(tree), before["text"])
    except (ValidationError, KeyError):
        return before


def database_url(folder: StudyFolder, storage: str | None) -> str:
    """The address of the study's database in SQLAlchemy's spelling."""
    if storage is None:
        return f"sqlite:///{folder.database.resolve()}"
    try:
        url = sqlalchemy.make_url(storage)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        url = None
    if url is None or url.drivername != "postgresql":
        raise InfolmError(
            "--storage is an address such as postgresql://user@host/database; leave it out to "
            "keep the study in a file of its folder"
        )
    psycopg = url.set(drivername="postgresql+psycopg")
    return psycopg.render_as_string(hide_password=False)


def without_password(storage: str) -> str:
    return sqlalchemy.make_url(storage).render_as_string(hide_password=True)


@contextmanager
def _answering(where: str) -> Iterator[None]:
    """Report errors of the database in one sentence."""
    try:
        yield
    except ImportError:
        raise InfolmError(
            "--storage postgresql://... needs another package: pip install 'infolm[postgresql]'"
        ) from None
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        said = str(cause).strip().splitlines()
        raise RunError(
            f"the database {where} does not answer ({said[0] if said else type(cause).__name__}): "
            "finished trials are saved; fix the database and run the same command again"
        ) from error


class Study:
    """Opens the study in `folder`, or makes it.

    The sampler is the tree-structured Parzen estimator over all keys together; trials that run
    count as bad ones, so that workers do not crowd in one place. It is seeded for each trial by
    the recipe's seed and the trial's number: with one worker, a study that is killed and resumed
    draws the same values as an uninterrupted one.

    The pruner ends a trial whose best loss is worse than the median of the others' at the same
    share of training, after a third of it. Hyperband would decide from a ninth or less, and there
    it would choose those that learn fast, which are those with too little dropout; and averages
    of the iterates, which lower the loss late, would have no say.

    command: a name of its own of the command that this process works for; see `TIMES`.
    """

    def __init__(
        self,
        folder: StudyFolder,
        recipe: Recipe,
        text: str,
        storage: str | None,
        command: str = "",
    ) -> None:
        self.folder, self.recipe, self.space = folder, recipe, recipe.tuning
        self.command = command
        name = folder.path.resolve().name
        url = database_url(folder, storage)
        self._where = f"{without_password(storage)} ({name})" if storage else str(folder.database)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with self.answering():
            self.claims: Claims
            self.claims = DatabaseClaims(url, name) if storage else FileClaims(folder.claims)
            with self.claims.held("study"):
                self._open(url, name)
                try:
                    self._identify(identity(recipe, text))
                except InfolmError:
                    self.close()
                    raise

    def _open(self, url: str, name: str) -> None:
        # A database that is busy with other workers is waited for.
        patience = {"timeout": 60} if url.startswith("sqlite") else {"connect_timeout": TIMEOUT}
        self._storage = optuna.storages.RDBStorage(
            url, engine_kwargs={"connect_args": patience, "pool_pre_ping": True}
        )
        self._study = optuna.create_study(
            storage=self._storage,
            study_name=name,
            direction="minimize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(PRUNING_STARTUP, round(PRUNING_WARM_UP * PER_MILLE)),
        )

    def _identify(self, now: dict[str, Any]) -> None:
        before = self._study.user_attrs.get("identity")
        if before is None:
            self._study.set_user_attr("identity", now)
        else:
            check_same(before, now, self._where)

    def close(self) -> None:
        """Give back the connections to the database."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def answering(self) -> AbstractContextManager[None]:
        """Inside, a database that fails is told in one sentence."""
        return _answering(self._where)

    # -- trials -----------------------------------------------------------------------------

    def trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def best(self) -> FrozenTrial | None:
        """The complete trial with the least loss."""
        complete = [t for t in self.trials() if t.state == TrialState.COMPLETE]
        return min(complete, key=lambda trial: trial.values[0], default=None)

    def importance(self) -> dict[str, float]:
        """What each key decides, as `history.importance` has it."""
        return importance(self._study)

    def values(self, trial: FrozenTrial) -> dict[str, Value]:
        """A trial's own values of the recipe's keys."""
        return values(self.space, trial.params)

    def retrained(self, number: int) -> dict[int, dict[str, Any]]:
        """Of the trial's recipe trained again: seed -> {'loss'} or {'failure'}."""
        prefix = f"retrained {number} "
        return {
            int(key.removeprefix(prefix)): found
            for key, found in self._study.user_attrs.items()
            if key.startswith(prefix)
        }

    def seeds(self, count: int) -> range:
        """The seeds the winner is trained again with: not the one it was chosen for."""
        return range(self.recipe.seed + 1, self.recipe.seed + 1 + count)

    # -- the next trial ---------------------------------------------------------------------

    def claim(self, trials: int, seeds: int) -> Task | None:
        """The next unclaimed training, if any: a trial whose process died, a new one, and at the
        end the winner again."""
        with self.claims.held("study"):
            existing = self.trials()
            for trial in existing:
                if not trial.state.is_finished() and (
                    release := self.claims.take(f"trial-{trial.number}")
                ):
                    return Task(trial.number, None, release)
            if len(existing) < trials:
                release = self.claims.take(f"trial-{len(existing)}")
                assert release is not None  # it had no number until now
                self._seed_sampler(len(existing))
                suggest(self.space, self._study.ask())
                return Task(len(existing), None, release)
            winner = self.best()
            if winner is None or not all(trial.state.is_finished() for trial in existing):
                return None
            for seed in self.seeds(seeds):
                if seed not in self.retrained(winner.number) and (
                    release := self.claims.take(f"retrained-{winner.number}-{seed}")
                ):
                    return Task(winner.number, seed, release)
        return None

    def finished(self, trials: int, seeds: int) -> bool:
        existing = self.trials()
        if len(existing) < trials or not all(trial.state.is_finished() for trial in existing):
            return False
        winner = self.best()
        return winner is None or set(self.seeds(seeds)) <= set(self.retrained(winner.number))

    def _seed_sampler(self, number: int) -> None:
        stream = np.random.SeedSequence(self.recipe.seed, spawn_key=(number,))
        seed = int(stream.generate_state(1)[0])
        self._study.sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, constant_liar=True
        )

    def begin(self, number: int) -> Trial:
        """The trial in Optuna's hands, to report to. Its process may have died anywhere before."""
        self._seed_sampler(number)
        trial = self._attach(number)
        suggest(self.space, trial)
        saved = checkpoint.checkpoints(self.folder.trial(number).checkpoints)
        point = saved[-1].name if saved else "the start"
        starts = [*trial.user_attrs.get("starts", []), [self.command, point]]
        trial.set_user_attr("starts", starts)
        if len(starts) > TIMES and all(each == starts[-1] for each in starts[-TIMES - 1 :]):
            raise RunError(
                f"its process died {TIMES} times after {point}, perhaps for lack of memory"
            )
        return trial

    def end(self, number: int, outcome: float | None, failure: str = "") -> None:
        """Record a trial's loss; none: it was pruned, or it failed as `failure` says."""
        state = TrialState.COMPLETE if outcome is not None else TrialState.PRUNED
        with self.claims.held("study"):
            # Cut from the database for a while, we may have lost the claim: another worker then
            # trained the trial too, and its result stands.
            if self.trials()[number].state.is_finished():
                self._sweep()
                return
            if failure:
                state = TrialState.FAIL
                self._attach(number).set_user_attr("failure", failure)
            self._study.tell(number, outcome, state)
            self._sweep()

    def _attach(self, number: int) -> Trial:
        return Trial(self._study, self.trials()[number]._trial_id)

    def end_retrained(self, number: int, seed: int, outcome: dict[str, Any]) -> None:
        self._study.set_user_attr(f"retrained {number} {seed}", outcome)
        self.folder.retrained(number, seed).drop_state()

    def tidy(self) -> None:
        """Remove what a process that was killed, or a bad disk, left of finished trainings."""
        with self.claims.held("study"):
            self._sweep()

    def _sweep(self) -> None:
        """Of finished trials keep recipe and metrics, of the best one the model too."""
        best = self.best()
        for trial in self.trials():
            run = self.folder.trial(trial.number)
            if not trial.state.is_finished():
                continue
            files.sweep(run.path.parent, run.path.name)
            run.drop_state()
            if best is None or trial.number != best.number:
                for file in (run.model, run.tokenizer, run.corpus):
                    file.unlink(missing_ok=True)
        if best is not None:
            for seed in self.retrained(best.number):
                self.folder.retrained(best.number, seed).drop_state()


def prepare_folder(folder: StudyFolder, recipe: Recipe, text: str) -> None:
    """Make the study's folder, or refuse one that holds something else."""
    path = folder.path
    if folder.recipe.is_file():
        before = Recipe.model_validate(
            parse_yaml(folder.recipe.read_text(encoding="utf-8"), str(folder.recipe))
        )
        check_same(identity(before, text), identity(recipe, text), str(path))
    elif path.exists() and (
        not path.is_dir() or any(not entry.name.startswith(".") for entry in path.iterdir())
    ):
        raise InfolmError(f"{path} is not a study's folder: name another with --out")
    files.make_folder(path)
    files.refuse_links(path)
    as_yaml = recipe.as_yaml()
    checkpoint.atomically(
        folder.recipe, lambda temporary: temporary.write_text(as_yaml, encoding="utf-8")
    )
