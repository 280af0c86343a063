"""What every kind of latent code has: its section of a recipe, its prior and its module."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from infolm.registry import Registry
from infolm.section import Section


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


def all_rows(parts: Sequence[Tensor], order: Tensor) -> Tensor:
    """Rows of all parts, in `order`, on the CPU; numbers in double precision."""
    rows = torch.cat([part.cpu() for part in parts])[order]
    return rows.double() if rows.is_floating_point() else rows
