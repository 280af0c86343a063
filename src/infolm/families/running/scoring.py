"""The surprisal of sentences under a run, or under the n-gram model of its text."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, cast

from infolm.data.ingest import Report
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation import scoring
from infolm.evaluation.kneser_ney import KneserNey
from infolm.evaluation.method import STATIC
from infolm.evaluation.scoring import (
    LONGEST,
    NATS,
    Context,
    Line,
    Reader,
    ScoredSentence,
    Unit,
    View,
    Wording,
    once_each,
    one_by_one,
    score_lines,
)
from infolm.evaluation.suite import BASELINE, NGRAM_ORDER
from infolm.families.base import open_run, silent
from infolm.families.running.options import LanguageEvaluateOptions
from infolm.families.running.tuned import TunableRun

NGRAMS = "kneser-ney:"
"""The prefix of a run's folder that names the n-gram model of its text."""
STAGE = "scoring"


@dataclass(frozen=True)
class ScoreSettings:
    """How sentences are scored.

    context: fresh, each by itself after an `<eos>`; carried, as one text; None: fresh, but carried
    with a cache or dynamic evaluation, which adapt to the text read. eos: whether the final `<eos>`
    counts. top: how many likely tokens to list at each position. longest: maximum tokens of a
    sentence. The others are those of `infolm evaluate`.
    """

    context: Context | None = None
    eos: bool = True
    unit: Unit = "bits"
    top: int = 0
    longest: int = LONGEST
    temperature: str | float | None = None
    dynamic: str | None = None
    dynamic_rule: str = "rms"
    segment: int | None = None
    mc: int = 0
    mc_rate: str = "1"
    seed: int = 1
    cache: str | None = None

    def __post_init__(self) -> None:
        if self.context not in (None, "fresh", "carried"):
            raise InfolmError(f"context is fresh or carried, not '{self.context}'")
        if self.unit not in NATS:
            raise InfolmError(f"unit is bits or nats, not '{self.unit}'")
        if self.top < 0 or self.longest < 1:
            raise InfolmError(
                f"top is 0 or more and longest 1 or more, not {self.top} and {self.longest}"
            )

    @property
    def methods(self) -> dict[str, object]:
        """The methods asked for besides the static model, by option name."""
        asked = {
            "--temperature": self.temperature,
            "--dynamic": self.dynamic,
            "--mc": self.mc,
            "--cache": self.cache,
        }
        return {name: value for name, value in asked.items() if value}

    @property
    def carries(self) -> bool:
        return (self.context or ("carried" if self.dynamic or self.cache else "fresh")) == "carried"


class Named(NamedTuple):
    """A sentence, and its name in error messages: 'FILE, line 3'."""

    text: str
    where: str


class Scorer(ABC):
    """A source of sentence probabilities."""

    tokenizer: Tokenizer

    @abstractmethod
    def reader(self, settings: ScoreSettings, report: Report) -> tuple[Reader, str, bool]:
        """The reader of the text, the method's name, and whether it gives whole distributions."""

    def score(
        self, sentences: Sequence[Named], settings: ScoreSettings, report: Report = silent
    ) -> list[ScoredSentence]:
        """Score each sentence, in order."""
        lines = [Line.of(text, self.tokenizer, w, settings.longest) for text, w in sentences]
        if not lines:
            raise InfolmError(
                "there is no sentence to score: give a file with one sentence per line, or --text"
            )
        read, method, whole = self.reader(settings, report)
        wording = Wording(
            self.tokenizer, settings.unit, settings.eos, self._convention(settings, method, whole)
        )
        return score_lines(lines, read, wording)

    def _convention(self, settings: ScoreSettings, method: str, whole: bool) -> str:
        before = (
            "one text behind an <eos>, the context carried from line to line"
            if settings.carries
            else "each sentence by itself behind an <eos>"
        )
        ends = "counts" if settings.eos else "does not count"
        words = ""
        if not self.tokenizer.begins.all():
            words = (
                "; a word's surprisal includes that it ends"
                if whole
                else "; a word's surprisal is the sum of its pieces"
            )
        return f"{method}; {before}; the <eos> at the end {ends}{words}"

    def _read_by(self, read: Reader, settings: ScoreSettings) -> Reader:
        """In a fresh context, equal sentences are read once."""
        return read if settings.carries else once_each(read, self.tokenizer.eos)


@dataclass(frozen=True)
class NeuralScorer(Scorer):
    """The model of a run."""

    run: TunableRun

    @property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        return self.run.tokenizer

    def reader(self, settings: ScoreSettings, report: Report) -> tuple[Reader, str, bool]:
        method = self.run.methods(_methods(settings), report)[-1]
        model, eos = self.run.model, self.tokenizer.eos
        view = View.of(self.tokenizer, settings.top)

        def progress(done: int, total: int) -> None:
            report(STAGE, done, total)

        name = ", ".join(method.parts.values()) or "static"
        if not settings.carries and replace(method, temperature=1.0) == STATIC:
            read = scoring.fresh(model, eos, view, method.temperature, progress)
        else:
            read = scoring.carried(
                model, eos, view, method, self.run.statistics(method.dynamic, report)
            )
            read = read if settings.carries else one_by_one(read, eos)
        return self._read_by(read, settings), name, method.monte_carlo is None


@dataclass(frozen=True)
class NgramScorer(Scorer):
    """The Kneser-Ney model of a run's training text, in the run's vocabulary."""

    run: TunableRun

    @property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        return self.run.tokenizer

    @cached_property
    def ngrams(self) -> KneserNey:
        tokens = self.run.corpus.splits["train"].tokens
        return KneserNey.fit(tokens, len(self.tokenizer), NGRAM_ORDER)

    def reader(self, settings: ScoreSettings, report: Report) -> tuple[Reader, str, bool]:
        if asked := list(settings.methods):
            raise InfolmError(
                f"{', '.join(asked)}: an n-gram model cannot adapt to a text: leave this out"
            )
        view = View.of(self.tokenizer, settings.top)
        read = scoring.ngrams(self.ngrams, self.tokenizer.eos, view, settings.carries)
        return self._read_by(read, settings), BASELINE, True


def _methods(settings: ScoreSettings) -> LanguageEvaluateOptions:
    """The requested evaluation methods."""
    known = {field.name for field in fields(LanguageEvaluateOptions)}
    given = {k: v for k, v in asdict(settings).items() if k in known}
    return LanguageEvaluateOptions(**given, chunk=scoring.CHUNK)


def open_scorer(name: str | Path) -> Scorer:
    """The scorer that `infolm score NAME` names: a run's folder, or `kneser-ney:` and a run's
    folder."""
    of_ngrams = str(name).startswith(NGRAMS)
    run = open_run(str(name).removeprefix(NGRAMS))
    if run.unscored:
        raise InfolmError(run.unscored)
    run = cast(TunableRun, run)
    return NgramScorer(run) if of_ngrams else NeuralScorer(run)


def sentences_of(texts: str | Sequence[str]) -> list[Named]:
    """Sentences from a program's texts, one each."""
    listed = [texts] if isinstance(texts, str) else list(texts)
    return [Named(text, f"sentence {number}") for number, text in enumerate(listed, 1)]
