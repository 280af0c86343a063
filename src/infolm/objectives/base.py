"""What an objective is: a bound on the quantity we care about, with every term named."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from infolm.data.corpora import Corpus
from infolm.data.feed import Feed
from infolm.models.base import ModelConfig
from infolm.registry import Registry
from infolm.section import Section

TIES = "ties"
"""The term beside `accuracy`: the share of what it counts where the right one was tied."""


@dataclass
class Estimate:
    """An objective's value on a batch, or on a part of one.

    loss: the scalar to minimise, in nats per token (or per whatever `count` counts); of a part, its
    share of the batch's, so that the losses of all parts add up to that (`data.parts.share`).
    terms: its parts by name, without gradient, each in its own natural unit; `nll` is one of them
    where the objective is the main one.
    count: how many tokens the average is over. per: how many of whatever a term is a mean over, by
    its name, where that is not the tokens: `count` decides how much a batch weighs in the records.
    carry: what the objective wants back at the next batch (the hidden state of a stream). sums:
    numbers that a `Stateful` objective is told after the step, summed over all parts.
    """

    loss: Tensor
    terms: dict[str, Tensor]
    count: int
    carry: Any = field(default=None, repr=False)
    per: Mapping[str, int] = field(default_factory=dict)
    sums: Sequence[float] = ()


class Objective(Protocol):
    """A pure function of model, batch and carry; `carry` is None at the very first batch."""

    def __call__(self, model: Any, batch: Any, carry: Any) -> Estimate: ...


class Stateful(ABC):
    """An objective with a course of its own: a weight that rises, a phase that ends.

    The loop keeps its state in checkpoints and tells it what happens. A call changes nothing: a
    batch may come in parts.
    """

    @abstractmethod
    def __call__(self, model: Any, batch: Any, carry: Any) -> Estimate: ...

    def stepped(self, sums: Sequence[float]) -> None:
        """Called after each batch with the `Estimate.sums` of all its parts, added up."""
        return

    def validated(
        self, events: Sequence[str], progress: float, terms: Mapping[str, float]
    ) -> list[str]:
        """Hear what a validation found and led to, at which share of training; gives events of its
        own. terms: the parts of the validation loss, if it has any."""
        return []

    def held_out(self, model: Any) -> Mapping[str, float]:
        """What is worth knowing of it on text that is not learnt from, by name; read at each
        validation, with the weights that are the answer."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Learner(Stateful):
    """An objective with weights and an optimiser of its own, a critic's for instance.

    The loop steps it together with the model, and keeps it beside the best weights too.
    """

    @abstractmethod
    def parameters(self) -> Iterable[nn.Parameter]:
        """Its weights, whose gradients are summed over the processes before a step."""

    @abstractmethod
    def step(self) -> None:
        """One step of its optimiser along the gradient that has been added up."""

    @abstractmethod
    def discard(self) -> None:
        """Forget that gradient."""


class Setup(NamedTuple):
    """What an objective may be built from: the text, and the model where it will be trained."""

    corpus: Corpus
    model: Any
    device: torch.device
    seed: int

    def counts(self) -> Tensor:
        """How often each type is in the training split, (V,)."""
        return torch.from_numpy(self.corpus.counts()).to(self.device)

    def word_counts(self) -> Tensor:
        """The same of words, which the end of a line is not."""
        return torch.from_numpy(self.corpus.word_counts()).to(self.device)


Needs = Mapping[str, tuple[str, ...]]
Releases = Mapping[str, Mapping[str, tuple[str, ...]]]


class ObjectiveConfig(Section):
    """The section of a recipe that says what is learnt. Every kind is registered.

    needs: what the other sections must be: key -> values it may have, the usual one first. On the
    command line an objective brings along what it needs. releases: key -> value -> keys that mean
    nothing with that value; on the command line, that value sets them back to their defaults.
    """

    of_all_words: ClassVar[bool] = True
    """Whether the true word is told from all others: else losses of other settings do not compare.
    """
    needs: ClassVar[Needs] = {}
    releases: ClassVar[Releases] = {}
    if TYPE_CHECKING:
        kind: str

    @abstractmethod
    def build(self, setup: Setup) -> Objective:
        """The objective."""

    @property
    def words(self) -> str:
        """What a report calls it."""
        return f"objective {self.kind}"

    @classmethod
    def learns(cls, model: ModelConfig) -> bool:
        """Whether such a model can learn by it, whatever else it needs."""
        kinds, can = cls.needs.get("model.kind"), cls.needs.get("model.capability")
        return model.kind in kinds if kinds else model.capability in (can or ())

    def unmet(self, recipe: Any) -> list[str]:
        """What it needs besides `needs` and does not find, each as something to do."""
        return []

    def fault(self, recipe: Any) -> str | None:
        """What else is wrong with a recipe whose sections are of the right kinds, in a sentence."""
        return None

    def by_parts(self, model: Any) -> str:
        """What differs where a batch is read in parts, one after another; mostly nothing."""
        return ""


OBJECTIVES: Registry[ObjectiveConfig] = Registry("infolm.objectives")


class RegulariserConfig(Section):
    """The section of a recipe that adds a term to the objective. Every one is registered.

    kind: its name, in the recipe, the metrics and the run's folder. about: a line on it.
    """

    kind: ClassVar[str]
    about: ClassVar[str]
    weight: float

    @abstractmethod
    def build(self, setup: Setup) -> tuple[Feed, Objective]:
        """What the term reads, and what it makes of that."""

    def fault(self, recipe: Any) -> str | None:
        """Why it cannot be added to this recipe, in a sentence."""
        return None

    def by_parts(self, model: Any) -> str:
        """As of an objective."""
        return ""


REGULARISERS: Registry[RegulariserConfig] = Registry("infolm.objectives")
