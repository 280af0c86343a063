"""The codes of a VQ-VAE: entries of codebooks, under a uniform prior."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from infolm.models.codes.base import CODES, CodeConfig, Latent, Prior, Uniform, all_rows
from infolm.models.codes.categorical import Categories
from infolm.nn.contrast import wide
from infolm.nn.draws import drawn, together

IDLE = 0.1
"""An entry of a codebook used less than this share of the mean is reset."""


@CODES.register
class QuantisedConfig(CodeConfig):
    """The code of a VQ-VAE: the nearest entry of a codebook for each variable; a uniform prior."""

    middle: ClassVar[str] = "nearest"
    certain: ClassVar[bool] = True
    kind: Literal["quantised"] = "quantised"
    variables: int = Field(8, ge=1, description="variables of z, with a codebook each")
    classes: int = Field(10, ge=2, description="entries of a codebook")
    embedding: int = Field(128, ge=1, description="size of an entry")

    @property
    def width(self) -> int:
        return self.variables * self.embedding

    @property
    def words(self) -> str:
        return (
            f"a code of {self.variables:,} codebook{'s'[: self.variables != 1]} with "
            f"{self.classes:,} entries of {self.embedding:,} columns"
        )

    @property
    def places(self) -> int:
        return self.variables

    @property
    def vector_size(self) -> int:
        return self.width

    def build(self, inputs: int) -> "QuantisedLatent":
        return QuantisedLatent(self, inputs)


class Quantised(NamedTuple):
    """The code of a VQ-VAE, whose q(z | x) is deterministic.

    vectors (B, L, D): the encoder's output. codes (B, L): the number of the nearest entry of each
    variable's codebook. entries (B, L, D): that entry. classes: C. Codes are as vectors
    (..., B, L D), what the decoder reads.
    """

    vectors: Tensor
    codes: Tensor
    entries: Tensor
    classes: int

    @classmethod
    def joined(cls, parts: Sequence["Quantised"], order: Tensor) -> "Quantised":
        vectors, codes, entries, classes = zip(*parts, strict=True)
        joined = [all_rows(side, order) for side in (vectors, codes, entries)]
        return cls(joined[0], joined[1], joined[2], classes[0])

    def sample(self, count: int) -> Tensor:
        """The one code, `count` times, (K, B, L D); its gradient goes straight through to the
        encoder's vectors (van den Oord et al. 2017, section 3.2)."""
        straight = self.vectors + (self.entries - self.vectors).detach()
        return straight.flatten(1).expand(count, -1, -1)

    def log_density(self, z: Tensor) -> Tensor:
        """0, of the one code: (..., B, L D) -> (..., B)."""
        return z.new_zeros(z.shape[:-1])

    def log_prior(self, z: Tensor) -> Tensor:
        """-L ln C: (..., B, L D) -> (..., B)."""
        return z.new_full(z.shape[:-1], -self.codes.shape[1] * math.log(self.classes))

    def kl(self) -> Tensor:
        """ln C of each variable, (B, L)."""
        return self.vectors.new_full(self.codes.shape, math.log(self.classes))

    def stopped(self) -> "Quantised":
        return self._replace(vectors=self.vectors.detach(), entries=self.entries.detach())

    @property
    def prior(self) -> Prior:
        return Uniform(self.codes.shape[1], self.classes)

    @property
    def centre(self) -> Tensor:
        """The one code there is, (B, L D)."""
        return self.entries.flatten(1)

    @property
    def places(self) -> Tensor:
        return self.codes

    @property
    def certain(self) -> bool:
        return True

    @property
    def over_classes(self) -> Categories:
        """As a distribution that is certain of its classes, (B, L, C)."""
        return Categories(functional.one_hot(self.codes, self.classes).double().log())

    @property
    def gaussian(self) -> None:
        return None

    @property
    def sentence_vectors(self) -> Tensor:
        """The entries side by side; their gradient goes straight to what the encoder made."""
        return self.sample(1)[0]

    def with_densities(self, z: Tensor) -> tuple[Categories, Tensor]:
        """Classes, as entries have no density."""
        return self.over_classes, self.codes

    def rows(self, numbers: Tensor) -> "Quantised":
        sides = self.vectors[numbers], self.codes[numbers], self.entries[numbers]
        return Quantised(*sides, self.classes)

    def widened(self, scale: float) -> "Quantised":
        """Unchanged: there is one code."""
        return self

    def drawn(self, count: int, generator: torch.Generator) -> Tensor:
        """The one code, `count` times, (K, B, L D)."""
        return self.centre.expand(count, -1, -1)

    def one_drawn(self, generator: torch.Generator) -> Tensor:
        return self.centre


