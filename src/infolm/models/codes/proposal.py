"""The distribution of codes given a sentence, whatever their kind."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from infolm.models.codes.base import Prior
from infolm.models.codes.categorical import Categories
from infolm.models.codes.gaussian import Posterior


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
    def over_classes(self) -> Categories | None:
        """q(z | x) as a distribution of classes; None for a Gaussian code."""
        ...

    @property
    def gaussian(self) -> Posterior | None:
        """q(z | x) as a Gaussian; None for a code of classes."""
        ...

    @property
    def sentence_vectors(self) -> Tensor:
        """A vector of each sentence, (B, D), through which gradients reach the encoder."""
        ...

    def with_densities(self, z: Tensor) -> tuple[Posterior | Categories, Tensor]:
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
