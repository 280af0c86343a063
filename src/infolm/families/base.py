"""A family: what one does with models of one capability, from validation to export.

The families are `running` (language models of running text), `latent` (models with a latent code)
and `contrastive` (encoders). Each is a folder whose module `family` registers it, and the only
place that knows what belongs to it. Everything else asks `family_of`, or a `Run`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from infolm.config import Recipe
from infolm.data.corpora import Corpus
from infolm.data.ingest import Report
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.scoring import ScoredSentence
from infolm.families.demand import of_model, refuse_giants
from infolm.families.options import EVALUATING, GENERATING, chosen, no_option
from infolm.families.recorded import corpus_of, recipe_of
from infolm.models.base import Capability, Model
from infolm.objectives.base import Objective, Setup
from infolm.registry import Registry
from infolm.reports.history import History
from infolm.section import count, in_short
from infolm.training import checkpoint
from infolm.training.device import one_device
from infolm.training.loop import Term, Validation
from infolm.training.run import RunFolder

if TYPE_CHECKING:
    from infolm.families.findings import Findings
    from infolm.families.sections import Sections

Settings = TypeVar("Settings")


def silent(stage: str, done: int, total: int) -> None:
    """A report of progress to nobody."""


def settings_of(kind: Callable[..., Settings], given: Mapping[str, Any]) -> Settings:
    """Settings of a kind, a dataclass, by name; a sentence on those it lacks."""
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise no_option(name, known)
    return kind(**given)


class Table(NamedTuple):
    """Rows under a header; right: the columns of numbers."""

    header: list[str]
    rows: list[list[str]]
    right: frozenset[int] = frozenset()


class Evaluation(NamedTuple):
    """measurements: also kept in the run's folder. warnings: why one should not be taken as it
    stands. tables: what else there is to show."""

    measurements: list[Measurement]
    warnings: Sequence[str] = ()
    tables: Sequence[Table] = ()


class Writing(NamedTuple):
    """texts: what was written. records: the same with all that belongs to it, by name. shown: as a
    person reads it. warnings: what was not taken as it stands."""

    texts: list[str]
    records: list[dict[str, Any]]
    shown: str | Table
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Run(ABC):
    """A run's folder opened for use: recipe, vocabulary and best weights, in evaluation mode.

    at: where the weights are not the best but those after so many words, of `train.exposure`.
    """

    folder: RunFolder
    recipe: Recipe
    tokenizer: Tokenizer
    model: Any
    at: int | None = None

    def __fspath__(self) -> str:
        """Its folder, wherever a path is asked for."""
        return str(self.folder.path)

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """The run in a folder, of this family, or a clear refusal."""
        run = open_run(path)
        if not isinstance(run, cls):
            raise InfolmError(f"{path} {cls.refusal(run)}")
        return run

    @classmethod
    @abstractmethod
    def refusal(cls, run: "Run") -> str:
        """Why a run of another family will not do: '... is an encoder: take another run'."""

    def evaluate(self, report: Report = silent, /, **given: Any) -> Evaluation:
        """What the family measures, by its section of EVALUATING; see `infolm.evaluate`."""
        return self.measure(chosen(EVALUATING, self.kind, self.folder.path, given), report)

    def shares(self, **given: Any) -> bool:
        """Whether several processes would share the work of `evaluate`."""
        return bool(chosen(EVALUATING, self.kind, self.folder.path, given).shared)

    def generate(self, report: Report = silent, /, **given: Any) -> Writing:
        """What the model writes, by its section of GENERATING; see `infolm.generate`."""
        return self.write(chosen(GENERATING, self.kind, self.folder.path, given), report)

    def stream(self, report: Report = silent, /, **given: Any) -> Iterator[str]:
        """The same piece by piece, as it is written; of families that write word by word."""
        return self.write_on(chosen(GENERATING, self.kind, self.folder.path, given), report)

    @property
    def kind(self) -> Capability:
        """What the model can do, and so its family."""
        return self.recipe.model.capability

    @abstractmethod
    def measure(self, options: Any, report: Report) -> Evaluation:
        """What the family measures. options: its section of EVALUATING."""

    @abstractmethod
    def write(self, options: Any, report: Report) -> Writing:
        """What the model writes, or a refusal. options: the family's section of GENERATING."""

    def write_on(self, options: Any, report: Report) -> Iterator[str]:
        """What the model writes, piece by piece. options: as of `write`."""
        raise InfolmError(
            f"{self.folder.path} is {family_of(self.recipe).a}, and does not go on from a text: "
            "take a run of a language model"
        )

    def unread(self, prompt: str) -> str:
        """What is to be said of a prompt that is not read as it stands; mostly nothing."""
        return ""

    def score(self, texts: str | Sequence[str], **options: Any) -> list[ScoredSentence]:
        """The surprisal of each token and word of texts, or why the family has none; see
        `infolm.score`."""
        raise InfolmError(self.unscored)

    @property
    def unscored(self) -> str:
        """Why the run's model scores no text; empty where it does."""
        return (
            f"{self.folder.path} is {family_of(self.recipe).a}, and gives the next token no "
            "probability: to score text take a run of a language model"
        )

    @cached_property
    def corpus(self) -> Corpus:
        """The text the run was trained on, in the run's own vocabulary."""
        return corpus_of(self.folder, self.recipe)


