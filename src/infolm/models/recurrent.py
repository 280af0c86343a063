"""The recurrent language model: an embedding, a stack of cells, a softmax."""

import math
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from infolm.nn.cells.lstm import State
from infolm.nn.dropout import embedding_dropout, locked_dropout
from infolm.nn.softmax import Softmax
from infolm.nn.stack import Stack
from infolm.section import Section

Rate = Annotated[float, Field(ge=0, lt=1)]


class DropoutConfig(Section):
    """Rates of the dropouts on activations; 0 switches one off."""

    embedding: Rate = Field(0.0, description="whole words of the embedding matrix")
    input: Rate = Field(0.0, description="the embedded words, one mask over time")
    hidden: Rate = Field(0.0, description="between layers, one mask over time")
    output: Rate = Field(0.0, description="the last layer's output, one mask over time")


class RecurrentConfig(Section):
    """A recurrent language model."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["lstm"] = Field("lstm", description="the recurrent cell")
    embedding: int = Field(400, ge=1, description="size of the embedding and of the last layer")
    hidden: int = Field(1150, ge=1, description="size of the layers but the last")
    layers: int = Field(3, ge=1, description="number of recurrent layers")
    tied: bool = Field(True, description="the softmax shares the embedding's weights")
    weight_drop: Rate = Field(0.0, description="DropConnect on the hidden-to-hidden matrices")
    dropout: DropoutConfig = DropoutConfig()


class Output(NamedTuple):
    """hidden: the last layer's output (T, B, E); dropped: the same behind the output dropout,
    which the softmax reads; layers: every layer's output; state: after the last step."""

    hidden: Tensor
    dropped: Tensor
    layers: list[Tensor]
    state: list[State]


class RecurrentModel(nn.Module):
    """AWD-LSTM's architecture (Merity et al. 2017): E -> H -> ... -> H -> E, softmax tied.

    The first layer reads and the last one writes the embedding's size, so that tying needs no
    projection. The embedding is initialised U(-0.1, 0.1), all else U(-1/sqrt(H), 1/sqrt(H)).
    Tokens are time-major, (T, B).
    """

    def __init__(self, config: RecurrentConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        sizes = [config.embedding, *[config.hidden] * (config.layers - 1), config.embedding]
        self.embedding = nn.Parameter(torch.empty(vocabulary, config.embedding).uniform_(-0.1, 0.1))
        self.stack = Stack(sizes, config.weight_drop, config.dropout.hidden)
        self.softmax = Softmax(
            vocabulary, config.embedding, config.tied, 1 / math.sqrt(config.hidden)
        )

    def initial_state(self, batch: int) -> list[State]:
        """The state before any token: zeros."""
        return self.stack.initial_state(batch)

    def forward(self, tokens: Tensor, state: list[State]) -> Output:
        """tokens: (T, B) -> what predicts the token after each."""
        rates = self.config.dropout
        x = embedding_dropout(self.embedding, tokens, rates.embedding, self.training)
        x = locked_dropout(x, rates.input, self.training)
        layers, after = self.stack(x, state)
        hidden = layers[-1]
        dropped = locked_dropout(hidden, rates.output, self.training)
        return Output(hidden, dropped, layers, after)

    def nll_sum(self, x: Tensor, targets: Tensor) -> Tensor:
        """Summed -ln p(target | x) in nats, differentiable; x: (..., E), targets: (...)."""
        return self.softmax.nll_sum(x, targets, self.embedding)

    def log_prob(self, x: Tensor, targets: Tensor) -> Tensor:
        """ln p(target | x) of each token, without gradient."""
        return self.softmax.log_prob(x, targets, self.embedding)

    def log_probs(self, x: Tensor) -> Tensor:
        """ln p(. | x) over the whole vocabulary, (..., V)."""
        return self.softmax.log_probs(x, self.embedding)
