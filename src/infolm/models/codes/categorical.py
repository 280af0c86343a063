"""Codes of several categorical variables, under a uniform prior."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from infolm.models.codes.base import CODES, CodeConfig, Latent, Prior, Uniform, all_rows
from infolm.nn.contrast import wide
from infolm.nn.draws import drawn, spread


@CODES.register
class CategoricalConfig(CodeConfig):
    """A code of several categorical variables; the prior is uniform."""

    middle: ClassVar[str] = "likeliest"
    kind: Literal["categorical"] = "categorical"
    variables: int = Field(8, ge=1, description="categorical variables of z")
    classes: int = Field(10, ge=2, description="classes of each")
    embedding: int = Field(128, ge=1, description="size of the decoder's input for z")

    @property
    def width(self) -> int:
        return self.embedding

    @property
    def words(self) -> str:
        plural = "s"[: self.variables != 1]
        return f"a code of {self.variables:,} variable{plural} with {self.classes:,} classes"

    @property
    def places(self) -> int:
        return self.variables

    @property
    def vector_size(self) -> int:
        return self.variables * self.classes

    def build(self, inputs: int) -> "CategoricalLatent":
        return CategoricalLatent(self, inputs)


class Categories(NamedTuple):
    """q(z | x) = prod_l q(z_l | x), ln q(z_l = c | x) = log_probs[:, l, c]; (B, L, C).

    Codes are whole numbers, (..., B, L).
    """

    log_probs: Tensor

    @classmethod
    def joined(cls, parts: Sequence["Categories"], order: Tensor) -> "Categories":
        return cls(all_rows([part.log_probs for part in parts], order))

    def sample(self, count: int) -> Tensor:
        """`count` codes of each sentence, (K, B, L); there is no gradient through them."""
        batch, variables, classes = self.log_probs.shape
        own = self.log_probs.detach().exp()

        def choose(shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
            rows = spread(own, shape[0]).view(-1, classes)
            return torch.multinomial(rows, count, replacement=True, generator=generator).view(
                *shape
            )

        codes = drawn(choose, (batch, variables, count), own.device, dim=0)
        return codes.permute(2, 0, 1).contiguous()

    def log_density(self, z: Tensor) -> Tensor:
        log_probs = self.log_probs.expand(*z.shape, -1)
        return log_probs.gather(-1, z[..., None]).squeeze(-1).sum(-1)

    def log_prior(self, z: Tensor) -> Tensor:
        """-L ln C: (..., B, L) -> (..., B)."""
        _, variables, classes = self.log_probs.shape
        return self.log_probs.new_full(z.shape[:-1], -variables * math.log(classes))

    def kl(self) -> Tensor:
        """KL(q(z_l | x) || uniform) of each variable, (B, L)."""
        return (self.log_probs.exp() * self.log_probs).sum(-1) + math.log(self.log_probs.shape[-1])

    def stopped(self) -> "Categories":
        return Categories(self.log_probs.detach())

    @property
    def prior(self) -> Prior:
        return Uniform(*self.log_probs.shape[1:])

    @property
    def centre(self) -> Tensor:
        """The likeliest classes, (B, L)."""
        return self.log_probs.argmax(-1)

    @property
    def places(self) -> Tensor:
        return self.centre

    @property
    def certain(self) -> bool:
        return False

    @property
    def over_classes(self) -> "Categories":
        return self

    @property
    def gaussian(self) -> None:
        return None

    @property
    def sentence_vectors(self) -> Tensor:
        """The probabilities of all classes side by side, so that the product of two vectors is the
        number of variables on which codes drawn for the two sentences agree, on average."""
        return self.log_probs.exp().flatten(1)

    def with_densities(self, z: Tensor) -> "tuple[Categories, Tensor]":
        return self, z

    def rows(self, numbers: Tensor) -> "Categories":
        return Categories(self.log_probs[numbers])

    def widened(self, scale: float) -> "Categories":
        """Unchanged: classes have no width."""
        return self

    def drawn(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` codes of each sentence, (K, B, L)."""
        probabilities = self.log_probs.exp().flatten(0, 1)
        drawn = torch.multinomial(probabilities, count, True, generator=generator)
        return drawn.t().reshape(count, *self.log_probs.shape[:2])

    def one_drawn(self, generator: torch.Generator) -> Tensor:
        return self.drawn(1, generator)[0]

    def log_densities(self, z: Tensor) -> Tensor:
        """ln q(z_i | x_j) of M codes and N sentences, (M, N)."""
        total = torch.zeros(len(z), len(self.log_probs), dtype=torch.float64)
        for log_probs, classes in zip(self.log_probs.unbind(1), z.unbind(1), strict=True):
            total += log_probs.T[classes]
        return total


class CategoricalLatent(Latent):
    """q(z_l | x) = softmax(A_l h + a_l); the decoder reads the sum of the classes' embeddings.

    Since every decoder then applies a matrix, a sum loses nothing compared with concatenation.
    """

    config: CategoricalConfig

    def __init__(self, config: CategoricalConfig, inputs: int) -> None:
        super().__init__()
        self.config = config
        self.logits = nn.Linear(inputs, config.variables * config.classes)
        deviation = 1 / math.sqrt(config.variables)
        self.embedding = nn.Parameter(
            deviation * torch.randn(config.variables * config.classes, config.embedding)
        )

    def forward(self, h: Tensor) -> Categories:
        logits = wide(self.logits(h)).view(h.shape[0], self.config.variables, self.config.classes)
        return Categories(logits.log_softmax(-1))

    def read(self, z: Tensor) -> Tensor:
        """sum_l e_l(z_l): (..., L) -> (..., width)."""
        first = torch.arange(self.config.variables, device=z.device) * self.config.classes
        rows = (z + first).reshape(-1, self.config.variables)
        return functional.embedding_bag(rows, self.embedding, mode="sum").view(
            *z.shape[:-1], self.config.width
        )