class Family(ABC):
    """What belongs to models of one capability.

    kind: the capability. a: what one such model is called, after 'is'. per: what the validation
    loss is a mean over.
    """

    kind: ClassVar[Capability]
    a: ClassVar[str]
    per: ClassVar[str] = "token"
    run: ClassVar[type[Run]]

    def check(self, recipe: Recipe, corpus: Corpus) -> None:
        """Refuse a text that training, validation or measuring the run would stumble over."""
        return

    @abstractmethod
    def validation(
        self, recipe: Recipe, model: Any, objective: Objective, corpus: Corpus
    ) -> Callable[[], Validation]:
        """How the present weights are measured while training runs."""

    def judge(self, recipe: Recipe, model: Any, corpus: Corpus) -> Callable[[], float] | None:
        """The training loss, without dropout, where the averager goes by that; none elsewhere."""
        return None

    def sampler(self, recipe: Recipe, model: Any, corpus: Corpus) -> Callable[[], list[str]] | None:
        """What writes `train.samples` texts with the present weights, in evaluation mode and with
        random numbers of its own; none where the family writes none."""
        return None

    @abstractmethod
    def result(self, recipe: Recipe, loss: float) -> str:
        """The best validation loss in words: 'perplexity 62.1'."""

    def history(self, recipe: Recipe, records: Sequence[dict[str, Any]]) -> History:
        """The course of a training, with what only models of the family have."""
        return History.of(records)

    @abstractmethod
    def sections(self, found: "Findings") -> "Sections":
        """The family's part of a report."""

    def resolved(self, recipe: Recipe, begun: bool) -> Recipe:
        """The recipe with what only files on this machine can tell; `begun`: training has."""
        return recipe

    def vocabulary(self, recipe: Recipe) -> Tokenizer | None:
        """A vocabulary that the recipe brings; for most models the text gives one."""
        return None

    def start(self, recipe: Recipe, model: Any) -> str:
        """Give a new model weights from elsewhere, if the recipe says so; says what it did."""
        return ""

    def opened(self, recipe: Recipe, model: Any) -> None:
        """Prepare a model that has been opened for use."""
        return


FAMILIES: Registry[Family] = Registry("infolm.families", "family")


def family_of(recipe: Recipe) -> Family:
    """The family that the recipe's model belongs to."""
    return FAMILIES[recipe.model.capability]()


def open_run(path: Path | str, at: int | None = None) -> Run:
    """The run in a folder, of whichever family, or a clear refusal; at: as of `Run`."""
    folder = RunFolder.existing(Path(path))
    recipe = recipe_of(folder)
    if at is not None and not folder.exposed(at).exists():
        raise _not_kept(folder, at)
    if at is None and not folder.model.exists():
        raise InfolmError(
            f"{path} has no model yet: its training ended before the first validation; "
            f"go on with `infolm train {path} --resume`"
        )
    weights = folder.model if at is None else folder.exposed(at)
    vouched = folder.verify(folder.tokenizer, folder.model) and at is None
    tokenizer = Tokenizer.load(folder.tokenizer)
    refuse_giants(of_model(recipe, len(tokenizer)))
    model = recipe.model.build(len(tokenizer), tokenizer)
    checkpoint.load_weights(weights, model, vouched)
    family = family_of(recipe)
    family.opened(recipe, model)
    one_device("auto").to_device(model)
    return family.run(folder, recipe, tokenizer, model.eval(), at)


def _not_kept(folder: RunFolder, at: int) -> InfolmError:
    found = [path.stem.partition("_")[2] for path in folder.exposure.glob("chck_*.safetensors")]
    there = ", ".join(sorted(found, key=count)) or "none"
    return InfolmError(
        f"{folder.path} kept no weights at {in_short(at)} words (there are: {there}): set "
        "train.exposure when you train"
    )


def build_terms(recipe: Recipe, corpus: Corpus, model: Model) -> list[Term]:
    """What training adds up: the objective, and the regularisers that the recipe names.

    The model is where it will be trained. Its softmax begins as the recipe says.
    """
    setup = Setup(corpus, model, model.device, recipe.seed)
    if recipe.model.unigram_start:
        setup.model.softmax.begin_with(setup.counts())
    objective = recipe.objective.build(setup)
    feed = recipe.feed.build(corpus, "train", recipe.seed)
    terms = [Term(recipe.objective.kind, feed, objective)]
    for name, config in recipe.regularisers.chosen().items():
        feed, regulariser = config.build(setup)
        terms.append(Term(name, feed, regulariser, config.weight))
    return terms
