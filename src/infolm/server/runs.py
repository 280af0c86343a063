"""The runs in a folder, live: the progress and curves of each.

Only files of runs that were found in the folder are read, under names that are known here: a
request gives the name of a run, which is looked up and never opened. Of a `metrics.jsonl` what is
new is read, and lines that are damaged or not yet whole are left.
"""

import math
import os
import stat
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infolm.config import Recipe, load_recipe
from infolm.errors import InfolmError
from infolm.families.base import family_of
from infolm.metrics import described
from infolm.training.run import RunFolder, record_of
from infolm.trees import fits

DEEPEST = 4
"""Folders between the one that is watched and a run: a study keeps its runs in folders."""
MOST_RUNS, MOST_FOLDERS = 1000, 20_000
FRESH = 1.0
"""Seconds for which what was found holds."""
PIECE = 2**22
"""Bytes of one file that are read at a time; the rest when it is asked for the next time."""
LONGEST_LINE = 2**16
MOST_POINTS = 2000
"""Of a curve: beyond them neighbours are put together, two by two."""
MOST_CURVES, MOST_EVENTS = 64, 1000
LARGEST = 1e15
"""What is beyond is no number of a training, but of a damaged line."""
VALIDATION = "validation"
PLAIN = frozenset({"kind", "name", "answer", "step", "epoch", "progress"})
"""What a record has besides the quantities of curves."""


class Curve:
    """A quantity over the steps of training, of at most `MOST_POINTS` points.

    A record of training is the mean since the one before. So where there are too many, a point is
    the mean of `block` neighbours, at the last of their steps.
    """

    def __init__(self) -> None:
        self.steps, self.values, self.block = array("q"), array("d"), 1
        self._sum, self._count = 0.0, 0

    def add(self, step: int, value: float) -> bool:
        """One more value; whether points that were given out have changed."""
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count < self.block:
            return False
        self.steps.append(step)
        self.values.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self.steps) < MOST_POINTS:
            return False
        pairs = zip(self.values[::2], self.values[1::2], strict=True)
        self.values = array("d", [(a + b) / 2 for a, b in pairs])
        self.steps, self.block = self.steps[1::2], 2 * self.block
        return True


@dataclass
class Course:
    """The records of one `metrics.jsonl` read so far.

    version: another one whenever points that were given out no longer hold. best: step and loss of
    the best validation; validated: step of the last. first_seen, last_seen: (time, progress) when
    records were first and last found.
    """

    version: int = 0
    curves: dict[str, Curve] = field(default_factory=dict)
    events: list[tuple[int, str]] = field(default_factory=list)
    step: int = 0
    epoch: int = 0
    progress: float | None = None
    speed: float | None = None
    best: tuple[int, float] | None = None
    validated: int = -1
    damaged: int = 0
    first_seen: tuple[float, float] | None = None
    last_seen: tuple[float, float] | None = None

    def add(self, record: dict[str, Any]) -> None:
        self.step = max(self.step, record["step"])
        if fits(int, record.get("epoch")):
            self.epoch = max(self.epoch, record["epoch"])
        if 0 <= record.get("progress", math.nan) <= 1:
            self.progress = record["progress"]
        if 0 <= record.get("tokens_per_second", math.nan) < LARGEST:
            self.speed = record["tokens_per_second"]
        if record["kind"] == "event":
            if len(self.events) < MOST_EVENTS:
                self.events.append((record["step"], record["name"]))
            return
        if record["kind"] == VALIDATION and abs(loss := record.get("loss", math.nan)) < LARGEST:
            self.validated = record["step"]
            if self.best is None or loss < self.best[1]:
                self.best = (record["step"], loss)
        for name in record.keys() - PLAIN:
            key = f"{record['kind']}/{name}"
            if not abs(record[name]) < LARGEST:
                continue
            if key not in self.curves and len(self.curves) < MOST_CURVES:
                self.curves[key] = Curve()
            if key in self.curves:
                self.version += self.curves[key].add(record["step"], float(record[name]))

    def seconds_left(self) -> float | None:
        """By the progress made since it was first looked at."""
        if not self.first_seen or not self.last_seen:
            return None
        (then, before), (now, after) = self.first_seen, self.last_seen
        return (1 - after) * (now - then) / (after - before) if after > before else None


