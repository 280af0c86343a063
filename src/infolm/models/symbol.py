"""A model of single symbols with a latent code: the synthetic task of Melis (2023, section 5.7.1).

It tests only inference: a symbol of V is drawn uniformly, its likelihood is at best 1/V with or
without a code, and a code can identify it completely.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from infolm.data.sentences import SentenceBatch
from infolm.data.tokens import Tokenizer
from infolm.models.base import MODELS, ModelConfig
from infolm.models.codes.gaussian import GaussianConfig
from infolm.models.latent import LatentConfig, LatentModel
from infolm.models.recurrent import SoftmaxConfig
from infolm.nn.cells.base import State
from infolm.nn.softmax import Softmax


@MODELS.register
class SymbolConfig(ModelConfig):
    """A model of lines with one word each: the word to a distribution over codes, and back."""

    capability = "latent"
    longest = 1
    kind: Literal["symbol"] = "symbol"
    hidden: int = Field(128, ge=1, description="size of the embedding and of the layers")
    latent: LatentConfig = GaussianConfig(size=40)
    softmax: SoftmaxConfig = SoftmaxConfig()

    def build(self, vocabulary: int, tokenizer: Tokenizer | None = None) -> "SymbolModel":
        return SymbolModel(self, vocabulary)

    def described(self, objective: str) -> str:
        return (
            f"A model of single symbols ({objective}) with {self.latent.words}, an encoder and a "
            f"decoder of {self.hidden:,} units, and"
        )


class SymbolModel(LatentModel):
    """q(z | x) = latent(tanh(A tanh(B e_x))), p(x | z) = softmax(C t), with t = tanh(D tanh(E z)).

    Biases are left out here. Where a code is embedded first, t = tanh(E v) of its embedding v: the
    decoder has one layer less (Melis 2023, section 5.7.1). Lines come as packed rows, as a
    sentence model's do; their <eos> is certain, and not a token.
    """

    ends = False
    """Whether the <eos> of a line is predicted, and counts as a token."""

    def __init__(self, config: SymbolConfig, vocabulary: int) -> None:
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        size = config.hidden
        self.embedding = nn.Parameter(torch.randn(vocabulary, size))
        self.encoder = nn.Sequential(
            nn.Linear(size, size), nn.Tanh(), nn.Linear(size, size), nn.Tanh()
        )
        self.latent = config.latent.build(size)
        layers = [nn.Linear(config.latent.width, size), nn.Tanh()]
        if not config.latent.classes:
            layers += [nn.Linear(size, size), nn.Tanh()]
        self.decoder = nn.Sequential(*layers)
        self.softmax = Softmax(
            vocabulary, size, size, False, config.softmax.experts, 1 / math.sqrt(size)
        )

    def encode(self, read: Tensor, sizes: Sequence[int]) -> Any:
        """q(z | x) of B lines in packed rows, B times <eos> and then B words."""
        return self.latent(self.encoder(self.embedding[read[sizes[0] :]]))

    def initial_state(self, z: Tensor) -> list[State]:
        """None: a line has one word."""
        return []

    def step(self, words: Tensor, z: Tensor, state: list[State]) -> tuple[Tensor, list[State]]:
        return self.decoder(self.latent.read(z)), state

    def log_likelihood_parts(self, z: Tensor, batch: SentenceBatch) -> tuple[Tensor, Tensor]:
        words = self.log_likelihood(z[None], batch)[0].detach().cpu().double()
        return words, torch.zeros_like(words)

    def log_likelihood(self, z: Tensor, batch: SentenceBatch, own: bool = False) -> Tensor:
        """ln p(x | z) of K codes of each line, z (K, B, ...) -> (K, B), differentiable.

        own: ignored, as there are no dropout masks.
        """
        words = batch.targets[: batch.sizes[0]].expand(len(z), -1)
        hidden = self.decoder(self.latent.read(z)).flatten(0, 1)
        log_p = self.softmax.log_likelihood(hidden, words.reshape(-1), self.embedding)
        return log_p.view(words.shape)
