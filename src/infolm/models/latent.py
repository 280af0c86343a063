"""Models with a latent code.

A code is Gaussian, categorical or quantised. Each kind is a file of `models/codes`: a section of
the recipe, a distribution q(z | x) of the codes of B sentences with its prior, and a module that
computes q from an encoder's vector and the decoder's input from codes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from torch import Tensor, nn

from infolm.data.sentences import SentenceBatch
from infolm.models.base import Model
from infolm.models.codes.base import CODES, CodeConfig, Latent
from infolm.nn.cells.base import State
from infolm.nn.softmax import Softmax

if TYPE_CHECKING:
    LatentConfig: TypeAlias = CodeConfig
else:
    LatentConfig = CODES.section("gaussian")


class LatentModel(Model, ABC):
    """A model with a latent code: q(z | x), a prior p(z), and p(x | z).

    config: has the code's section, `latent`. latent: the code's module. Texts come as packed rows:
    see `data.sentences.SentenceBatch`.
    """

    ends: ClassVar[bool]
    """Whether the <eos> of a text is predicted, and counts as a token."""
    config: Any
    embedding: nn.Parameter
    latent: Latent
    softmax: Softmax

    @abstractmethod
    def encode(self, read: Tensor, sizes: Sequence[int]) -> Any:
        """q(z | x) of B texts in packed rows, read backwards: a `Proposal`."""

    @abstractmethod
    def initial_state(self, z: Tensor) -> list[State]:
        """The decoder's state before the first word, of codes z (B, ...)."""

    @abstractmethod
    def step(self, words: Tensor, z: Tensor, state: list[State]) -> tuple[Tensor, list[State]]:
        """One word (B,) further: what predicts the next, (B, H), and the state. No dropout."""

    def log_probs(self, hidden: Tensor) -> Tensor:
        """ln p over the whole vocabulary, (..., V)."""
        return self.softmax.log_probs(hidden, self.embedding)

    @abstractmethod
    def log_likelihood_parts(self, z: Tensor, batch: SentenceBatch) -> tuple[Tensor, Tensor]:
        """ln p(w_1 ... w_n | z) and ln p(<eos> | w_1 ... w_n, z) of a code of each text, (B,)
        each, in double precision on the CPU, without gradient."""

    @abstractmethod
    def log_likelihood(self, z: Tensor, batch: SentenceBatch, own: bool = False) -> Tensor:
        """ln p(x | z) of K codes of each text, z (K, B, ...) -> (K, B), differentiable.

        own: every code has its own dropout masks; otherwise the codes of a text share them.
        """
