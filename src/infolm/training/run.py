"""A run's folder: all results of one training.

recipe.yaml        the recipe, every value resolved
manifest.json      the SHA-256 of the files that define the run
tokenizer.json     the vocabulary
corpus.json        the text: its name, SHA-256 and number of tokens
model.safetensors  the weights with the best validation loss so far
metrics.jsonl      one record per line: steps, validations, events; unreadable lines are
                       moved to metrics.damaged.jsonl
bmi.safetensors    a regulariser's parameters with those weights: its critic
checkpoints/       the whole state, to resume from; with train.recover, that of the best validation
exposure/          the weights after the numbers of words in train.exposure
tensorboard/       the same numbers for TensorBoard
measurements.json  the results of `infolm evaluate`
cache.json         the neural cache's settings, tuned on the validation split; likewise
                   dynamic.json, mc.json, temperature.json and, tuned together with other
                   methods, such as cache-dynamic-temperature.json
gradients.safetensors  the mean square gradients of the training split, for dynamic evaluation
log_probs/         ln p of every token of a split, computed by `infolm compare`
report.html        written by `infolm report`
variance.png       drawn by `infolm variance`
damaged/           files that `infolm repair` replaced
finetuned/         results of `infolm finetune`, a folder for each task
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from infolm import files
from infolm.errors import InfolmError
from infolm.metrics import EVENT, Described, describe
from infolm.section import in_short
from infolm.training import checkpoint
from infolm.training.manifest import Manifest, altered, sha256
from infolm.trees import encodable, fits

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOOKING = 0.5
"""Seconds that training waits for a lock that another process is testing."""

describe(
    "",
    Described("progress", meaning="the share of training done", decimals=3),
    Described("epoch", meaning="complete passes over the training split", decimals=0),
    Described("tokens_per_second", "speed", "tokens per second", decimals=0, better="up"),
    Described(
        "loss",
        "validation loss",
        "nats",
        better="down",
        meaning="the best weights are chosen by it",
    ),
    Described("validation_loss", unit="nats", better="down"),
)
describe(
    EVENT,
    Described(
        "diverged",
        meaning="the loss blew up, so training went back to the best validation and continued "
        "with a lower learning rate",
    ),
    Described("stopped", meaning="validation no longer improved, so training ended"),
)


class RunFolder:
    """The names of a run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.tokenizer = path / "tokenizer.json"
        self.corpus = path / "corpus.json"
        self.model = path / "model.safetensors"
        self.metrics = path / "metrics.jsonl"
        self.damaged_metrics = path / "metrics.damaged.jsonl"
        self.checkpoints = path / "checkpoints"
        self.best = self.checkpoints / "best.safetensors"
        self.exposure = path / "exposure"
        self.tensorboard = path / "tensorboard"
        self.measurements = path / "measurements.json"
        self.cache = self.tuned("cache")
        self.gradients = path / "gradients.safetensors"
        self.report = path / "report.html"

    def tuned(self, *names: str) -> Path:
        """The file of the settings of the first of `names`, tuned together with the others."""
        return self.path / f"{'-'.join(names)}.json"

    def log_probs(self, split: str) -> Path:
        """The file of the log-probabilities of a split's tokens."""
        return self.path / "log_probs" / f"{split}.safetensors"

    def learner(self, name: str) -> Path:
        """The file of the parameters of the term `name`, saved with the best weights."""
        return self.path / f"{name}.safetensors"

    def save_model(self, weights: dict[str, Any]) -> None:
        """Keep the best weights so far."""
        self.keep(self.model, checkpoint.writer(weights))

    def save_learner(self, name: str, state: dict[str, Any]) -> None:
        """Save the term's parameters with the digest of the weights they belong to."""
        state = {**state, "model": checkpoint.mark(self.model)}
        self.keep(self.learner(name), checkpoint.writer(state))

    def load_learner(self, name: str) -> dict[str, Any]:
        """The term's parameters; refused if they belong to other weights than the run's."""
        state = checkpoint.load(self.learner(name))
        if state.pop("model") != checkpoint.mark(self.model):
            raise InfolmError(
                f"{self.learner(name)} is the critic of another model than {self.model}: restore "
                "the "
                "right one, or delete it to start with a new critic"
            )
        self.verify(self.learner(name))
        return state

    def save_checkpoint(self, step: int, state: dict[str, Any]) -> None:
        """Keep the whole state of training, to resume from."""
        checkpoint.save_step(self.checkpoints, step, state)

    def save_best(self, state: dict[str, Any]) -> None:
        """Keep the state of the best validation, to go back to after divergence."""
        files.refuse_link(self.checkpoints)
        files.make_folder(self.checkpoints)
        checkpoint.save(self.best, state)

    def exposed(self, words: int) -> Path:
        """The folder of the weights after this many words. BabyLM's evaluation looks for a branch
        of this name."""
        return self.exposure / f"chck_{in_short(words)}.safetensors"

    def save_exposed(self, words: int, weights: dict[str, Any]) -> None:
        """Keep the weights after this many words; a resumed run writes the same again."""
        files.refuse_link(self.exposure)
        files.make_folder(self.exposure)
        checkpoint.save(self.exposed(words), weights)

    def log(self, step: int) -> "Log":
        """The metrics log, resumed after `step`."""
        return MetricsLog(self, step)

    # -- the files that define the run ------------------------------------------------------

    @property
    def defining(self) -> list[Path]:
        """The existing files among those that the manifest lists."""
        learnt = set(self.path.glob("*.safetensors")) - {self.gradients, self.model}
        listed = (self.recipe, self.tokenizer, self.corpus, self.model, *sorted(learnt))
        return [path for path in listed if path.exists()]

    def manifest(self) -> Manifest:
        """The run's manifest; for a run of an earlier release, one of the existing files."""
        found = Manifest.read(self.path)
        if found is None:
            found = Manifest({path.name: [sha256(path)] for path in self.defining})
            if self.recipe.exists():
                found.recipe = self.recipe.read_text(encoding="utf-8")
            found.write(self.path)
        return found

    def keep(self, path: Path, write: Callable[[Path], object]) -> None:
        """Replace a file that defines the run; the manifest agrees with it at every moment."""
        manifest = self.manifest()
        new = ""

        def announce(temporary: Path) -> None:
            nonlocal new
            new = sha256(temporary)
            before = manifest.files.get(path.name, [])
            if path.exists() and not before:  # no checksum is known, so it is not refused
                before = [sha256(path)]
            manifest.files[path.name] = [*(each for each in before if each != new), new]
            manifest.write(self.path)

        checkpoint.atomically(path, write, announce)
        manifest.files[path.name] = [new]
        if path == self.recipe:
            manifest.recipe = path.read_text(encoding="utf-8")
        manifest.write(self.path)

    def verify(self, *paths: Path) -> bool:
        """Refuse a file that infolm did not write; returns whether the manifest lists all."""
        known = True
        for path in paths:
            found = altered(path) if path.exists() else None
            known = known and found is not None
            if found:
                raise InfolmError(
                    f"{path} is not the file that infolm wrote (its SHA-256 is not the one in "
                    f"manifest.json): restore it from a copy, or try `infolm repair {self.path}`"
                )
        return known

    @classmethod
    def existing(cls, path: Path) -> "RunFolder":
        """Open a folder that holds a run and no links out of it, or refuse."""
        run = cls(path)
        if run.recipe.is_symlink() or run.recipe.is_file():
            files.refuse_links(path)
        else:
            raise InfolmError(
                f"{path} is not a run's folder, since it has no recipe.yaml: name "
                "a folder that `infolm train` made"
            )
        for folder in (path, run.checkpoints, run.exposure):
            files.sweep(folder)
        return run

    def drop_state(self) -> None:
        """Remove what only an unfinished training needs, as far as it may be removed."""
        for folder in (self.checkpoints, self.tensorboard):
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for one training process; the lock ends with the process."""
        try:
            # Retry: another process may only be testing the lock, see `in_training`.
            with FileLock(self.path / ".lock", timeout=LOOKING):
                yield
        except Timeout:
            raise InfolmError(
                f"another process is training in {self.path}: wait for it to end, "
                "or name another folder with --out"
            ) from None

    def in_training(self) -> bool:
        """Whether a process is training in the folder now; writes nothing."""
        if fcntl is None:
            return False
        try:
            descriptor = os.open(self.path / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # no lock file, or not readable: nobody trains there
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except OSError as error:
            return isinstance(error, BlockingIOError)
        finally:
            os.close(descriptor)


class ReadOnlyRun(RunFolder):
    """The folder for a process that trains with others and is not the first: nothing is written."""

    def keep(self, path: Path, write: Callable[[Path], object]) -> None:
        return

    def save_learner(self, name: str, state: dict[str, Any]) -> None:
        return

    def save_checkpoint(self, step: int, state: dict[str, Any]) -> None:
        return

    def save_best(self, state: dict[str, Any]) -> None:
        return

    def save_exposed(self, words: int, weights: dict[str, Any]) -> None:
        return

    def log(self, step: int) -> "NoLog":
        return NoLog()

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield


class NoLog:
    """A log that keeps nothing."""

    def flush(self) -> None:
        return

    def write_text(self, name: str, step: int, text: str) -> None:
        return

    def write(self, kind: str, step: int, **values: Any) -> None:
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


class MetricsLog:
    """`metrics.jsonl` and TensorBoard, continued by a resumed run.

    Records of steps after `step` were written by a process that died before its next checkpoint:
    they are dropped, since those steps are now taken again. Unreadable lines are moved to
    `metrics.damaged.jsonl`, with a message.
    """

    def __init__(self, run: RunFolder, step: int) -> None:
        records, damaged = _lines(run.metrics)
        if damaged:
            _put_aside(run.damaged_metrics, damaged)
            where = f"moved to {run.damaged_metrics}"
            print(f"{_unreadable(run.metrics, damaged)}, {where}.", file=sys.stderr)
        _write_records(run.metrics, [r for r in records if r["step"] <= step])
        files.refuse_link(run.tensorboard)
        self._file = open(run.metrics, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        # Imported here: TensorBoard takes longer to import than a small run to start.
        from infolm.training.board import Board

        self._board = Board(run.tensorboard, step + 1)

    def write(self, kind: str, step: int, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        for name, value in values.items():
            if isinstance(value, int | float):
                self._board.number(f"{kind}/{name}", value, step)

    def write_text(self, name: str, step: int, text: str) -> None:
        """Text for TensorBoard only."""
        self._board.text(name, text, step)

    def flush(self) -> None:
        """Flush all records to disk, before the checkpoint of their step is written."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._board.close()


