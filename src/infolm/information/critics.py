"""Critics: what scores pairs, T(x, y), for the bounds of `infolm.information.bounds`.

    critic(x, y): (..., N, X), (..., M, Y) -> (..., N, M), the scores of all pairs

`group` says how many rows are best scored against each other in training: a separable critic scores
all pairs of a batch by one matrix product, the others run a network on every pair. Every critic
is 0 before training, so that it can start as a correction of another.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

HIDDEN = 256
PAIR_HIDDEN = 128
BMI_HIDDEN = 500


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


class Critic(nn.Module):
    """The interface of critics."""

    group: int

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError


class Separable(Critic):
    """T(x, y) = g(x) . h(y).

    The biases of the last layers add functions of x and of y alone.
    """

    group = 512

    def __init__(self, x_size: int, y_size: int, rank: int = 32) -> None:
        super().__init__()
        self.g = perceptron([x_size, HIDDEN, HIDDEN, rank])
        self.h = silent(perceptron([y_size, HIDDEN, HIDDEN, rank]))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.g(x) @ self.h(y).transpose(-1, -2)


class Bilinear(Critic):
    """T(x, y) = x' W y, with x' = (x, 1): log-bilinear, as in van den Oord et al. (2018)."""

    group = 512

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

    x and y are encodings of the same size; in BMI, of two sentences.
    """

    group = 32

    def __init__(self, x_size: int, y_size: int) -> None:
        super().__init__()
        if x_size != y_size:
            raise ValueError(f"x and y must be encodings of one size, not {x_size} and {y_size}")
        # The first layer of x, y and x - y is again a sum of a layer of x and one of y.
        self.of_x = nn.Linear(x_size, BMI_HIDDEN)
        self.of_y = nn.Linear(x_size, BMI_HIDDEN, bias=False)
        self.of_both = nn.Linear(2 * x_size, BMI_HIDDEN, bias=False)
        self.rest = silent(nn.Sequential(nn.ReLU(), nn.Linear(BMI_HIDDEN, 1)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = x.unsqueeze(-2), y.unsqueeze(-3)
        both = self.of_both(torch.cat([(a - b).abs(), a * b], -1))
        return self.rest(self.of_x(a) + self.of_y(b) + both).squeeze(-1)
