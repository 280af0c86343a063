"""Repair a damaged run's folder, as far as its intact files allow.

Each file is restored from the others: the recipe from the manifest, the vocabulary and
`corpus.json` from the text, the weights and the parameters of regularisers from a checkpoint. The
manifest shows whether the restored file equals the lost one. Damaged files are moved to the folder
`damaged`, never deleted.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from infolm import files
from infolm.config import Recipe, load_recipe
from infolm.data.corpora import load as load_corpus
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation import measurement
from infolm.families.base import family_of
from infolm.families.recorded import about, recipe_of
from infolm.training import checkpoint
from infolm.training.manifest import NAME, Manifest, sha256
from infolm.training.run import RunFolder, put_damaged_lines_aside
from infolm.trees import mapping

Writer = Callable[[Path], object]


@dataclass
class Repaired:
    """done: how each damaged file was repaired. lost: why a file could not be repaired."""

    done: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


def repair(path: Path) -> Repaired:
    """Repair the run in a folder. Intact files are not changed."""
    run = RunFolder(path)
    if not path.is_dir() or not (run.recipe.exists() or (path / NAME).exists()):
        raise InfolmError(f"{path} is not a run's folder: it has neither recipe.yaml nor {NAME}")
    files.refuse_links(path)
    with run.locked():
        for folder in (run.path, run.checkpoints):
            _refuse_unreadable(folder)
        return _Repair(run).all()


def _refuse_unreadable(folder: Path) -> None:
    """A file that this account may not read is not damaged."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            if path.is_file():
                path.open("rb").close()
        except PermissionError:
            raise InfolmError(
                f"{path} may not be read by this account: change its rights, then repair the run"
            ) from None


