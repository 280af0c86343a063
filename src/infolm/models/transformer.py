"""A Transformer language model (Vaswani et al. 2017) in the form of Llama (Touvron et al. 2023):
decoder-only, pre-norm, rotary positions, gated feed-forward layers, keys and values carried from
cut to cut (Dai et al. 2019).
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Literal, Self

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.models.base import MODELS, ModelConfig
from infolm.models.language import LanguageModel, Output
from infolm.models.recurrent import DropoutConfig, Rate, SoftmaxConfig
from infolm.nn.draws import drawing_again
from infolm.nn.dropout import Rates, embedding_dropout, locked_dropout, step_dropout
from infolm.nn.softmax import Softmax
from infolm.section import count

BASE = 10_000.0
"""Base of the rotary angles: the slowest pair of columns turns once in 2 pi BASE positions."""
EPSILON = 1e-6
"""Added to the mean square of a normalised vector."""
DEVIATION = 0.02
"""Standard deviation of the initial matrices."""

Memory = Tensor
"""Keys and values of one layer: (S, B, 2, heads, D), the newest position last, keys not yet turned
to their positions."""
TransformerState = tuple[list[Memory], Tensor | None]
"""The memories of the layers, and how many of the S positions each column has read, (B,): the last
ones. None: all of them."""


class TransformerDropoutConfig(DropoutConfig):
    """Rates of the dropouts; 0 switches one off."""

    hidden: Rate = Field(0.0, description="the outputs of a layer's two halves")
    state: Rate = Field(0.0, description="the attention weights")


@MODELS.register
class TransformerConfig(ModelConfig):
    """A Transformer language model."""

    capability = "language"
    shards = True
    kind: Literal["transformer"] = "transformer"
    hidden: int = Field(256, ge=2, description="size of every layer and of the word vectors")
    layers: int = Field(4, ge=1, description="layers of attention and feed-forward")
    heads: int = Field(
        4, ge=1, description="attention heads; hidden must be a multiple of twice their number"
    )
    inner: int | None = Field(
        None, ge=1, description="size inside a feed-forward half; none: 8/3 of hidden"
    )
    context: int = Field(
        256, ge=1, description="tokens that a token can see, including itself, across chunks"
    )
    parameters: Annotated[int | None, BeforeValidator(count)] = Field(
        None, ge=1, description="maximum parameters, such as 24M: decides `hidden`"
    )
    tied: bool = Field(True, description="the softmax shares the embedding's weights")
    softmax: SoftmaxConfig = SoftmaxConfig()
    dropout: TransformerDropoutConfig = TransformerDropoutConfig()
    activation_checkpointing: bool = Field(
        False, description="recompute the layers in the backward pass, to save memory"
    )

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.hidden % (2 * self.heads) and self.parameters is None:
            raise ValueError(
                f"hidden is {self.hidden}, and {self.heads} heads need a multiple of "
                f"{2 * self.heads}"
            )
        return self

    def build(self, vocabulary: int, tokenizer: Tokenizer | None = None) -> "Transformer":
        return Transformer(self._within_budget(vocabulary), vocabulary)

    def described(self, objective: str) -> str:
        return f"A Transformer language model of {self.layers:,} layer{'s'[: self.layers != 1]}"

    @property
    def called(self) -> str:
        return "Transformer"

    def _within_budget(self, vocabulary: int) -> "TransformerConfig":
        """The section with the largest `hidden` whose model has at most `parameters`, if given."""
        if self.parameters is None:
            return self

        def sized(units: int) -> "TransformerConfig":
            return self.model_copy(update={"hidden": 2 * self.heads * units})

        def size(units: int) -> int:
            with torch.device("meta"):
                model = Transformer(sized(units), vocabulary)
            return sum(parameter.numel() for parameter in model.parameters())

        if size(1) > self.parameters:
            raise InfolmError(
                f"model.parameters is {self.parameters:,}, but the smallest such model has "
                f"{size(1):,}: raise it, or lower data.vocabulary"
            )
        low, high = 1, math.isqrt(self.parameters) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if size(middle) <= self.parameters else (low, middle)
        return sized(low)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Turn each pair of columns (j, j + D/2) of x (S, ..., D) by position x BASE^(-2j/D).

    So the product of a query and a key depends only on their distance (Su et al. 2021).
    """
    half = x.shape[-1] // 2
    speed = BASE ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angle = positions[:, None] * speed  # (S, D/2)
    angle = angle.view(positions.shape[0], *[1] * (x.ndim - 2), half)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def visible(
    steps: int, before: int, context: int, read: Tensor | None, device: torch.device
) -> Tensor:
    """Whether query t may see position s, (T, S + T) or, with `read`, (B, 1, T, S + T).

    Position s < S is of the memory, which holds what was read before; query t stands at S + t. It
    sees itself and the `context` - 1 positions before it, of which column b has read the last
    read[b] of the memory and all since.
    """
    keys = torch.arange(before + steps, device=device)
    queries = keys[before:, None]
    seen = (keys <= queries) & (keys > queries - context)
    if read is None:
        return seen
    return seen & (keys >= before - read[:, None, None, None])


