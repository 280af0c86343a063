"""Critics: scores of pairs, T(x, y), for the bounds of `infolm.information.bounds`.

    critic(x, y): (..., N, X), (..., M, Y) -> (..., N, M), the scores of all pairs

`group` says how many rows are best scored against each other in training: a separable critic scores
all pairs of a batch by one matrix product, the others run a network on every pair. Every critic
is 0 before training, so that it can start as a correction of another.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from infolm.errors import InfolmError

HIDDEN = 128
PAIR_HIDDEN = 128
EMBEDDING = 64
BMI_HIDDEN = 500
FLOOR = -30.0  # nats


def perceptron(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers of these sizes with SiLU between."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def silent(network: nn.Sequential) -> nn.Sequential:
    """The network with an output of 0."""
    for parameter in network[-1].parameters():
        nn.init.zeros_(parameter)
    return network


class Critic(nn.Module, ABC):
    """The interface of critics."""

    group: int

    @abstractmethod
    def forward(self, x: Tensor, y: Tensor) -> Tensor: ...


class Separable(Critic):
    """T(x, y) = g(x) . h(y).

    The biases of the last layers add functions of x and of y alone.
    """

    group = 256

    def __init__(self, x_size: int, y_size: int, rank: int = 32) -> None:
        super().__init__()
        self.g = perceptron([x_size, HIDDEN, HIDDEN, rank])
        self.h = silent(perceptron([y_size, HIDDEN, HIDDEN, rank]))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.g(x) @ self.h(y).transpose(-1, -2)


class Bilinear(Critic):
    """T(x, y) = x' W y, with x' = (x, 1): log-bilinear, as in van den Oord et al. (2018)."""

    group = 256

    def __init__(self, x_size: int, y_size: int) -> None:
        super().__init__()
        self.weight = silent(nn.Sequential(nn.Linear(x_size, y_size)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.weight(x) @ y.transpose(-1, -2)


class Concatenated(Critic):
    """T(x, y) = f(x, y), a network on both."""

    group = 32

    def __init__(self, x_size: int, y_size: int) -> None:
        super().__init__()
        self.of_x = nn.Linear(x_size, PAIR_HIDDEN)
        self.of_y = nn.Linear(y_size, PAIR_HIDDEN)
        self.rest = silent(perceptron([PAIR_HIDDEN, PAIR_HIDDEN, 1]))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        # The first layer of (x, y) is a sum, so it is computed once a row, not once a pair.
        first = self.of_x(x).unsqueeze(-2) + self.of_y(y).unsqueeze(-3)
        return self.rest(nn.functional.silu(first)).squeeze(-1)


class FiveWay(Critic):
    """T(x, y) = f(x, y, x - y, |x - y|, x * y), with one hidden layer of 500 units: BMI's critic D.

    x and y are encodings of the same size; in BMI, of two sentences. dropout: of the hidden units.
    """

    group = 32

    def __init__(
        self, x_size: int, y_size: int, hidden: int = BMI_HIDDEN, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if x_size != y_size:
            raise InfolmError(
                f"the five-way critic compares x and y, which must be of one size, not {x_size} "
                f"and {y_size}: choose another critic"
            )
        # The first layer of x, y and x - y is again a sum of a layer of x and one of y.
        self.of_x = nn.Linear(x_size, hidden)
        self.of_y = nn.Linear(x_size, hidden, bias=False)
        self.of_both = nn.Linear(2 * x_size, hidden, bias=False)
        self.dropout = nn.Dropout(dropout)  # before the rectifier it is the same as after
        self.rest = silent(nn.Sequential(nn.ReLU(), nn.Linear(hidden, 1)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = x.unsqueeze(-2), y.unsqueeze(-3)
        both = self.of_both(torch.cat([(a - b).abs(), a * b], -1))
        return self.rest(self.dropout(self.of_x(a) + self.of_y(b) + both)).squeeze(-1)


class GaussianRatio(Critic):
    """ln p(x, y) / p(x) p(y) of a Gaussian in canonical coordinates, plus a correction.

    T = sum_i [rho_i x_i y_i - rho_i^2 (x_i^2 + y_i^2) / 2] / (1 - rho_i^2) - 1/2 ln(1 - rho_i^2)
        + C(x, y)

    Never below `FLOOR`: less likely pairs do not matter, and exponentials of very negative numbers
    are slow denormals.
    """

    def __init__(self, rho: Tensor, correction: Critic) -> None:
        super().__init__()
        self.group = correction.group
        self.correction = correction
        self.rho: Tensor
        self.register_buffer("rho", rho)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        size, rest = len(self.rho), 1 - self.rho.square()
        u, v = x[..., :size], y[..., :size]
        odds = self.rho.square() / rest
        alone_x, alone_y = (-0.5 * (z.square() * odds).sum(-1) for z in (u, v))
        together = (u * self.rho / rest) @ v.transpose(-1, -2) - 0.5 * rest.log().sum()
        ratio = alone_x.unsqueeze(-1) + alone_y.unsqueeze(-2) + together
        return (ratio + self.correction(x, y)).clamp(min=FLOOR)


class ConditionalGaussian(Critic):
    """T(x, y) = ln q(y|x), independent normals whose means and standard deviations are functions of
    x.

    CLUB's critic. In canonical coordinates it starts from means rho_i x_i, variances 1 - rho_i^2.
    """

    group = 256

    def __init__(self, rho: Tensor, x_size: int, y_size: int) -> None:
        super().__init__()
        self.network = silent(perceptron([x_size, HIDDEN, HIDDEN, 2 * y_size]))
        self.slope: Tensor
        self.log_deviation: Tensor
        slope = torch.zeros(x_size, y_size)
        slope[range(len(rho)), range(len(rho))] = rho
        self.register_buffer("slope", slope)
        self.register_buffer("log_deviation", 0.5 * torch.log1p(-slope.square().sum(0)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shift, scale = self.network(x).chunk(2, -1)
        mean, log_deviation = x @ self.slope + shift, self.log_deviation + scale
        precision = (-2 * log_deviation).exp()
        # sum_d (y_d - mean_d)^2 precision_d for all pairs, as three products.
        squares = (
            precision @ y.square().transpose(-1, -2)
            - 2 * (precision * mean) @ y.transpose(-1, -2)
            + (precision * mean.square()).sum(-1, keepdim=True)
        )
        return -0.5 * squares - log_deviation.sum(-1, keepdim=True)


class SegmentEncoder(nn.Module):
    """Token segments (..., N, L) to vectors (..., N, HEADS x size): weighted bags of embeddings.

    Each head is a weighted sum of the embeddings of the L tokens; the weights are learnt for every
    position. They start as the mean of all, and as geometric means that look 1, 2, 4, 8 tokens deep
    from the end that is near the other segment, so that both the topic of a segment and its last
    words are available. In training half of the numbers are dropped: few texts are long enough for
    so many.
    """

    HEADS = 5
    DROPPED = 0.5

    def __init__(self, embedding: nn.Embedding, length: int, near_end: bool, seed: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.generator = torch.Generator().manual_seed(seed)  # its own: several train at once
        distance = torch.arange(length).flip(0) if near_end else torch.arange(length)
        decays = [1.0] + [1 - 2.0**-k for k in range(self.HEADS - 1)]
        weights = torch.stack([torch.tensor(decay) ** distance for decay in decays])
        self.weights = nn.Parameter(weights / weights.norm(dim=1, keepdim=True))

    def forward(self, tokens: Tensor) -> Tensor:
        bags = (self.weights @ self.embedding(tokens)).flatten(-2)
        if not self.training:
            return bags
        kept = torch.rand(bags.shape, generator=self.generator) >= self.DROPPED
        return bags * kept / (1 - self.DROPPED)


class SegmentCritic(Critic):
    """A critic of the encodings of two segments, which share their embeddings."""

    def __init__(
        self, types: int, x_length: int, y_length: int, critic: type[Critic], seed: int
    ) -> None:
        super().__init__()
        embedding = nn.Embedding(types, EMBEDDING)
        nn.init.normal_(embedding.weight, std=EMBEDDING**-0.5)
        size = SegmentEncoder.HEADS * EMBEDDING
        self.x = SegmentEncoder(embedding, x_length, near_end=True, seed=2 * seed)
        self.y = SegmentEncoder(embedding, y_length, near_end=False, seed=2 * seed + 1)
        self.critic = critic(size, size)
        self.group = self.critic.group

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.critic(self.x(x), self.y(y))
