"""The interface of objectives: a bound on the quantity of interest, with named terms."""

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
"""The term beside `accuracy`: the share of cases in which the right one was tied."""


@dataclass
class Estimate:
    """An objective's value on a batch, or on a part of one.

    loss: the scalar to minimise, in nats per token (or per whatever `count` counts); of a part, its
    share of the batch's, so that the losses of all parts add up to that (`data.parts.share`).
    terms: its parts by name, without gradient, each in its own natural unit; `nll` is one of them
    where the objective is the main one.
    count: the number of tokens averaged over. per: the number of items that a term is a mean over,
    by its name, if these are not the tokens: `count` is the weight of a batch in the records.
    carry: the state to pass to the next batch (the hidden state of a stream). sums: statistics for
    a `Stateful` objective after the step, summed over all parts.
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
    """An objective with a state: a rising weight, a phase.

    The loop saves its state in checkpoints and notifies it of steps and validations. A call changes
    nothing: a batch may come in parts.
    """

    @abstractmethod
    def __call__(self, model: Any, batch: Any, carry: Any) -> Estimate: ...

    def stepped(self, sums: Sequence[float]) -> None:
        """Called after each batch with the `Estimate.sums` of all its parts, added up."""
        return

    def validated(
        self, events: Sequence[str], progress: float, terms: Mapping[str, float]
    ) -> list[str]:
        """Called after each validation with its events and the share of training done; returns
        further events. terms: the parts of the validation loss, if any."""
        return []

    def held_out(self, model: Any) -> Mapping[str, float]:
        """Its metrics on held-out text, by name; computed at each validation with the chosen
        weights."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Learner(Stateful):
    """An objective with its own parameters and optimiser, for instance a critic.

    The loop steps it together with the model, and saves it with the best weights.
    """

    @abstractmethod
    def parameters(self) -> Iterable[nn.Parameter]:
        """Its parameters, whose gradients are summed over the processes before a step."""

    @abstractmethod
    def step(self) -> None:
        """One step of its optimiser along the accumulated gradient."""

    @abstractmethod
    def discard(self) -> None:
        """Reset that gradient."""


class Setup(NamedTuple):
    """The arguments for building an objective: the text, and the model on its device."""

    corpus: Corpus
    model: Any
    device: torch.device
    seed: int

    def counts(self) -> Tensor:
        """The count of each type in the training split, (V,)."""
        return torch.from_numpy(self.corpus.counts()).to(self.device)

    def word_counts(self) -> Tensor:
        """The same for words only, without <eos>."""
        return torch.from_numpy(self.corpus.word_counts()).to(self.device)


Needs = Mapping[str, tuple[str, ...]]
Releases = Mapping[str, Mapping[str, tuple[str, ...]]]


class ObjectiveConfig(Section):
    """The section of a recipe that describes the objective. Every kind is registered.

    needs: requirements on other sections: key -> allowed values, the usual one first. On the
    command line an objective sets what it needs. releases: key -> value -> keys without meaning for
    that value; on the command line, that value resets them to their defaults.
    """

    of_all_words: ClassVar[bool] = True
    """Whether the true word is compared with all others: otherwise losses are not comparable across
    settings.
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
        """Its name in reports."""
        return f"objective {self.kind}"

    def phases(self) -> list[tuple[float, "ObjectiveConfig"]]:
        """What it is until which share of training, in order, the last until 1; usually itself.

        For those who must know how long a step takes before it is taken.
        """
        return [(1.0, self)]

    @classmethod
    def learns(cls, model: ModelConfig) -> bool:
        """Whether such a model can be trained with it, other needs aside."""
        kinds, can = cls.needs.get("model.kind"), cls.needs.get("model.capability")
        return model.kind in kinds if kinds else model.capability in (can or ())

    def unmet(self, recipe: Any) -> list[str]:
        """Unmet requirements besides `needs`, each as an instruction."""
        return []

    def fault(self, recipe: Any) -> str | None:
        """What else is wrong with a recipe whose sections are of the right kinds, in a sentence."""
        return None

    def by_parts(self, model: Any) -> str:
        """What differs if a batch is read in parts; usually nothing."""
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
        """The term's feed and objective."""

    def fault(self, recipe: Any) -> str | None:
        """Why it cannot be added to this recipe, in a sentence."""
        return None

    def by_parts(self, model: Any) -> str:
        """As for an objective."""
        return ""


REGULARISERS: Registry[RegulariserConfig] = Registry("infolm.objectives")
