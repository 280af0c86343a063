"""What every kind of latent code has: its section of a recipe, a distribution and a module."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from infolm.registry import Registry
from infolm.section import Section

if TYPE_CHECKING:
    from infolm.models.codes.categorical import Categories
    from infolm.models.codes.gaussian import Posterior


class CodeConfig(Section):
    """The section of a recipe that describes a code. Every kind is registered."""

    middle: ClassVar[str]
    """The name of the central code of q(z | x)."""
    certain: ClassVar[bool] = False
    """Whether q(z | x) has only one code."""
    if TYPE_CHECKING:
        kind: str

        @property
        def classes(self) -> int:
            """Classes per variable; 0 if a code has none."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Columns of what the decoder reads of a code."""

    @property
    @abstractmethod
    def words(self) -> str:
        """A description of the code."""

    @property
    @abstractmethod
    def places(self) -> int:
        """Columns of `Proposal.places`."""

    @property
    @abstractmethod
    def vector_size(self) -> int:
        """Columns of `Proposal.sentence_vectors`."""

    @abstractmethod
    def build(self, inputs: int) -> "Latent":
        """The module, for an encoder's vector of this size."""


CODES: Registry[CodeConfig] = Registry("infolm.models.codes")


class Latent(nn.Module, ABC):
    """The module of a code: `latent(h)` is q(z | x) of B sentences, of h (B, inputs), the encoder's
    output for them."""

    config: CodeConfig

    @abstractmethod
    def read(self, z: Tensor) -> Tensor:
        """The decoder's input for codes z, (..., width)."""

    def code(self, places: Tensor) -> Tensor:
        """The codes that a decoder takes for `Proposal.places`."""
        return places


class Prior(Protocol):
    """A distribution of codes."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str | None:
        """The split whose sentences it is made of; None if it is of no sentences."""
        ...

    def log_density(self, z: Tensor) -> Tensor:
        """ln p(z): (M, Z) -> (M,)."""
        ...


class Uniform(NamedTuple):
    """Uniform over all codes of L variables with C classes."""

    variables: int
    classes: int

    @property
    def name(self) -> str:
        return f"uniform over {self.classes:,}^{self.variables:,} codes"

    @property
    def source(self) -> None:
        return None

    def log_density(self, z: Tensor) -> Tensor:
        log_p = -self.variables * math.log(self.classes)
        return torch.full(z.shape[:-1], log_p, dtype=torch.float64)


class Proposal(Protocol):
    """q(z | x) of B sentences, and the prior that goes with it.

    Z: the columns of a code.
    """

    @classmethod
    def joined(cls, parts: Sequence[Any], order: Tensor) -> "Proposal":
        """Of all sentences of `parts`, in `order`, in double precision on the CPU."""
        ...

    def sample(self, count: int) -> Tensor:
        """`count` codes of each sentence, (K, B, Z), with a gradient where there can be one."""
        ...

    def log_density(self, z: Tensor) -> Tensor:
        """ln q(z | x): (..., B, Z) -> (..., B)."""
        ...

    def log_prior(self, z: Tensor) -> Tensor:
        """ln p(z): (..., B, Z) -> (..., B)."""
        ...

    def kl(self) -> Tensor:
        """KL(q(z_d | x) || p(z_d)) of each dimension or variable, (B, D)."""
        ...

    def stopped(self) -> "Proposal":
        """The same, without gradient."""
        ...

    @property
    def prior(self) -> Prior:
        """The prior that the model was trained with."""
        ...

    @property
    def centre(self) -> Tensor:
        """The code in the middle of q(z | x), (B, Z)."""
        ...

    @property
    def places(self) -> Tensor:
        """The positions of sentences among codes: vectors, or class numbers."""
        ...

    @property
    def certain(self) -> bool:
        """Whether q(z | x) has only one code."""
        ...

    @property
    def over_classes(self) -> "Categories | None":
        """q(z | x) as a distribution of classes; None for a Gaussian code."""
        ...

    @property
    def gaussian(self) -> "Posterior | None":
        """q(z | x) as a Gaussian; None for a code of classes."""
        ...

    @property
    def sentence_vectors(self) -> Tensor:
        """A vector of each sentence, (B, D), through which gradients reach the encoder."""
        ...

    def with_densities(self, z: Tensor) -> "tuple[Posterior | Categories, Tensor]":
        """q(z | x) and codes z such that every code has a density under every sentence's q."""
        ...

    def rows(self, numbers: Tensor) -> "Proposal":
        """Of the sentences with these numbers, in this order."""
        ...

    def widened(self, scale: float) -> "Proposal":
        """With `scale` times the standard deviations, where there are any."""
        ...

    def drawn(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` codes of each sentence, (K, B, Z), in double precision or whole numbers."""
        ...

    def one_drawn(self, generator: torch.Generator) -> Tensor:
        """One code of each sentence, (B, Z)."""
        ...


def all_rows(parts: Sequence[Tensor], order: Tensor) -> Tensor:
    """Rows of all parts, in `order`, on the CPU; numbers in double precision."""
    rows = torch.cat([part.cpu() for part in parts])[order]
    return rows.double() if rows.is_floating_point() else rows