class _Repair:
    def __init__(self, run: RunFolder) -> None:
        self.run, self.result = run, Repaired()
        self.recipe: Recipe | None = None

    def all(self) -> Repaired:
        for folder in (self.run.path, self.run.checkpoints):
            files.sweep(folder)
        self._manifest()
        self._recipe()
        self._checkpoints()
        if self.recipe:
            self._vocabulary(self.recipe)
            self._corpus(self.recipe)
            if self.run.tokenizer.name not in self.result.lost:
                self._model(self.recipe)
                self._learners()
        self._notes()
        self._vouch()
        return self.result

    # -- the manifest and the recipe -----------------------------------------------------------

    def _manifest(self) -> None:
        try:
            self.known = Manifest.read(self.run.path) or Manifest()
        except InfolmError:
            self._aside(self.run.path / NAME)
            self.known = Manifest()
            self.result.done[NAME] = (
                "rewritten from the files, so it no longer proves that they are the original ones"
            )

    def _expected(self, path: Path) -> list[str]:
        return self.known.files.get(path.name, [])

    def _sound(self, path: Path, read: Callable[[Path], object]) -> bool:
        """Whether a file can be read and matches the manifest, if the manifest lists it."""
        if not path.exists():
            return False
        try:
            read(path)
        except InfolmError:
            return False
        return not self._expected(path) or sha256(path) in self._expected(path)

    def _recipe(self) -> None:
        run = self.run
        try:
            self.recipe = recipe_of(run) if run.recipe.exists() else None
        except InfolmError as error:
            if not self.known.recipe:
                self.result.lost[run.recipe.name] = f"{error}; no manifest has it"
                return
        if self.recipe is None and self.known.recipe:
            text = self.known.recipe
            self._aside(run.recipe)
            checkpoint.atomically(run.recipe, lambda to: to.write_text(text, encoding="utf-8"))
            self.recipe = load_recipe(str(run.recipe))
            self.result.done[run.recipe.name] = "restored from the manifest"
        elif self.recipe is None:
            self.result.lost[run.recipe.name] = "it is missing, and no manifest has it"

    # -- the text ------------------------------------------------------------------------------

    def _vocabulary(self, recipe: Recipe) -> None:
        path = self.run.tokenizer
        if self._sound(path, Tokenizer.load):
            return
        try:
            made = load_corpus(recipe.data, tokenizer=family_of(recipe).vocabulary(recipe))
        except InfolmError as error:
            self.result.lost[path.name] = f"it is made from the text, and {error}"
            return
        known = bool(self._expected(path)) or self._source() == made.source
        self._restore(path, made.tokenizer.save, "made from the text again", known)

    def _source(self) -> str | None:
        """The SHA-256 of the text in `corpus.json`, if that can be read."""
        try:
            return str(json.loads(self.run.corpus.read_bytes())["sha256"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None

    def _corpus(self, recipe: Recipe) -> None:
        path = self.run.corpus
        right = self._expected(path)
        if self._source() and (not right or sha256(path) in right):
            return
        try:
            corpus = load_corpus(recipe.data, tokenizer=Tokenizer.load(self.run.tokenizer))
        except InfolmError as error:
            self.result.lost[path.name] = f"it is made from the text, and {error}"
            return
        text = about(corpus)
        self._restore(
            path,
            lambda to: to.write_text(text, encoding="utf-8"),
            "made from the text again",
            bool(right),
        )

    def _restore(self, path: Path, write: Writer, how: str, known: bool) -> None:
        """Restore a file if it comes out as it was; known: whether that can be checked."""
        right = self._expected(path)
        with files.scratch_file(self.run.path, path.name) as trial:
            write(trial)
            same = known and (not right or sha256(trial) in right)
        if not same:
            self.result.lost[path.name] = (
                "the text has changed and gives another file: restore the original text or the "
                "file itself"
                if known
                else (
                    "there is no record of whether the text is still the same: restore the file "
                    "from a copy"
                )
            )
            return
        self._aside(path)
        checkpoint.atomically(path, write)
        self.result.done[path.name] = how

    # -- the weights ---------------------------------------------------------------------------

    def _checkpoints(self) -> None:
        folder = self.run.checkpoints
        for path in [*checkpoint.checkpoints(folder), self.run.best]:
            if not path.exists():
                continue
            try:
                checkpoint.load(path)
            except InfolmError:
                self._aside(path)
                self.result.done[f"{folder.name}/{path.name}"] = "put aside"
        intact = checkpoint.checkpoints(folder)
        for name in self.result.done:
            if name.startswith(f"{folder.name}/step-"):
                last = intact[-1].name if intact else ""
                left = f"training resumes from {last}" if last else "training can only start again"
                self.result.done[name] = f"put aside; {left}"

    def _sources(self) -> list[Path]:
        """The intact checkpoints: the one of the best validation first, then the newest."""
        best = [self.run.best] if self.run.best.exists() else []
        return best + checkpoint.checkpoints(self.run.checkpoints)[::-1]

    def _answers(self, recipe: Recipe) -> Iterator[tuple[Path, bool, Writer]]:
        """The weights in checkpoints: which ones, whether they are the best ones, and a writer."""
        tokenizer = Tokenizer.load(self.run.tokenizer)
        model = recipe.model.build(len(tokenizer), tokenizer)
        averager = recipe.averaging.build(model)
        for path in self._sources():
            state = checkpoint.load(path)
            checkpoint.restore_weights(path, model, checkpoint.part(path, state, "model"))
            averager.load_state_dict(checkpoint.part(path, state, "averager"))
            candidates = averager.candidates()
            answer = averager.answer(dict.fromkeys(candidates, 0.0))
            for candidate in dict.fromkeys((answer, *candidates, "raw")):
                with averager.swapped_in(candidate):
                    weights = {k: w.clone() for k, w in model.state_dict().items()}
                yield path, candidate == answer, checkpoint.writer(weights)

    def _model(self, recipe: Recipe) -> None:
        path = self.run.model
        if self._sound(path, checkpoint.load):
            return
        if not path.exists() and not self._expected(path):
            return  # the run has not been validated yet
        chosen: tuple[Path, Writer] | None = None
        for source, answer, write in self._answers(recipe):
            with files.scratch_file(self.run.path, path.name) as trial:
                write(trial)
                exact = sha256(trial) in self._expected(path)
            if exact:
                chosen = source, write
                break
            if answer and chosen is None:
                chosen = source, write
        else:
            exact = False
        if chosen is None:
            self.result.lost[path.name] = (
                "there is no intact checkpoint to take the weights from: restore it from a copy, "
                f"or train again from {self.run.recipe} in another folder"
            )
            return
        source, write = chosen
        self._aside(path)
        self.run.keep(path, write)
        which = f"checkpoints/{source.name}"
        self.result.done[path.name] = (
            f"restored from {which}, identical to the lost file"
            if exact
            else f"taken from {which}: the weights of that step, not of the best validation; "
            f"`infolm train {self.run.path} --resume` with more epochs may find better "
            "ones, and earlier measurements belong to the lost weights"
        )

    def _learners(self) -> None:
        """The parameters of regularisers, saved beside the best weights."""
        not_learnt = {self.run.model.name, self.run.gradients.name}
        there = {path.name for path in self.run.path.glob("*.safetensors")}
        listed = {name for name in self.known.files if name.endswith(".safetensors")}
        for name in sorted((there | listed) - not_learnt):
            path = self.run.path / name
            if not self.run.model.exists() or self._fits(path):
                continue
            self._learner(path)

    def _fits(self, path: Path) -> bool:
        if not self._sound(path, checkpoint.load):
            return False
        return checkpoint.load(path).get("model") == checkpoint.mark(self.run.model)

    def _learner(self, path: Path) -> None:
        mark = checkpoint.mark(self.run.model)
        for source in self._sources():
            learnt = checkpoint.load(source).get("learners", {}).get(path.stem)
            if learnt is None:
                continue
            self._aside(path)
            self.run.keep(path, checkpoint.writer({**learnt, "model": mark}))
            self.result.done[path.name] = f"taken from checkpoints/{source.name}"
            return
        self.result.lost[path.name] = "there is no intact checkpoint to take it from"

    # -- metrics and measurements ----------------------------------------------------------------

    def _notes(self) -> None:
        run = self.run
        if put_damaged_lines_aside(run):
            self.result.done[run.metrics.name] = f"damaged lines are in {run.damaged_metrics.name}"
        if run.gradients.exists() and not self._sound(run.gradients, checkpoint.load):
            self._aside(run.gradients)
            self.result.done[run.gradients.name] = (
                "moved to damaged; it is collected again when needed"
            )
        for path in sorted(run.path.glob("*.json")):
            if path in (run.tokenizer, run.corpus, run.path / NAME):
                continue
            try:
                if path == run.measurements:
                    measurement.read(path)
                elif mapping(json.loads(path.read_bytes())) is None:
                    raise ValueError
            except (InfolmError, ValueError, RecursionError):
                self._aside(path)
                again = "measured" if path == run.measurements else "tuned"
                self.result.done[path.name] = f"put aside; it is {again} again when asked for"

    def _vouch(self) -> None:
        """Write the manifest of the intact files."""
        manifest = Manifest.read(self.run.path) or Manifest(native=self.known.native)
        sound = [path for path in self.run.defining if path.name not in self.result.lost]
        lost = {name: known for name, known in self.known.files.items() if name in self.result.lost}
        manifest.files = {path.name: [sha256(path)] for path in sound} | lost
        if self.recipe and self.run.recipe.name not in self.result.lost:
            manifest.recipe = self.run.recipe.read_text(encoding="utf-8")
        if self.recipe and manifest != self.known:
            manifest.write(self.run.path)

    def _aside(self, path: Path) -> None:
        """Move a damaged file, if it exists, to `damaged`, under a new name."""
        if not path.exists():
            return
        folder = self.run.path / "damaged"
        files.make_folder(folder)
        for number in range(1, 1_000_000):
            target = folder / (path.name if number == 1 else f"{path.name}.{number}")
            if not target.exists():
                os.replace(path, target)
                return
