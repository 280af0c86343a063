"""What a feed is: a corpus cut into the batches that a model learns from."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from infolm.registry import Registry
from infolm.section import Section

if TYPE_CHECKING:
    from infolm.data.corpora import Corpus
    from infolm.data.tokens import Tokenizer


class Feed(Protocol):
    """An endless source of batches that can say where it is and go back there."""

    epoch: int
    """Passes over the corpus that are complete."""

    def next(self) -> Any:
        """A named tuple of arrays and numbers, such as `stream.Batch`."""
        ...

    def fraction(self) -> float:
        """How much of the present pass is done, in [0, 1)."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class FeedConfig(Section):
    """The section of a recipe that says how the corpus is cut. Every kind is registered.

    gives: what its batches hold, which is what an objective needs to know: `text` (a
    `stream.Batch`), `sentences`, `sequences`, `windows` or `sentence pairs`. episodic: whether
    each sentence is read by itself, from a state of zeros, and is so measured too.
    """

    gives: ClassVar[str]
    episodic: ClassVar[bool] = False
    if TYPE_CHECKING:
        kind: str

    @abstractmethod
    def build(self, corpus: "Corpus", split: str, seed: int) -> Feed:
        """The split, cut; `seed` decides every random choice."""

    @property
    def tokens(self) -> int:
        """How many a batch has, or at least, where the text has so many."""
        return int(getattr(self, "batch", 1))

    @property
    def hidden(self) -> str:
        """What of a batch is hidden, in words after 'batches as of training'; empty: nothing."""
        return ""

    def marker(self, tokenizer: "Tokenizer") -> int | None:
        """The token of a sentence whose followers alone count, if there is one."""
        return None


FEEDS: Registry[FeedConfig] = Registry("infolm.data")
