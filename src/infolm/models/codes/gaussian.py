"""Gaussian codes with a diagonal covariance, under a standard normal prior."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from infolm.models.codes.base import CODES, CodeConfig, Latent, Prior, all_rows
from infolm.nn.contrast import wide
from infolm.nn.draws import normal
from infolm.nn.gather import gather, own_rows


@CODES.register
class GaussianConfig(CodeConfig):
    """A Gaussian code with a diagonal covariance; the prior is N(0, 1)."""

    classes: ClassVar[int] = 0
    middle: ClassVar[str] = "mean"
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
        return self.size

    @property
    def words(self) -> str:
        return f"a code of {self.size:,} dimension{'s'[: self.size != 1]}"

    @property
    def places(self) -> int:
        return self.size

    @property
    def vector_size(self) -> int:
        return self.size

    def build(self, inputs: int) -> "GaussianLatent":
        return GaussianLatent(self, inputs)


class StandardNormal:
    """N(0, 1), which models with Gaussian codes are trained with."""

    name = "N(0, 1)"
    source = None

    def log_density(self, z: Tensor) -> Tensor:
        return log_prior(z)


NORMAL = StandardNormal()


def log_prior(z: Tensor) -> Tensor:
    """ln N(z; 0, 1): (..., Z) -> (...)."""
    return -0.5 * (z.square() + math.log(2 * math.pi)).sum(-1)


class Posterior(NamedTuple):
    """q(z | x) = N(mean, exp(log_variance)) of B sentences, (B, Z) each."""

    mean: Tensor
    log_variance: Tensor

    @classmethod
    def joined(cls, parts: Sequence["Posterior"], order: Tensor) -> "Posterior":
        return cls(*(all_rows(side, order) for side in zip(*parts, strict=True)))

    def at(self, noise: Tensor) -> Tensor:
        """z = mean + sigma noise, so that gradients reach both; noise: (..., B, Z)."""
        return self.mean + (0.5 * self.log_variance).exp() * noise

    def sample(self, count: int) -> Tensor:
        """`count` codes of each sentence, (K, B, Z), by reparametrisation."""
        shape = (count, *self.mean.shape)
        return self.at(normal(shape, 1, torch.float, torch.device("cpu")).to(self.mean))

    def log_density(self, z: Tensor) -> Tensor:
        scaled = (z - self.mean).square() / self.log_variance.exp()
        return -0.5 * (scaled + self.log_variance + math.log(2 * math.pi)).sum(-1)

    def log_prior(self, z: Tensor) -> Tensor:
        return log_prior(z)

    def kl(self) -> Tensor:
        """KL(q(z_d | x) || N(0, 1)) of each dimension, (B, Z)."""
        return 0.5 * (self.mean.square() + self.log_variance.exp() - 1 - self.log_variance)

    def stopped(self) -> "Posterior":
        return Posterior(self.mean.detach(), self.log_variance.detach())

    @property
    def prior(self) -> Prior:
        return NORMAL

    @property
    def centre(self) -> Tensor:
        return self.mean

    @property
    def places(self) -> Tensor:
        return self.mean

    @property
    def certain(self) -> bool:
        return False

    @property
    def over_classes(self) -> None:
        return None

    @property
    def gaussian(self) -> "Posterior":
        return self

    @property
    def sentence_vectors(self) -> Tensor:
        return self.mean

    def with_densities(self, z: Tensor) -> "tuple[Posterior, Tensor]":
        return self, z

    def rows(self, numbers: Tensor) -> "Posterior":
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


class GaussianLatent(Latent):
    """q(z | x) = N(A h + a, diag exp(max(B h + b, least_log_variance))); the decoder reads z.

    With `batch_norm` the means are normalised over the batch and scaled to that standard deviation,
    with a learnt shift (Zhu et al. 2020, "A Batch Normalized Inference Network Keeps the KL
    Vanishing Away"); outside training by running averages.
    """

    config: GaussianConfig

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
