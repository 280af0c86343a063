"""Sentence models: an encoder to a latent code, and a decoder from it (Livne et al. 2020)."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from infolm.data.sentences import SentenceBatch
from infolm.data.tokens import Tokenizer
from infolm.models.base import MODELS, ModelConfig
from infolm.models.codes.gaussian import GaussianConfig
from infolm.models.latent import LatentConfig, LatentModel
from infolm.models.recurrent import (
    CellName,
    LayersConfig,
    SoftmaxConfig,
    build_stack,
    rates,
)
from infolm.nn.cells.base import State
from infolm.nn.dropout import Rates, embedding_dropout, locked_dropout, step_dropout
from infolm.nn.softmax import Softmax
from infolm.nn.stack import Stack


class CoderConfig(LayersConfig):
    """The layers of an encoder or a decoder."""

    cell: CellName = Field("gru", description="the recurrent cell")
    hidden: int = Field(512, ge=1, description="size of the layers")
    layers: int = Field(1, ge=1, description="number of recurrent layers")

    @property
    def words(self) -> str:
        """'1 GRU layer of 512 units'."""
        return f"{self.layers_in_words} of {self.hidden:,} units"


@MODELS.register
class SentenceConfig(ModelConfig):
    """A sentence model: text to a distribution over codes, a code to text."""

    capability = "latent"
    kind: Literal["sentence"] = "sentence"
    embedding: int = Field(300, ge=1, description="size of the embedding, which both sides share")
    embedding_start: Literal["uniform", "normal"] = Field(
        "uniform",
        description="initial embedding: U(-0.1, 0.1) or N(0, 1)",
    )
    latent: LatentConfig = GaussianConfig()
    encoder: CoderConfig = CoderConfig()
    bidirectional: bool = Field(
        False, description="the encoder also reads forwards, and its result is the mean of both"
    )
    decoder: CoderConfig = CoderConfig()
    start: Literal["code", "zeros"] = Field(
        "code", description="the decoder's initial state; it reads z at every step in any case"
    )
    tied: bool = Field(False, description="the softmax shares the embedding's weights")
    softmax: SoftmaxConfig = SoftmaxConfig()

    def build(self, vocabulary: int, tokenizer: Tokenizer | None = None) -> "SentenceModel":
        return SentenceModel(self, vocabulary)

    def described(self, objective: str) -> str:
        both = " in both directions" if self.bidirectional else ""
        encoder, decoder = self.encoder.words + both, self.decoder.words
        sides = f"an encoder of {encoder} and a decoder of {decoder}"
        if self.encoder == self.decoder and not both:
            sides = f"an encoder and a decoder of {encoder} each"
        return f"A sentence model ({objective}) with {self.latent.words}, {sides}, and"


class Coded(NamedTuple):
    """posterior: of B sentences. z: the codes that were read, (B, Z). hidden: what predicts each of
    their N tokens, (N, H)."""

    posterior: Any
    z: Tensor
    hidden: Tensor


class SentenceModel(LatentModel):
    """One architecture for MIM, VAE, auto-encoder and Monte Carlo objectives (Livne et al. 2020,
    section 2.1; Melis 2023, section 5.7.2):

        encoder    h = the state after <eos> w_n ... w_1, the sentence backwards; bidirectional:
                   the mean of it and of the state after <eos> w_1 ... w_n
                   q(z | x) = latent(h)
        decoder    d_0 = C v + c or 0,   d_t = g([embedding of w_{t-1}; v], d_{t-1}),   w_0 = <eos>
                   p(w_t | w_{<t}, z) = softmax(d_t)

    with v the decoder's input for z; for Gaussian codes z itself. So
    p(x | z) is a distribution over all sentences, each ended by its <eos>. h and d are the whole
    states: of an LSTM both its tensors, of several layers all of them. Both sides read one
    embedding. It starts as U(-0.1, 0.1), or with `embedding_start` normal as N(0, 1), so that an
    encoder's first codes already differ by the words read. A tied softmax would then start with
    logits as wide as sqrt(E); there the matrix is N(0, 1/E), and its rows are scaled by sqrt(E)
    when read (as in Vaswani et al. 2017, section 3.4).

    Sentences come as packed rows, the longest first: see `data.sentences.SentenceBatch`.
    """

    ends = True
    """Whether the <eos> of a sentence is predicted, and counts as a token."""
    former_names = dict.fromkeys(("mean.", "log_variance.", "norm."), "latent.")
    """Prefixes of weights' names in older runs, and what now precedes them."""

    def __init__(self, config: SentenceConfig, vocabulary: int) -> None:
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        self.embedding = nn.Parameter(torch.empty(vocabulary, config.embedding))
        self.read_scale = 1.0
        if config.embedding_start == "uniform":
            nn.init.uniform_(self.embedding, -0.1, 0.1)
        else:
            self.read_scale = math.sqrt(config.embedding) if config.tied else 1.0
            nn.init.normal_(self.embedding, std=1 / self.read_scale)
        self.encoder_rates, self.decoder_rates = rates(config.encoder), rates(config.decoder)
        self.encoder = build_stack(config.encoder, config.embedding, None, self.encoder_rates)
        self.forwards = None
        if config.bidirectional:
            self.forwards = build_stack(config.encoder, config.embedding, None, self.encoder_rates)
        width = config.latent.width
        self.decoder = build_stack(
            config.decoder, config.embedding + width, None, self.decoder_rates
        )
        self.latent = config.latent.build(_state_size(self.encoder))
        self.start = None
        if config.start == "code":
            self.start = nn.Linear(width, _state_size(self.decoder))
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
        code: Callable[[Any], Tensor],
    ) -> Coded:
        """Encode and decode sentences; `code` chooses a code from the posterior."""
        posterior = self.encode(read, sizes)
        z = code(posterior)
        return Coded(posterior, z, self.decode(z, inputs, sizes))

    def encode(self, read: Tensor, sizes: Sequence[int]) -> Any:
        """q(z | x) of B sentences in packed rows `read` (N,)."""
        x = self._embedded(read, sizes, self.config.encoder, self.encoder_rates)
        h = self._last(self.encoder, x, sizes)
        if self.forwards is not None:
            h = 0.5 * (h + self._last(self.forwards, x[turned(sizes, x.device)], sizes))
        return self.latent(h)

    def _last(self, encoder: Stack, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """The state after the last of the rows x (N, E) of each sentence, (B, H)."""
        _, _, state = encoder(_packed(x, sizes), encoder.initial_state(sizes[0]))
        return torch.cat([tensor.squeeze(0) for layer in state for tensor in layer], 1)

    def decode(
        self, z: Tensor, inputs: Tensor, sizes: Sequence[int], copies: int = 1, own: bool = False
    ) -> Tensor:
        """The softmax's input, (N K, H), for each row of `inputs` (N,) given codes (B K, ...).

        copies: K codes of each sentence, in z one after the other; so are the K rows for a row of
        `inputs`. The dropout masks of a sentence are the same for all its codes (Melis 2023,
        section 5.7.2), unless each has its `own`.
        """
        config, rates, shared = self.config.decoder, self.decoder_rates, 1 if own else copies
        several = [copies * size for size in sizes]
        if own:
            x = self._embedded(inputs.repeat_interleave(copies), several, config, rates)
        else:
            x = self._embedded(inputs, sizes, config, rates).repeat_interleave(copies, 0)
        x = torch.cat([x, self.latent.read(z)[_owners(several, z.device)]], 1)
        hidden = self.decoder(_packed(x, several), self.initial_state(z), shared).output
        drop = locked_dropout if config.dropout.locked else step_dropout
        return drop(hidden, rates.output, self.training, torch.tensor(several), shared)

    def log_likelihood_parts(self, z: Tensor, batch: SentenceBatch) -> tuple[Tensor, Tensor]:
        hidden = self.decode(z, batch.inputs, batch.sizes)
        rows = self.log_prob(hidden, batch.targets).cpu().double()
        sizes = torch.tensor(batch.sizes)
        steps = (sizes[:, None] > torch.arange(len(z))).sum(0)  # of each sentence, with <eos>
        last = (sizes.cumsum(0) - sizes)[steps - 1] + torch.arange(len(z))
        eos = rows[last]
        rows[last] = 0
        owners = _owners(batch.sizes, rows.device)
        return torch.zeros_like(eos).index_add_(0, owners, rows), eos

    def log_likelihood(self, z: Tensor, batch: SentenceBatch, own: bool = False) -> Tensor:
        """ln p(x | z) of K codes of each sentence, z (K, B, ...) -> (K, B), differentiable.

        own: as of `decode`.
        """
        copies, sizes = len(z), batch.sizes
        codes = z.transpose(0, 1).flatten(0, 1)
        hidden = self.decode(codes, batch.inputs, sizes, copies, own)
        targets = batch.targets.repeat_interleave(copies)
        log_p = self.softmax.log_likelihood(hidden, targets, self.embedding)
        owners = _owners([copies * size for size in sizes], z.device)
        summed = log_p.new_zeros(copies * sizes[0]).index_add(0, owners, log_p)
        return summed.view(sizes[0], copies).t()

    def initial_state(self, z: Tensor) -> list[State]:
        """The decoder's state before <eos>, of codes z (B, ...)."""
        if self.start is None:
            return self.decoder.initial_state(z.shape[0])
        parts = iter(self.start(self.latent.read(z)).split(_state_sizes(self.decoder), 1))
        zeros = self.decoder.initial_state(0)
        return [tuple(next(parts)[None].contiguous() for _ in layer) for layer in zeros]

    def step(self, words: Tensor, z: Tensor, state: list[State]) -> tuple[Tensor, list[State]]:
        """One word (B,) further: what predicts the next, (B, H), and the state. No dropout."""
        x = torch.cat(
            [self.scaled(functional.embedding(words, self.embedding)), self.latent.read(z)], 1
        )[None]
        hidden, _, after = self.decoder(x, state)
        return hidden[0], after

    def _embedded(
        self, rows: Tensor, sizes: Sequence[int], config: CoderConfig, rates: Rates
    ) -> Tensor:
        drop = locked_dropout if config.dropout.locked else step_dropout
        x = self.scaled(embedding_dropout(self.embedding, rows, rates.embedding, self.training))
        return drop(x, rates.input, self.training, torch.tensor(sizes))

    def scaled(self, rows: Tensor) -> Tensor:
        """Rows of the embedding as both sides read them."""
        return rows if self.read_scale == 1 else self.read_scale * rows

    def nll_sum(self, hidden: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Summed -ln p(target) in nats, differentiable; (N, H), (N,)."""
        return self.softmax.nll_sum(hidden, targets, self.embedding, counts)

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """ln p(target) of each token, (N,), without gradient."""
        return self.softmax.log_prob(hidden, targets, self.embedding)


def turned(sizes: Sequence[int], device: torch.device) -> Tensor:
    """Which of the packed rows <eos> w_n ... w_1 of each sentence stand where in <eos> w_1 ... w_n,
    (N,)."""
    steps = torch.tensor(sizes, device=device)
    first = steps.cumsum(0) - steps
    lengths = (steps[:, None] > torch.arange(sizes[0], device=device)).sum(0)
    step = torch.repeat_interleave(steps)  # of each row
    sentence = torch.arange(int(steps.sum()), device=device) - first[step]
    return torch.where(step > 0, first[(lengths[sentence] - step) % len(sizes)], 0) + sentence


def _owners(sizes: Sequence[int], device: torch.device) -> Tensor:
    """The number of the sentence that each packed row belongs to, (N,)."""
    return torch.cat([torch.arange(size, device=device) for size in sizes])


def _packed(x: Tensor, sizes: Sequence[int]) -> PackedSequence:
    return PackedSequence(x, torch.tensor(sizes))


def _state_sizes(stack: Stack) -> list[int]:
    """The columns of each tensor of the state."""
    return [tensor.shape[-1] for layer in stack.initial_state(0) for tensor in layer]


def _state_size(stack: Stack) -> int:
    return sum(_state_sizes(stack))
