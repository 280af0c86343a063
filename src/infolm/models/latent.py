"""Latent codes: their distributions given a sentence, and the decoder's input.

A code is Gaussian, categorical or quantised. Each kind is a config, a distribution q(z | x) of the
codes of B sentences with its prior, and a module that computes q from an encoder's vector and the
decoder's input from codes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn
from torch.nn import functional

from infolm.data.sentences import SentenceBatch
from infolm.models.base import Model
from infolm.nn.cells.base import State
from infolm.nn.contrast import wide
from infolm.nn.draws import drawn, normal, spread, together
from infolm.nn.gather import gather, own_rows
from infolm.nn.softmax import Softmax
from infolm.registry import with_kind
from infolm.section import Section

IDLE = 0.1
"""An entry of a codebook used less than this share of the mean is reset."""


class GaussianConfig(Section):
    """A Gaussian code with a diagonal covariance; the prior is N(0, 1)."""

    classes: ClassVar[int] = 0
    """Classes per variable; a Gaussian code has none."""
    middle: ClassVar[str] = "mean"
    """The name of the central code of q(z | x)."""
    certain: ClassVar[bool] = False
    """Whether q(z | x) has only one code."""
    kind: Literal["gaussian"] = "gaussian"
    size: int = Field(128, ge=1, description="dimensions of z")
    least_log_variance: float = Field(
        -10.0, description="floor of ln sigma^2; the loss of mim has no minimum without one"
    )
    batch_norm: float | None = Field(
        None, gt=0, description="standard deviation of the means by batch normalisation; none: off"
    )

    @property
    def width(self) -> int:
        """Columns of what the decoder reads of a code."""
        return self.size

    @property
    def words(self) -> str:
        """A description of the code."""
        return f"a code of {self.size:,} dimension{'s'[: self.size != 1]}"

    @property
    def places(self) -> int:
        """Columns of `Posterior.places`."""
        return self.size

    @property
    def vector_size(self) -> int:
        """Columns of `Posterior.sentence_vectors`."""
        return self.size


class CategoricalConfig(Section):
    """A code of several categorical variables; the prior is uniform."""

    middle: ClassVar[str] = "likeliest"
    certain: ClassVar[bool] = False
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


class QuantisedConfig(Section):
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


AnyLatentConfig = GaussianConfig | CategoricalConfig | QuantisedConfig
LatentConfig = Annotated[
    AnyLatentConfig,
    Field(discriminator="kind"),
    BeforeValidator(partial(with_kind, "gaussian")),
]


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


class StandardNormal:
    """N(0, 1), which models with Gaussian codes are trained with."""

    name = "N(0, 1)"
    source = None

    def log_density(self, z: Tensor) -> Tensor:
        return log_prior(z)


NORMAL = StandardNormal()


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


class Posterior(NamedTuple):
    """q(z | x) = N(mean, exp(log_variance)) of B sentences, (B, Z) each."""

    mean: Tensor
    log_variance: Tensor

    @classmethod
    def joined(cls, parts: Sequence["Posterior"], order: Tensor) -> "Posterior":
        """Of all sentences of `parts`, in `order`, in double precision on the CPU."""
        return cls(*(_joined(side, order) for side in zip(*parts, strict=True)))

    def at(self, noise: Tensor) -> Tensor:
        """z = mean + sigma noise, so that gradients reach both; noise: (..., B, Z)."""
        return self.mean + (0.5 * self.log_variance).exp() * noise

    def sample(self, count: int) -> Tensor:
        """`count` codes of each sentence, (K, B, Z), by reparametrisation."""
        shape = (count, *self.mean.shape)
        return self.at(normal(shape, 1, torch.float, torch.device("cpu")).to(self.mean))

    def log_density(self, z: Tensor) -> Tensor:
        """ln q(z | x): (..., B, Z) -> (..., B)."""
        scaled = (z - self.mean).square() / self.log_variance.exp()
        return -0.5 * (scaled + self.log_variance + math.log(2 * math.pi)).sum(-1)

    def log_prior(self, z: Tensor) -> Tensor:
        """ln p(z): (..., B, Z) -> (..., B)."""
        return log_prior(z)

    def kl(self) -> Tensor:
        """KL(q(z_d | x) || N(0, 1)) of each dimension, (B, Z)."""
        return 0.5 * (self.mean.square() + self.log_variance.exp() - 1 - self.log_variance)

    def stopped(self) -> "Posterior":
        """The same, without gradient."""
        return Posterior(self.mean.detach(), self.log_variance.detach())

    @property
    def prior(self) -> Prior:
        """The prior that the model was trained with."""
        return NORMAL

    @property
    def centre(self) -> Tensor:
        """The code in the middle of q(z | x), (B, Z)."""
        return self.mean

    @property
    def places(self) -> Tensor:
        """The positions of sentences among codes: vectors, or class numbers."""
        return self.mean

    @property
    def certain(self) -> bool:
        """Whether q(z | x) has only one code."""
        return False

    @property
    def over_classes(self) -> "Categories | None":
        """q(z | x) as a distribution of classes; None for a Gaussian code."""
        return None

    @property
    def gaussian(self) -> "Posterior | None":
        """q(z | x) as a Gaussian; None for a code of classes."""
        return self

    @property
    def sentence_vectors(self) -> Tensor:
        """A vector of each sentence, (B, D), through which gradients reach the encoder."""
        return self.mean

    def with_densities(self, z: Tensor) -> "tuple[Posterior | Categories, Tensor]":
        """q(z | x) and codes z such that every code has a density under every sentence's q."""
        return self, z

    def rows(self, numbers: Tensor) -> "Posterior":
        """Of the sentences with these numbers, in this order."""
        return Posterior(self.mean[numbers], self.log_variance[numbers])

    def widened(self, scale: float) -> "Posterior":
        """N(mean, (scale sigma)^2)."""
        return self._replace(log_variance=self.log_variance + 2 * math.log(scale))

    def drawn(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` codes of each sentence, (K, B, Z), in double precision."""
        return self.at(torch.randn(count, *self.mean.shape, generator=generator).double())

    def one_drawn(self, generator: torch.Generator) -> Tensor:
        """One code of each sentence, (B, Z), of noise in double precision."""
        return self.at(torch.randn(self.mean.shape, generator=generator, dtype=torch.float64))

    def log_densities(self, z: Tensor) -> Tensor:
        """ln q(z_i | x_j) of M codes and N sentences, (M, N), by one matrix product.

            -1/2 sum_d [z_d^2 / v_d - 2 z_d m_d / v_d + m_d^2 / v_d + ln 2 pi v_d]

        The terms cancel: with v = e^-10 and 512 dimensions they sum to 10^7 and their sum to
        hundreds. So this is done in double precision, which leaves an error of some 10^-8.
        """
        mean, log_variance = self.mean.double(), self.log_variance.double()
        precision = (-log_variance).exp()
        constant = (mean.square() * precision + log_variance + math.log(2 * math.pi)).sum(1)
        z = z.double()
        squares = torch.cat([z.square(), z], 1) @ torch.cat([precision, -2 * mean * precision], 1).T
        return squares.add_(constant).mul_(-0.5)


def _joined(parts: Sequence[Tensor], order: Tensor) -> Tensor:
    rows = torch.cat([part.cpu() for part in parts])[order]
    return rows.double() if rows.is_floating_point() else rows


def log_prior(z: Tensor) -> Tensor:
    """ln N(z; 0, 1): (..., Z) -> (...)."""
    return -0.5 * (z.square() + math.log(2 * math.pi)).sum(-1)


class Categories(NamedTuple):
    """q(z | x) = prod_l q(z_l | x), ln q(z_l = c | x) = log_probs[:, l, c]; (B, L, C).

    Codes are whole numbers, (..., B, L).
    """

    log_probs: Tensor

    @classmethod
    def joined(cls, parts: Sequence["Categories"], order: Tensor) -> "Categories":
        return cls(_joined([part.log_probs for part in parts], order))

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
        """ln q(z | x): (..., B, L) -> (..., B)."""
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
        """The same, without gradient."""
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
        joined = [_joined(side, order) for side in (vectors, codes, entries)]
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
        """The same, without gradient."""
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


Proposal = Posterior | Categories | Quantised
"""q(z | x) of B sentences, and the prior that goes with it."""


class GaussianLatent(nn.Module):
    """q(z | x) = N(A h + a, diag exp(max(B h + b, least_log_variance))); the decoder reads z.

    With `batch_norm` the means are normalised over the batch and scaled to that standard deviation,
    with a learnt shift (Zhu et al. 2020, "A Batch Normalized Inference Network Keeps the KL
    Vanishing Away"); outside training by running averages.
    """

    def __init__(self, config: GaussianConfig, inputs: int) -> None:
        super().__init__()
        self.config = config
        self.mean = nn.Linear(inputs, config.size)
        self.log_variance = nn.Linear(inputs, config.size)
        self.norm = None
        if config.batch_norm is not None:
            self.norm = nn.BatchNorm1d(config.size)
            nn.init.constant_(self.norm.weight, config.batch_norm)
            self.norm.weight.requires_grad_(False)

    def forward(self, h: Tensor) -> Posterior:
        """h: (B, inputs), the encoder's output for B sentences."""
        mean, log_variance = wide(self.mean(h)), wide(self.log_variance(h))
        if self.norm is not None:
            # Over the batch of all processes; outside training each row is by itself.
            own = own_rows(mean) if self.training else slice(None)
            mean = self.norm(gather(mean) if self.training else mean)[own]
        return Posterior(mean, log_variance.clamp(min=self.config.least_log_variance))

    def read(self, z: Tensor) -> Tensor:
        """The decoder's input for z, (..., width)."""
        return z

    def code(self, places: Tensor) -> Tensor:
        """The codes that a decoder takes for `Posterior.places`."""
        return places


class CategoricalLatent(nn.Module):
    """q(z_l | x) = softmax(A_l h + a_l); the decoder reads the sum of the classes' embeddings.

    Since every decoder then applies a matrix, a sum loses nothing compared with concatenation.
    """

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

    def code(self, places: Tensor) -> Tensor:
        return places


class QuantisedLatent(nn.Module):
    """z_l = the entry nearest to A_l h + a_l in the codebook of variable l.

    The codebook is not trained by gradient: its entries are running means of the vectors that chose
    them (van den Oord et al. 2017, appendix A.1), which `follow` updates.
    """

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


Latent = GaussianLatent | CategoricalLatent | QuantisedLatent


_MODULES: dict[str, Any] = {
    "gaussian": GaussianLatent,
    "categorical": CategoricalLatent,
    "quantised": QuantisedLatent,
}


def build_latent(config: AnyLatentConfig, inputs: int) -> Latent:
    """The module that `config` describes, for a vector of size `inputs`."""
    module: Latent = _MODULES[config.kind](config, inputs)
    return module


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