class QuantisedLatent(Latent):
    """z_l = the entry nearest to A_l h + a_l in the codebook of variable l.

    The codebook is not trained by gradient: its entries are running means of the vectors that chose
    them (van den Oord et al. 2017, appendix A.1), which `follow` updates.
    """

    config: QuantisedConfig
    codebook: Tensor
    count: Tensor
    total: Tensor

    def __init__(self, config: QuantisedConfig, inputs: int) -> None:
        super().__init__()
        self.config = config
        self.vectors = nn.Linear(inputs, config.width)
        entries = torch.randn(config.variables, config.classes, config.embedding)
        self.register_buffer("codebook", entries)
        self.register_buffer("count", torch.zeros(config.variables, config.classes))
        self.register_buffer("total", torch.zeros_like(entries))

    def forward(self, h: Tensor) -> Quantised:
        vectors = wide(self.vectors(h)).view(
            h.shape[0], self.config.variables, self.config.embedding
        )
        mode = "use_mm_for_euclid_dist_if_necessary"
        if torch.compiler.is_exporting():  # a graph leaves open how many rows there are
            mode = "use_mm_for_euclid_dist"
        by_variable = vectors.detach().transpose(0, 1)
        distances = torch.cdist(by_variable, self.codebook, 2, mode)  # (L, B, C)
        codes = distances.argmin(-1).t()
        variables = torch.arange(self.config.variables, device=h.device)
        return Quantised(vectors, codes, self.codebook[variables, codes], self.config.classes)

    def read(self, z: Tensor) -> Tensor:
        return z

    def code(self, places: Tensor) -> Tensor:
        """The entries side by side, (..., L D)."""
        classes = places.to(self.codebook.device)
        variables = torch.arange(self.config.variables, device=classes.device)
        return self.codebook[variables, classes].flatten(1)

    @torch.no_grad()
    def follow(self, found: Quantised, decay: float) -> None:
        """n_lc <- decay n_lc + (1 - decay) |{x: z_l(x) = c}|, likewise the sums of the vectors;
        an entry is their quotient.

        An idle entry, with n below a tenth of the mean, is reset to a random vector of this batch
        (Dhariwal et al. 2020, "Jukebox", section 3.1), with a mean n. So the first batch moves all
        entries among the vectors; otherwise they would hardly be chosen.
        """
        vectors, codes = together(found.vectors), together(found.codes)
        chosen = functional.one_hot(codes, self.config.classes).to(self.codebook)  # (B, L, C)
        with torch.autocast(vectors.device.type, enabled=False):
            sums = torch.einsum("blc,bld->lcd", chosen, vectors)
        self.count.lerp_(chosen.sum(0), 1 - decay)
        self.total.lerp_(sums, 1 - decay)
        mean = self.count.mean(1, keepdim=True)
        idle = self.count < IDLE * mean
        anyone = drawn(
            lambda shape, generator: torch.randint(
                len(vectors), tuple(shape), device=idle.device, generator=generator
            ),
            idle.shape,
            idle.device,
            dim=None,
        )
        variables = torch.arange(self.config.variables, device=idle.device)[:, None]
        anew = mean[..., None] * vectors[anyone, variables]
        self.count.copy_(torch.where(idle, mean, self.count))
        self.total.copy_(torch.where(idle[..., None], anew, self.total))
        self.codebook.copy_(self.total / self.count[..., None])