def attention(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, rate: float) -> Tensor:
    """softmax(q k / sqrt(D)) v over the positions that are seen, with dropout of the weights.

    queries: (B, heads, T, D); keys, values: (B, heads, S + T, D). On a processor in bfloat16 by its
    products, between which single precision stands: the derivative of PyTorch's own function takes
    there more than three times as long as in single precision.
    """
    if queries.device.type != "cpu" or queries.dtype != torch.bfloat16:
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen, dropout_p=rate
        )
    hidden = torch.zeros(seen.shape).masked_fill_(~seen, -math.inf)
    scores = (queries @ keys.transpose(-2, -1)).float()
    weights = scores.mul_(1 / math.sqrt(queries.shape[-1])).add_(hidden).softmax(-1)
    return functional.dropout(weights, rate).to(values.dtype) @ values


class Block(nn.Module):
    """One layer: x <- x + A(norm(x)), then x <- x + F(norm(x)), with A attention over the positions
    so far and F(y) = W_3 (silu(W_1 y) * W_2 y)."""

    def __init__(self, config: TransformerConfig, rates: Rates) -> None:
        super().__init__()
        hidden = config.hidden
        inner = config.inner or 8 * hidden // 3
        self.heads, self.context, self.rates = config.heads, config.context, rates
        self.drop = locked_dropout if config.dropout.locked else step_dropout
        self.attention_norm = nn.RMSNorm(hidden, EPSILON)
        self.queries_keys_values = nn.Linear(hidden, 3 * hidden, bias=False)
        self.attention_output = nn.Linear(hidden, hidden, bias=False)
        self.inner_norm = nn.RMSNorm(hidden, EPSILON)
        self.gate_and_inner = nn.Linear(hidden, 2 * inner, bias=False)
        self.inner_output = nn.Linear(inner, hidden, bias=False)
        # The more layers, the smaller each one's initial output (Radford et al. 2019).
        for linear in (self.attention_output, self.inner_output):
            nn.init.normal_(linear.weight, std=DEVIATION / math.sqrt(2 * config.layers))
        for linear in (self.queries_keys_values, self.gate_and_inner):
            nn.init.normal_(linear.weight, std=DEVIATION)

    def forward(self, x: Tensor, memory: Memory, seen: Tensor) -> tuple[Tensor, Memory]:
        """x: (T, B, H) -> the same, and the memory with these T positions behind it."""
        added, memory = self._attend(self.attention_norm(x), memory, seen)
        x = x + self.drop(added, self.rates.hidden, self.training)
        gate, inner = self.gate_and_inner(self.inner_norm(x)).chunk(2, -1)
        added = self.inner_output(functional.silu(gate) * inner)
        return x + self.drop(added, self.rates.hidden, self.training), memory

    def _attend(self, x: Tensor, memory: Memory, seen: Tensor) -> tuple[Tensor, Memory]:
        steps = x.shape[0]
        found = self.queries_keys_values(x).unflatten(-1, (3, self.heads, -1))
        memory = memory.to(found.dtype)
        positions = torch.arange(memory.shape[0] + steps, device=x.device)
        # The memory by itself: no gradient goes there, so that turning it is not undone.
        before, now = positions[: memory.shape[0]], positions[memory.shape[0] :]
        queries, keys = rotate(found[:, :, :2], now).unbind(2)
        keys = torch.cat([rotate(memory[:, :, 0], before), keys])
        values = torch.cat([memory[:, :, 1], found[:, :, 2]])
        queries, keys, values = (  # (B, heads, T or S + T, D)
            part.permute(1, 2, 0, 3) for part in (queries, keys, values)
        )
        rate = self.rates.state if self.training else 0.0
        result = attention(queries, keys, values, seen, rate)
        memory = torch.cat([memory, found[:, :, 1:]])
        return self.attention_output(result.permute(2, 0, 1, 3).flatten(2)), memory


