"""The interface of feeds: a corpus cut into training batches."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from infolm.registry import Registry
from infolm.section import Section

if TYPE_CHECKING:
    from infolm.data.corpora import Corpus
    from infolm.data.tokens import Tokenizer


class Feed(Protocol):
    """An endless source of batches whose position can be saved and restored."""

    epoch: int
    """Complete passes over the corpus."""

    def next(self) -> Any:
        """A named tuple of arrays and numbers, such as `stream.Batch`."""
        ...

    def fraction(self) -> float:
        """The share of the present pass that is done, in [0, 1)."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class FeedConfig(Section):
    """The section of a recipe that defines the batches. Every kind is registered.

    gives: the content of its batches, which an objective requires: `text` (a
    `stream.Batch`), `sentences`, `sequences`, `windows` or `sentence pairs`. episodic: whether each
    sentence is read and measured by itself, from a state of zeros.
    """

    gives: ClassVar[str]
    episodic: ClassVar[bool] = False
    if TYPE_CHECKING:
        kind: str

    @abstractmethod
    def build(self, corpus: "Corpus", split: str, seed: int) -> Feed:
        """The feed of a split; `seed` determines every random choice."""

    @property
    def tokens(self) -> int:
        """The number of columns per batch, or the minimum, if the text is long enough."""
        return int(getattr(self, "batch", 1))

    @property
    def hidden(self) -> str:
        """The hidden part of a batch in words, after 'batches as of training'; empty: nothing."""
        return ""

    def marker(self, tokenizer: "Tokenizer") -> int | None:
        """The token after which tokens of a sentence count, if there is one."""
        return None


FEEDS: Registry[FeedConfig] = Registry("infolm.data")
