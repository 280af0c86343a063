"""A recurrent encoder-decoder (Melis 2023, section 2.3.3)."""

from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from infolm.data.reverse_copy import SEPARATOR
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.models.base import MODELS
from infolm.models.language import Output
from infolm.models.recurrent import (
    RecurrentConfig,
    RecurrentModel,
    recurrent_layers,
    within_budget,
)
from infolm.nn.cells.base import State
from infolm.nn.dropout import embedding_dropout, locked_dropout, step_dropout


@MODELS.register
class EncoderDecoderConfig(RecurrentConfig):
    """Two recurrent networks of the same form; the second starts from the first's final state."""

    reads_sentences = False
    answers = True
    kind: Literal["encoder-decoder"] = "encoder-decoder"  # type: ignore[assignment]
    separator: str = Field(SEPARATOR, description="the token that the decoder reads first")

    def build(self, vocabulary: int, tokenizer: Tokenizer | None = None) -> "EncoderDecoder":
        separator = tokenizer.number(self.separator, "model.separator") if tokenizer else 0
        return EncoderDecoder(self, vocabulary, separator)


class EncoderDecoder(RecurrentModel):
    """With `separator` at step s of the tokens (T, B), the same step in every column,

        encoder    e_t = f(x_t, e_{t-1}), t < s       d_{s-1} = e_{s-1}
        decoder    d_t = g(x_t, d_{t-1}), t >= s      p(x_{t+1} | x_{<=t}) = softmax(d_t)

    f and g have the same form but share no parameters, not even the embeddings. The encoder
    predicts nothing: its part of the output is zeros, so gradients reach it only through its last
    state, and tokens before the separator are predicted by the softmax's bias. Everything but the
    encoder is a `RecurrentModel`. A call takes whole sentences.
    """

    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig, vocabulary: int, separator: int) -> None:
        config = within_budget(config, lambda sized: EncoderDecoder(sized, vocabulary, separator))
        super().__init__(config.model_copy(update={"parameters": None}), vocabulary)
        self.config = config
        self.separator = separator
        self.encoder_embedding = nn.Parameter(torch.empty_like(self.embedding).uniform_(-0.1, 0.1))
        self.encoder = recurrent_layers(config, self.rates)

    def forward(self, tokens: Tensor | PackedSequence, state: list[State]) -> Output:
        """tokens: (T, B), never packed -> what predicts the token after each, from the separator
        on."""
        tokens = cast(Tensor, tokens)
        start = self._decoder_start(tokens)
        rates, drop = self.rates, locked_dropout if self.config.dropout.locked else step_dropout
        x = embedding_dropout(
            self.encoder_embedding, tokens[:start], rates.embedding, self.training
        )
        _, read, last = self.encoder(drop(x, rates.input, self.training), state)
        hidden, dropped, written, after = super().forward(tokens[start:], last)
        nothing = hidden.new_zeros(start, *hidden.shape[1:])
        return Output(
            torch.cat([nothing, hidden]),
            torch.cat([nothing, dropped]),
            [torch.cat(layer) for layer in zip(read, written, strict=True)],
            after,
        )

    def _decoder_start(self, tokens: Tensor) -> int:
        """The step of the separator, of which each column has one."""
        found = tokens == self.separator
        steps = found.all(1).nonzero()
        if len(steps) != 1 or int(found.sum()) != tokens.shape[1] or not int(steps):
            raise InfolmError(
                "an encoder-decoder reads whole sentences, in batches whose "
                f"{self.config.separator} is at the same place: train it with feed.kind=episodes "
                "on lines of equal form; it cannot read or generate running text"
            )
        return int(steps)