Log = MetricsLog | NoLog


def read_validations(path: Path) -> list[dict[str, Any]]:
    """Only the records of validations, without parsing those of steps."""
    records, _ = _lines(path, b'"validation"')
    return [record for record in records if record["kind"] == "validation"]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a `metrics.jsonl`. Unreadable lines are skipped with a message, except a last
    line that a crash cut short."""
    records, damaged = _lines(path)
    if damaged and (len(damaged) > 1 or not path.read_bytes().endswith(damaged[-1])):
        print(f"{_unreadable(path, damaged)}, left out here.", file=sys.stderr)
    return records


def put_damaged_lines_aside(run: RunFolder) -> bool:
    """Remove unreadable lines from `metrics.jsonl`; returns whether there were any."""
    records, damaged = _lines(run.metrics)
    if damaged:
        _put_aside(run.damaged_metrics, damaged)
        _write_records(run.metrics, records)
    return bool(damaged)


def _write_records(path: Path, records: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records)
    checkpoint.atomically(path, lambda to: to.write_text(text, encoding="utf-8"))


def _lines(path: Path, holding: bytes = b"") -> tuple[list[dict[str, Any]], list[bytes]]:
    """The records and the unreadable lines, ignoring empty lines."""
    if not path.exists():
        return [], []
    records, damaged = [], []
    for line in path.read_bytes().split(b"\n"):
        if holding not in line:
            continue
        record = record_of(line)
        if record is not None:
            records.append(record)
        elif line.strip():
            damaged.append(line)
    return records, damaged


def record_of(line: bytes) -> dict[str, Any] | None:
    """The record in a line of `metrics.jsonl`; None if it is damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if _is_record(record) else None


