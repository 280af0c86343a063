"""A family: the operations on models of one capability, from validation to export.

The families are `running` (language models of running text), `latent` (models with a latent code)
and `contrastive` (encoders). Each is a folder whose module `family` registers it. Family-specific
code is nowhere else: other code calls `family_of`, or uses a `Run`.
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
    """Ignore a report of progress."""


def settings_of(kind: Callable[..., Settings], given: Mapping[str, Any]) -> Settings:
    """Build the settings dataclass `kind` from values by name; refuse unknown names in a
    sentence."""
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
    """measurements: also kept in the run's folder. warnings: sentences about doubtful measurements.
    tables: further tables to print."""

    measurements: list[Measurement]
    warnings: Sequence[str] = ()
    tables: Sequence[Table] = ()


class Writing(NamedTuple):
    """texts: the generated texts. records: the same for JSON, with their details by name. shown:
    for people. warnings: sentences about changed input."""

    texts: list[str]
    records: list[dict[str, Any]]
    shown: str | Table
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Run(ABC):
    """A run's folder opened for use: recipe, vocabulary and best weights, in evaluation mode.

    at: the weights after this many words, of `train.exposure`, instead of the best weights.
    """

    folder: RunFolder
    recipe: Recipe
    tokenizer: Tokenizer
    model: Any
    at: int | None = None

    def __fspath__(self) -> str:
        """The run's folder, so that a run can be used as a path."""
        return str(self.folder.path)

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open the run in a folder; refuses runs of other families."""
        run = open_run(path)
        if not isinstance(run, cls):
            raise InfolmError(f"{path} {cls.refusal(run)}")
        return run

    @classmethod
    @abstractmethod
    def refusal(cls, run: "Run") -> str:
        """Why a run of another family is refused: '... is an encoder: choose another run'."""

    def evaluate(self, report: Report = silent, /, **given: Any) -> Evaluation:
        """The family's measurements, with its options of EVALUATING; see `infolm.evaluate`."""
        return self.measure(chosen(EVALUATING, self.kind, self.folder.path, given), report)

    def shares(self, **given: Any) -> bool:
        """Whether several processes can share the work of `evaluate`."""
        return bool(chosen(EVALUATING, self.kind, self.folder.path, given).shared)

    def generate(self, report: Report = silent, /, **given: Any) -> Writing:
        """Generate texts, with the family's options of GENERATING; see `infolm.generate`."""
        return self.write(chosen(GENERATING, self.kind, self.folder.path, given), report)

    def stream(self, report: Report = silent, /, **given: Any) -> Iterator[str]:
        """The same, streamed piece by piece, for families that generate word by word."""
        return self.write_on(chosen(GENERATING, self.kind, self.folder.path, given), report)

    @property
    def kind(self) -> Capability:
        """The model's capability, which is its family's kind."""
        return self.recipe.model.capability

    @abstractmethod
    def measure(self, options: Any, report: Report) -> Evaluation:
        """The family's measurements. options: its section of EVALUATING."""

    @abstractmethod
    def write(self, options: Any, report: Report) -> Writing:
        """Generate texts, or refuse. options: the family's section of GENERATING."""

    def write_on(self, options: Any, report: Report) -> Iterator[str]:
        """Generate a text piece by piece. options: as in `write`."""
        raise InfolmError(
            f"{self.folder.path} is {family_of(self.recipe).a}, and cannot continue a text: "
            "choose a run of a language model"
        )

    def unread(self, prompt: str) -> str:
        """Warnings about a prompt that is not read as given; usually none."""
        return ""

    def score(self, texts: str | Sequence[str], **options: Any) -> list[ScoredSentence]:
        """The surprisal of each token and word of texts, or a refusal; see `infolm.score`."""
        raise InfolmError(self.unscored)

    @property
    def unscored(self) -> str:
        """Why the run's model cannot score text; empty if it can."""
        return (
            f"{self.folder.path} is {family_of(self.recipe).a}, and has no "
            "next-token probabilities: to score text, choose a run of a language model"
        )

    @cached_property
    def corpus(self) -> Corpus:
        """The text the run was trained on, in the run's vocabulary."""
        return corpus_of(self.folder, self.recipe)


class Family(ABC):
    """The operations on models of one capability.

    kind: the capability. a: the name of such a model, after 'is'. per: the unit that the validation
    loss is averaged over.
    """

    kind: ClassVar[Capability]
    a: ClassVar[str]
    per: ClassVar[str] = "token"
    run: ClassVar[type[Run]]

    def check(self, recipe: Recipe, corpus: Corpus) -> None:
        """Refuse a text on which training, validation or evaluation would fail."""
        return

    @abstractmethod
    def validation(
        self, recipe: Recipe, model: Any, objective: Objective, corpus: Corpus
    ) -> Callable[[], Validation]:
        """The validation of the current weights during training."""

    def judge(self, recipe: Recipe, model: Any, corpus: Corpus) -> Callable[[], float] | None:
        """The training loss without dropout, if the averager needs it; None otherwise."""
        return None

    def sampler(self, recipe: Recipe, model: Any, corpus: Corpus) -> Callable[[], list[str]] | None:
        """A generator of `train.samples` texts with the current weights, in evaluation mode and
        with its own random numbers; None if the family generates no text."""
        return None

    @abstractmethod
    def result(self, recipe: Recipe, loss: float) -> str:
        """The best validation loss in words: 'perplexity 62.1'."""

    def history(self, recipe: Recipe, records: Sequence[dict[str, Any]]) -> History:
        """The history of a training, with the family's own quantities."""
        return History.of(records)

    @abstractmethod
    def sections(self, found: "Findings") -> "Sections":
        """The family's part of a report."""

    def resolved(self, recipe: Recipe, begun: bool) -> Recipe:
        """The recipe completed from files on this machine; begun: whether training has started."""
        return recipe

    def vocabulary(self, recipe: Recipe) -> Tokenizer | None:
        """The vocabulary that the recipe fixes; for most models it comes from the text."""
        return None

    def start(self, recipe: Recipe, model: Any) -> str:
        """Initialise a new model from other weights, if the recipe says so; returns a message."""
        return ""

    def opened(self, recipe: Recipe, model: Any) -> None:
        """Prepare a loaded model for use."""
        return


FAMILIES: Registry[Family] = Registry("infolm.families", "family")


def family_of(recipe: Recipe) -> Family:
    """The family that the recipe's model belongs to."""
    return FAMILIES[recipe.model.capability]()


def open_run(path: Path | str, at: int | None = None) -> Run:
    """Open the run in a folder, whatever its family; at: as in `Run`."""
    folder = RunFolder.existing(Path(path))
    recipe = recipe_of(folder)
    if at is not None and not folder.exposed(at).exists():
        raise _not_kept(folder, at)
    if at is None and not folder.model.exists():
        raise InfolmError(
            f"{path} has no model yet: its training ended before the first validation; "
            f"resume it with `infolm train {path} --resume`"
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
        "train.exposure before training"
    )


def build_terms(recipe: Recipe, corpus: Corpus, model: Model) -> list[Term]:
    """The terms of the training loss: the objective and the recipe's regularisers.

    The model is already on its device. Its softmax starts as the recipe says.
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