class Transformer(LanguageModel):
    """E -> blocks -> norm -> softmax. A token sees itself and the `context` - 1 before it, in every
    layer, however the text is cut: what a cut needs of those before it is the state.

    With heads of D columns, keys and values are kept as they are and turned to their positions
    when they are read, counted from the oldest that is kept: only distances matter.
    """

    def __init__(self, config: TransformerConfig, vocabulary: int) -> None:
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        self.rates = Rates(**config.dropout.model_dump(exclude={"locked"}))
        self.drop = locked_dropout if config.dropout.locked else step_dropout
        self.embedding = nn.Parameter(DEVIATION * torch.randn(vocabulary, config.hidden))
        self.blocks = nn.ModuleList(Block(config, self.rates) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, EPSILON)
        self.softmax = Softmax(
            vocabulary,
            config.hidden,
            config.hidden,
            config.tied,
            config.softmax.experts,
            1 / math.sqrt(config.hidden),
            rates=self.rates,
            locked=config.dropout.locked,
        )

    @property
    def widths(self) -> list[int]:
        return [self.config.hidden] * self.config.layers

    # -- states -----------------------------------------------------------------------------

    def alike(self) -> list[nn.Module]:
        return list(self.blocks)

    def initial_state(self, batch: int) -> TransformerState:
        heads = self.config.heads
        columns = self.config.hidden // heads
        return [self.embedding.new_zeros(0, batch, 2, heads, columns) for _ in self.blocks], None

    def selected(self, state: TransformerState, columns: Tensor) -> TransformerState:
        memories, read = state
        return (
            [memory.index_select(1, columns) for memory in memories],
            None if read is None else read.index_select(0, columns),
        )

    def joined(self, states: Sequence[TransformerState]) -> TransformerState:
        lengths = [len(memories[0]) for memories, _ in states]
        longest = max(lengths)
        layers = [
            torch.cat([_lengthened(memory, longest) for memory in layer], 1)
            for layer in zip(*(memories for memories, _ in states), strict=True)
        ]
        if all(read is None for _, read in states) and len(set(lengths)) == 1:
            return layers, None
        read = [
            torch.full((memories[0].shape[1],), len(memories[0]), device=self.device)
            if read is None
            else read
            for memories, read in states
        ]
        return layers, torch.cat(read)

    def kept(self, state: TransformerState, columns: Tensor) -> TransformerState:
        memories, read = state
        if read is None:
            read = torch.full(columns.shape, len(memories[0]), device=self.device)
        return memories, torch.where(columns, read, 0)

    # -- reading ----------------------------------------------------------------------------

    def forward(self, tokens: Tensor | PackedSequence, state: TransformerState) -> Output:
        if isinstance(tokens, PackedSequence):
            return self._packed(tokens, state)
        hidden, dropped, layers, memories = self._read(tokens, state)
        # Lengths by `shape`, which an exported graph keeps variable, as `len` would not.
        length = memories[0].shape[0]
        left = torch.sym_max(0, length - self.config.context + 1)
        newest = [memory[left:] for memory in memories]
        read = None if state[1] is None else (state[1] + len(tokens)).clamp(max=length - left)
        return Output(hidden, dropped, layers, (newest, read))

    def _read(
        self, tokens: Tensor, state: TransformerState
    ) -> tuple[Tensor, Tensor, list[Tensor], list[Memory]]:
        """Hidden, dropped and all layers of tokens (T, B); the memories with T positions more."""
        memories, read = state
        before = memories[0].shape[0]
        seen = visible(tokens.shape[0], before, self.config.context, read, tokens.device)
        x = embedding_dropout(self.embedding, tokens, self.rates.embedding, self.training)
        x = self.drop(x, self.rates.input, self.training)
        layers, after = [], []
        for block, memory in zip(self.blocks, memories, strict=True):
            if self.config.activation_checkpointing and torch.is_grad_enabled():
                x, longer = checkpoint(
                    block, x, memory, seen, use_reentrant=False, context_fn=_drawn_again
                )
            else:
                x, longer = block(x, memory, seen)
            layers.append(x)
            after.append(longer)
        hidden = self.norm(x)
        return hidden, self.drop(hidden, self.rates.output, self.training), layers, after

    def _packed(self, tokens: PackedSequence, state: TransformerState) -> Output:
        """Sentences side by side, padded behind their ends: nothing before sees what is there."""
        padded, lengths = pad_packed_sequence(tokens)
        hidden, dropped, layers, memories = self._read(padded, state)
        order = tokens.sorted_indices

        def rows(x: Tensor) -> Tensor:
            if order is None:
                return pack_padded_sequence(x, lengths).data
            return pack_padded_sequence(x.index_select(1, order), lengths[order.cpu()]).data

        before, lengths_here = len(state[0][0]), lengths.to(padded.device)
        kept = min(self.config.context - 1, len(memories[0]))
        # The newest positions of each sentence, not the padding behind it.
        places = torch.arange(-kept, 0, device=padded.device)[:, None] + before + lengths_here
        places = places.clamp(min=0)[..., None, None, None]
        newest = [memory.take_along_dim(places, 0) for memory in memories]
        had = before if state[1] is None else state[1]
        read = (had + lengths_here).clamp(max=kept)
        return Output(rows(hidden), rows(dropped), list(map(rows, layers)), (newest, read))


def _drawn_again() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The contexts of a layer's computation, and of its recomputation."""
    return nullcontext(), drawing_again()


def _lengthened(memory: Memory, length: int) -> Memory:
    """With zeros in front, to `length` positions."""
    missing = length - len(memory)
    return torch.cat([memory.new_zeros(missing, *memory.shape[1:]), memory])