def _in_64_bits(number: Any) -> bool:
    """Whether it is no larger integer than anybody counts to: more is damage."""
    return not isinstance(number, int) or -(2**63) <= number < 2**63


def _is_record(record: Any) -> bool:
    """Whether it is what `MetricsLog.write` writes: words under a few keys, else numbers."""
    if not fits(dict[str, Any], record):
        return False
    words = {key: record[key] for key in ("kind", "name", "answer") if key in record}
    numbers = {key: value for key, value in record.items() if key not in words}
    return (
        "kind" in words
        and fits(dict[str, str], words)
        and all(map(encodable, [*record, *words.values()]))
        and fits(dict[str, float], numbers)
        and all(map(_in_64_bits, numbers.values()))
        and fits(int, numbers.get("step"))
        and (words["kind"] != "event" or "name" in words)
    )


def _unreadable(path: Path, damaged: list[bytes]) -> str:
    return (
        f"{path} has {len(damaged):,} {'lines' if len(damaged) > 1 else 'line'} that cannot be read"
    )


def _put_aside(path: Path, lines: list[bytes]) -> None:
    """Add lines to the damaged ones."""
    before = path.read_bytes() if path.exists() else b""
    known = set(before.split(b"\n"))  # a run killed here would add them again
    data = before + b"".join(line + b"\n" for line in lines if line not in known)
    checkpoint.atomically(path, lambda to: to.write_bytes(data))
