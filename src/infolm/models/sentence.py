"""Sentence models: an encoder to a latent code, and a decoder from it (Livne et al. 2020)."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from infolm.models.recurrent import (
    LayersConfig,
    SoftmaxConfig,
    build_stack,
    rates,
)
from infolm.nn.cells.base import State
from infolm.nn.dropout import Rates, embedding_dropout, locked_dropout, step_dropout
from infolm.nn.softmax import Softmax
from infolm.nn.stack import Stack
from infolm.section import Section


class CoderConfig(LayersConfig):
    """The layers of an encoder or a decoder."""

    cell: Literal["lstm", "gru", "elman", "rewired", "multiplicative"] = Field(
        "gru", description="the recurrent cell"
    )
    hidden: int = Field(512, ge=1, description="size of the layers")
    layers: int = Field(1, ge=1, description="number of recurrent layers")


class LatentConfig(Section):
    """The code of a sentence."""

    size: int = Field(128, ge=1, description="dimensions of z")
    least_log_variance: float = Field(
        -10.0, description="floor of ln sigma^2; the loss of mim has no minimum without one"
    )
    batch_norm: float | None = Field(
        None, gt=0, description="deviation that batch normalisation gives the means; none: off"
    )


class SentenceConfig(Section):
    """A sentence model: text to a Gaussian over codes, a code to text."""

    kind: Literal["sentence"] = "sentence"
    embedding: int = Field(300, ge=1, description="size of the embedding, which both sides share")
    latent: LatentConfig = LatentConfig()
    encoder: CoderConfig = CoderConfig()
    decoder: CoderConfig = CoderConfig()
    tied: bool = Field(False, description="the softmax shares the embedding's weights")
    softmax: SoftmaxConfig = SoftmaxConfig()


class Posterior(NamedTuple):
    """q(z | x) = N(mean, exp(log_variance)) of B sentences, (B, Z) each."""

    mean: Tensor
    log_variance: Tensor

    def at(self, noise: Tensor) -> Tensor:
        """z = mean + sigma noise, so that gradients reach both; noise: (..., B, Z)."""
        return self.mean + (0.5 * self.log_variance).exp() * noise

    def log_density(self, z: Tensor) -> Tensor:
        """ln q(z | x): (..., B, Z) -> (..., B)."""
        scaled = (z - self.mean).square() / self.log_variance.exp()
        return -0.5 * (scaled + self.log_variance + math.log(2 * math.pi)).sum(-1)

    def kl(self) -> Tensor:
        """KL(q(z_d | x) || N(0, 1)) of each dimension, (B, Z)."""
        return 0.5 * (self.mean.square() + self.log_variance.exp() - 1 - self.log_variance)


class Coded(NamedTuple):
    """posterior: of B sentences. z: the codes that were read, (B, Z). hidden: what predicts each of
    their N tokens, (N, H)."""

    posterior: Posterior
    z: Tensor
    hidden: Tensor


def log_prior(z: Tensor) -> Tensor:
    """ln N(z; 0, 1): (..., Z) -> (...)."""
    return -0.5 * (z.square() + math.log(2 * math.pi)).sum(-1)


class SentenceModel(nn.Module):
    """One architecture for MIM, VAE and auto-encoder (Livne et al. 2020, section 2.1):

        encoder    h = the state after <eos> w_n ... w_1, the sentence backwards
                   q(z | x) = N(A h + a, diag exp(max(B h + b, least_log_variance)))
        decoder    d_0 = C z + c,   d_t = g([embedding of w_{t-1}; z], d_{t-1}),   w_0 = <eos>
                   p(w_t | w_{<t}, z) = softmax(d_t)

    so p(x | z) is a distribution over all sentences, each ended by its <eos>. h and d are the whole
    states: of an LSTM both its tensors, of several layers all of them. Both sides read one
    embedding. With `batch_norm` the means are normalised over the batch and scaled to that
    deviation, with a shift that is learnt (Zhu et al. 2020, "A Batch Normalized Inference Network
    Keeps the KL Vanishing Away"); outside training by running averages.

    Sentences come as packed rows, the longest first: see `data.sentences.SentenceBatch`.
    """

    def __init__(self, config: SentenceConfig, vocabulary: int) -> None:
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        size = config.latent.size
        self.embedding = nn.Parameter(torch.empty(vocabulary, config.embedding).uniform_(-0.1, 0.1))
        self.encoder_rates, self.decoder_rates = rates(config.encoder), rates(config.decoder)
        self.encoder = build_stack(config.encoder, config.embedding, None, self.encoder_rates)
        self.decoder = build_stack(
            config.decoder, config.embedding + size, None, self.decoder_rates
        )
        self.mean = nn.Linear(_state_size(self.encoder), size)
        self.log_variance = nn.Linear(_state_size(self.encoder), size)
        self.norm = None
        if config.latent.batch_norm is not None:
            self.norm = nn.BatchNorm1d(size)
            nn.init.constant_(self.norm.weight, config.latent.batch_norm)
            self.norm.weight.requires_grad_(False)
        self.start = nn.Linear(size, _state_size(self.decoder))
        self.softmax = Softmax(
            vocabulary,
            self.decoder.widths[-1],
            config.embedding,
            config.tied,
            config.softmax.experts,
            1 / math.sqrt(config.decoder.hidden),
        )

    def forward(
        self,
        read: Tensor,
        inputs: Tensor,
        sizes: Sequence[int],
        code: Callable[[Posterior], Tensor],
    ) -> Coded:
        """Sentences through a code of each and back; `code` chooses it from the posterior."""
        posterior = self.encode(read, sizes)
        z = code(posterior)
        return Coded(posterior, z, self.decode(z, inputs, sizes))

    def encode(self, read: Tensor, sizes: Sequence[int]) -> Posterior:
        """q(z | x) of B sentences in packed rows `read` (N,)."""
        x = self._embedded(read, sizes, self.config.encoder, self.encoder_rates)
        _, _, state = self.encoder(_packed(x, sizes), self.encoder.initial_state(sizes[0]))
        h = torch.cat([tensor.squeeze(0) for layer in state for tensor in layer], 1)
        mean = self.mean(h)
        if self.norm is not None:
            mean = self.norm(mean)
        floor = self.config.latent.least_log_variance
        return Posterior(mean, self.log_variance(h).clamp(min=floor))

    def decode(self, z: Tensor, inputs: Tensor, sizes: Sequence[int]) -> Tensor:
        """What the softmax reads, (N, H), for each row of `inputs` (N,) given the codes (B, Z)."""
        x = self._embedded(inputs, sizes, self.config.decoder, self.decoder_rates)
        owner = torch.cat([torch.arange(size, device=z.device) for size in sizes])
        x = torch.cat([x, z[owner]], 1)
        hidden = self.decoder(_packed(x, sizes), self.initial_state(z)).output
        config, p = self.config.decoder.dropout, self.decoder_rates.output
        drop = locked_dropout if config.locked else step_dropout
        return drop(hidden, p, self.training, torch.tensor(sizes))

    def initial_state(self, z: Tensor) -> list[State]:
        """The decoder's state before <eos>, of codes z (B, Z)."""
        parts = iter(self.start(z).split(_state_sizes(self.decoder), 1))
        zeros = self.decoder.initial_state(0)
        return [tuple(next(parts)[None].contiguous() for _ in layer) for layer in zeros]

    def step(self, words: Tensor, z: Tensor, state: list[State]) -> tuple[Tensor, list[State]]:
        """One word (B,) further: what predicts the next, (B, H), and the state. No dropout."""
        x = torch.cat([self.embedding[words], z], 1)[None]
        hidden, _, after = self.decoder(x, state)
        return hidden[0], after

    def _embedded(
        self, rows: Tensor, sizes: Sequence[int], config: CoderConfig, rates: Rates
    ) -> Tensor:
        drop = locked_dropout if config.dropout.locked else step_dropout
        x = embedding_dropout(self.embedding, rows, rates.embedding, self.training)
        return drop(x, rates.input, self.training, torch.tensor(sizes))

    def nll_sum(self, hidden: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Summed -ln p(target) in nats, differentiable; (N, H), (N,)."""
        return self.softmax.nll_sum(hidden, targets, self.embedding, counts)

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """ln p(target) of each token, (N,), without gradient."""
        return self.softmax.log_prob(hidden, targets, self.embedding)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """ln p over the whole vocabulary, (..., V)."""
        return self.softmax.log_probs(hidden, self.embedding)


def _packed(x: Tensor, sizes: Sequence[int]) -> PackedSequence:
    return PackedSequence(x, torch.tensor(sizes))


def _state_sizes(stack: Stack) -> list[int]:
    """The columns of each tensor of the state."""
    return [tensor.shape[-1] for layer in stack.initial_state(0) for tensor in layer]


def _state_size(stack: Stack) -> int:
    return sum(_state_sizes(stack))