class Watched:
    """One run's folder, read repeatedly."""

    def __init__(self, path: Path, name: str) -> None:
        self.name, self.folder = name, RunFolder(path)
        self.course = Course()
        self._file: tuple[int, int] | None = None  # which file was read
        self._read, self._rest = 0, b""
        self._recipe: Recipe | None = None
        self._recipe_at: int | None = None
        self._wrong = ""

    def look(self) -> None:
        """Read what is new."""
        self._look_at_recipe()
        try:
            descriptor = os.open(self.folder.metrics, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                return
            if self._file != (state.st_dev, state.st_ino) or state.st_size < self._read:
                # A resumed training has written it anew.
                self.course = Course(version=self.course.version + 1)
                self._file, self._read, self._rest = (state.st_dev, state.st_ino), 0, b""
            if state.st_size == self._read:
                return
            file.seek(self._read)
            try:
                data = file.read(PIECE)
            except OSError:  # a bad disk keeps no other run from being shown
                return
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._rest = b"\0"  # which no record begins with
        for line in lines:
            record = record_of(line) if len(line) <= LONGEST_LINE else None
            if record is not None:
                self.course.add(record)
            elif line.strip():
                self.course.damaged += 1
        if (progress := self._progress()) is not None:
            now = state.st_mtime, progress
            self.course.first_seen = self.course.first_seen or now
            self.course.last_seen = now

    def _look_at_recipe(self) -> None:
        try:
            changed = self.folder.recipe.lstat()
        except OSError:
            return
        if self._recipe_at == changed.st_mtime_ns:
            return
        self._recipe_at, self._wrong = changed.st_mtime_ns, ""
        try:
            if not stat.S_ISREG(changed.st_mode):
                raise InfolmError("recipe.yaml is not a plain file")
            self._recipe = load_recipe(str(self.folder.recipe))
        except InfolmError as error:
            self._recipe = None
            self._wrong = str(error).replace(str(self.folder.path), self.name)

    def _progress(self) -> float | None:
        """The share of training that is done; of a run that does not record it about so."""
        if self.course.progress is not None or self._recipe is None:
            return self.course.progress
        train = self._recipe.train
        share = self.course.epoch / train.epochs
        return min(1.0, max(share, self.course.step / train.max_steps if train.max_steps else 0))

    def _status(self) -> str:
        if self.folder.in_training():
            return "training"
        course, recipe = self.course, self._recipe
        ended = any(name == "stopped" for _, name in course.events) or (
            recipe is not None and recipe.train.reached(course.step, course.epoch)
        )
        return "done" if ended and course.validated >= course.step else "stopped"

    def row(self) -> dict[str, Any]:
        """What the table says of it."""
        course, recipe, status = self.course, self._recipe, self._status()
        best = None
        if course.best is not None:
            step, loss = course.best
            words = family_of(recipe).result(recipe, loss) if recipe else f"{loss:.4f}"
            best = {"step": step, "loss": loss, "words": words}
        training = status == "training"
        return {
            "id": self.name,
            "status": status,
            "recipe": {
                "title": recipe.title if recipe else "",
                "model": recipe.model.kind if recipe else "",
                "objective": recipe.objective.kind if recipe else "",
                "corpus": recipe.data.corpus if recipe else "",
                "seed": recipe.seed if recipe else None,
            },
            "problem": self._wrong,
            "step": course.step,
            "epoch": course.epoch,
            "progress": self._progress(),
            "tokens_per_second": course.speed,
            "seconds_left": course.seconds_left() if training else None,
            "best": best,
            "damaged_lines": course.damaged,
            "version": course.version,
            "points": sum(len(curve.steps) for curve in course.curves.values()),
        }

    def curves(self, version: int, after: int) -> dict[str, Any]:
        """The points behind step `after`, if those before are of this version; else all."""
        course = self.course
        after = after if version == course.version else -1
        scope = self._recipe.model.capability if self._recipe else ""
        found = []
        for key, curve in sorted(course.curves.items()):
            kind, name = key.split("/", 1)
            first = bisect_right(curve.steps, after)
            what = described(name, scope)
            found.append(
                {
                    "key": key,
                    "kind": kind,
                    "label": what.label,
                    "unit": what.unit,
                    "meaning": what.meaning,
                    "steps": curve.steps[first:].tolist(),
                    "values": curve.values[first:].tolist(),
                }
            )
        events = [{"step": step, "name": name} for step, name in course.events if step > after]
        return {"id": self.name, "version": course.version, "curves": found, "events": events}


class Runs:
    """All runs below a folder."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InfolmError(f"{folder} is not a folder: name the one that holds the runs")
        self._folder = folder
        self._watched: dict[str, Watched] = {}
        self._looked = -math.inf
        self._lock = threading.Lock()

    def rows(self) -> list[dict[str, Any]]:
        """The present state of each run."""
        with self._lock:
            self._look()
            return [watched.row() for watched in self._watched.values()]

    def curves(self, name: str, version: int, after: int) -> dict[str, Any]:
        """Of the run that is known by this name; KeyError where none is."""
        with self._lock:
            self._look()
            return self._watched[name].curves(version, after)

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._looked + FRESH:
            return
        found = {self._name(path): path for path in _runs(self._folder)}
        self._watched = {
            name: self._watched.get(name) or Watched(path, name)
            for name, path in sorted(found.items())
        }
        for watched in self._watched.values():
            watched.look()
        self._looked = time.monotonic()

    def _name(self, path: Path) -> str:
        relative = path.relative_to(self._folder).as_posix()
        text = self._folder.resolve().name if relative == "." else relative
        return text.encode(errors="replace").decode()  # a name of a file need not be text


def _runs(folder: Path) -> Iterator[Path]:
    """Folders with a recipe; nothing inside them, and no link to a folder of others."""
    level, looked_at, given = [folder], 0, 0
    for depth in range(DEEPEST + 1):
        below: list[Path] = []
        for path in level:
            looked_at += 1
            if looked_at > MOST_FOLDERS or given >= MOST_RUNS:
                return
            if (path / "recipe.yaml").is_file():
                given += 1
                yield path
            elif depth < DEEPEST and (path == folder or not path.is_symlink()):
                below += _folders(path)
        level = sorted(below)


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [
                Path(entry.path)
                for entry in entries
                if entry.is_dir()
                and not entry.name.startswith(".")
                and ".writing" not in entry.name
            ]
    except OSError:
        return []
