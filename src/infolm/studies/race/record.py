"""The record of a race: everything that its number depends on, under one SHA-256.

The signature is the SHA-256 of the canonical JSON of all else in the record. It shows that no digit
was changed since the record was written, by accident or by hand. It does not show who wrote it, nor
that the run took place: whoever changes a record can sign it again. To verify the run takes its
folder, whose weights the record names by their SHA-256, and a training by the recipe in it.
"""

import hashlib
import json
import math
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from infolm import files
from infolm.errors import InfolmError
from infolm.studies.race.calibration import Scores

FORMAT = "infolm race 1"
NAME = "race.json"
LINE = "race.md"
"""Files in the run's folder: the record, and its line of a table."""

BEYOND = 700.0
"""Nats per token of a model that has diverged: more than that is written as that, since its
perplexity would be no number."""
Nats = Annotated[float, Field(le=BEYOND)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Number(_Part):
    """nll: mean nats per token. stderr: of the perplexity, over the text; none for a short one."""

    nll: Nats
    perplexity: float
    stderr: float | None
    tokens: int

    @property
    def text(self) -> str:
        return f"{self.perplexity:.2f}" + ("" if self.stderr is None else f" ± {self.stderr:.2f}")


class Method(_Part):
    """described: with all settings. compared: mean nats on the tokens of the validation split that
    all methods have read, by which the best is chosen. test: none where time was too short."""

    described: str
    compared: float
    valid: Number
    test: Number | None


class Point(_Part):
    """A validation while training."""

    seconds: float
    step: int
    nll: Nats


class Replanned(_Part):
    """Steps in all, as set after a validation."""

    after: int
    steps: int


class Training(_Part):
    """planned: steps, as last set. first: as set before the first step. replanned: how they were
    set after that. steps: those taken. best_step: of the weights that are measured."""

    planned: int
    first: int | None = None
    replanned: list[Replanned] = []
    steps: int
    best_step: int
    parameters: int
    seconds_per_step: float
    curve: list[Point]

    @model_serializer(mode="wrap")
    def _with_changes(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `first` and `replanned` where nothing was, as earlier records are signed."""
        tree: dict[str, Any] = whole(self)
        changes = () if self.replanned else ("first", "replanned")
        return {name: value for name, value in tree.items() if name not in changes}

    @property
    def size(self) -> str:
        """The parameters: '4.0M'."""
        millions = self.parameters / 1e6
        return f"{millions:.1f}M" if millions >= 0.1 else f"{1e3 * millions:.1f}k"


class Times(_Part):
    """Seconds since the start of the process. phases: one after another, up to the last test
    number. test_opened: when the test split was unsealed, `tuned` when the last choice was made."""

    limit: float
    total: float
    phases: dict[str, float]
    tuned: float
    test_opened: float


class Calibration(_Part):
    """Before the training, and after the last number; see `calibration`."""

    before: Scores
    after: Scores
    reference: Scores
    scale: float


class Record(_Part):
    """minutes: of the rules, or of a rehearsal. family: what kind of model it is. data: SHA-256 of
    the text of each split. weights: that of `model.safetensors`. signature: see the module."""

    format: str = FORMAT
    track: str
    rehearsal: bool
    minutes: float
    threads: int
    seed: int
    family: str
    recipe: dict[str, Any]
    data: dict[str, str]
    weights: str
    training: Training
    times: Times
    calibration: Calibration
    ngrams: Method
    methods: dict[str, Method]
    compared_tokens: int
    best: str
    hardware: dict[str, Any]
    versions: dict[str, str]
    commit: str
    written: str = Field(description="when, in UTC")
    signature: str = ""

    @model_validator(mode="after")
    def _can_be_shown(self) -> "Record":
        """With the numbers that its line and its curve are made of."""
        for name in ("static", self.best):
            if name not in self.methods:
                raise ValueError(f"methods lacks {name!r}")
        if self.methods[self.best].test is None:
            raise ValueError(f"methods.{self.best} lacks its test number")
        if not self.training.curve:
            raise ValueError("training.curve is empty")
        return self

    def canonical(self) -> bytes:
        """What is signed: all but the signature, keys in order, no blanks, UTF-8."""
        tree = self.model_dump(mode="json", exclude={"signature"})
        text = json.dumps(
            tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return text.encode()

    def digest(self) -> str:
        return hashlib.sha256(self.canonical()).hexdigest()

    def signed(self) -> "Record":
        return self.model_copy(update={"signature": self.digest()})

    def as_json(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"

    def line(self) -> str:
        """One line of a Markdown table, below `HEADER`."""
        best = self.methods[self.best]
        assert best.test is not None

        def test(name: str) -> str:
            found = self.methods.get(name)
            return f"{found.test.perplexity:.2f}" if found and found.test else ""

        cells = [
            self.written[:10],
            f"{self.track}{' (rehearsal)' if self.rehearsal else ''}",
            str(self.seed),
            f"{self.family}, {self.training.size}",
            f"{self.methods['static'].valid.perplexity:.2f}",
            test("static"),
            test("cache"),
            test("dynamic"),
            f"**{best.test.text}** ({self.best})",
            f"{self.times.total / 60:.1f} of {self.times.limit / 60:.1f}",
            f"{self.calibration.scale:.2f}",
            f"`{self.commit[:10]}{'+' * self.commit.endswith('+')}`",
            f"`{self.signature[:12]}`",
        ]
        return f"| {' | '.join(cells)} |\n"


HEADER = (
    "| date | track | seed | model | validation, static | test, static | test, cache "
    "| test, dynamic | test, best on validation | minutes | scale | commit | signature |\n"
    + 13 * "| --- "
    + "|\n"
)


def number(nll: float, stderr: float | None, tokens: int) -> Number:
    """stderr: of the nll."""
    nll = min(nll, BEYOND)
    perplexity = math.exp(nll)
    error = None if stderr is None else perplexity * stderr
    return Number(nll=nll, perplexity=perplexity, stderr=error, tokens=tokens)


def read(path: Path) -> Record:
    """The record in a file, or in a run's folder; refused where there is none."""
    file = path / NAME if path.is_dir() else path
    try:
        record = Record.model_validate(json.loads(file.read_bytes()))
        record.canonical()  # which letters and numbers that JSON cannot hold do not have
    except FileNotFoundError:
        why = " (a race that was stopped early has none)" if path.is_dir() else ""
        raise InfolmError(
            f"{file} does not exist{why}: name a record, or a run's folder with one"
        ) from None
    except OSError as error:
        raise InfolmError(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its top"
        raise InfolmError(
            f"{file} is no record of a race ({where}: {first['msg'].lower()})"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InfolmError(f"{file} is no record of a race ({error})") from None
    return record


def write(record: Record, folder: Path) -> None:
    """The record and its line of a table."""
    lines = {NAME: record.as_json(), LINE: HEADER + record.line()}
    for name, text in lines.items():
        files.replace(folder / name, partial(Path.write_text, data=text, encoding="utf-8"))
