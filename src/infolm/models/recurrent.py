"""The recurrent language model: an embedding, a stack of cells, a softmax."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeVar

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.models.base import MODELS, ModelConfig
from infolm.models.language import LanguageModel, Output
from infolm.nn.cells.base import CELLS, Cell, State
from infolm.nn.cells.mogrifier import GateKind, Mogrifier
from infolm.nn.dropout import Rates, embedding_dropout, locked_dropout, step_dropout
from infolm.nn.softmax import Softmax
from infolm.nn.stack import Connections, Stack, unpacked
from infolm.section import Section, count

Rate = Annotated[float, Field(ge=0, lt=1)]
if TYPE_CHECKING:
    CellName = str
else:
    CellName = CELLS.name()


class DropoutConfig(Section):
    """Rates of the dropouts on activations; 0 switches one off."""

    embedding: Rate = Field(0.0, description="whole words of the embedding matrix")
    input: Rate = Field(0.0, description="the embedded words")
    hidden: Rate = Field(
        0.0, description="each layer's output, as read by the next layer or a sum (not skip-raw's)"
    )
    state: Rate = Field(0.0, description="the state as read by the matrices, one mask over time")
    output: Rate = Field(0.0, description="the softmax's input")
    locked: bool = Field(
        True, description="input, hidden, output: one mask over time, or a new one each step"
    )


class MogrifierConfig(Section):
    """Rounds in which input and state gate each other before the cell."""

    rounds: int = Field(0, ge=0, description="r; 0: none")
    rank: int = Field(0, ge=0, description="k of the matrices; 0: full")
    zigzag: bool = Field(True, description="each gate reads the result of the one before")
    gate: GateKind = Field(
        "linear",
        description="inside a gate's sigmoid: linear (eq. 2.2), affine: with a bias, constant: "
        "only the bias, a learnt scale",
    )


class SoftmaxConfig(Section):
    """The distribution over the next token."""

    experts: int = Field(1, ge=1, description="softmaxes of the mixture; 1: a plain softmax")
    bias: Literal["uniform", "unigram"] = Field(
        "uniform", description="the words' initial biases: small, or ln of their frequencies"
    )


class ProjectedSoftmaxConfig(SoftmaxConfig):
    """The same for a model whose output may be projected before the softmax."""

    dropout: Rate = Field(
        0.0,
        description="dropout of the latent vectors: the output of the mixture's experts, or of "
        "the projection "
        "to the embedding's size; one mask over time if model.dropout.locked",
    )
    projected: bool = Field(
        False,
        description="untied: project the output to the embedding's size first, as where tied",
    )


class LayersConfig(Section):
    """A stack of recurrent layers."""

    cell: CellName = Field("lstm", description="the recurrent cell")
    mogrifier: MogrifierConfig = MogrifierConfig()
    capped: bool = Field(
        False, description="input gate at most 1 - forget gate, in lstm and multiplicative"
    )
    chrono: float | None = Field(
        None, gt=2, description="T_max of the forget gate's initial bias; none: uniform, small"
    )
    forget_bias: float = Field(
        0.0, description="added to the forget gate's initial bias; instead of chrono"
    )
    connections: Connections = Field(
        "stacked",
        description="how the layers are joined; skip and residual sum the outputs after their "
        "dropout, skip-raw before it",
    )
    hidden: int = Field(1150, ge=1, description="size of the layers")
    layers: int = Field(3, ge=1, description="number of recurrent layers")
    weight_drop: Rate = Field(0.0, description="DropConnect on the hidden-to-hidden matrices")
    dropout: DropoutConfig = DropoutConfig()

    @model_validator(mode="after")
    def _one_start_of_the_forget_gate(self) -> Self:
        if self.chrono and self.forget_bias:
            raise ValueError(
                f"chrono is {self.chrono:g} and forget_bias {self.forget_bias:g}, which both start "
                "the forget gate: set chrono=null, or forget_bias=0"
            )
        return self

    @property
    def layers_in_words(self) -> str:
        """'2 Mogrifier LSTM layers'."""
        plural = "s"[: self.layers != 1]
        return f"{self.layers} {self.cell_in_words} layer{plural}"

    @property
    def cell_in_words(self) -> str:
        """'Mogrifier LSTM'."""
        return ("Mogrifier " if self.mogrifier.rounds else "") + CELLS[self.cell].label


@MODELS.register
class RecurrentConfig(LayersConfig, ModelConfig):
    """A recurrent language model."""

    capability = "language"
    kind: Literal["recurrent"] = "recurrent"
    embedding: int = Field(400, ge=1, description="size of the embedding")
    hidden: int = Field(1150, ge=1, description="size of the layers (stacked: except the last)")
    last_hidden: int | None = Field(
        None, ge=1, description="stacked: size of the last layer; none: the embedding's"
    )
    parameters: Annotated[int | None, BeforeValidator(count)] = Field(
        None, ge=1, description="maximum parameters, such as 24M: decides `hidden` and `embedding`"
    )
    embedding_ratio: float = Field(
        1.0, ge=0, description="with `parameters`: embedding / hidden; from 1 on they are equal"
    )
    tied: bool = Field(True, description="the softmax shares the embedding's weights")
    softmax: ProjectedSoftmaxConfig = ProjectedSoftmaxConfig()

    @model_validator(mode="after")
    def _last_layer_differs(self) -> Self:
        if self.last_hidden is not None and self.connections != "stacked":
            raise ValueError(
                f"last_hidden is for stacked layers; those of connections: {self.connections} are "
                "all of one size: leave it out"
            )
        return self

    def build(self, vocabulary: int, tokenizer: Tokenizer | None = None) -> "RecurrentModel":
        return RecurrentModel(self, vocabulary)

    def described(self, objective: str) -> str:
        return f"A language model of {self.layers_in_words}"

    @property
    def called(self) -> str:
        return self.cell_in_words


C = TypeVar("C", bound=RecurrentConfig)


class RecurrentModel(LanguageModel):
    """Every recurrent language model of the recipes; tokens are time-major, (T, B).

    Stacked (AWD-LSTM, Merity et al. 2017): E -> H -> ... -> H -> E. The first layer reads and the
    last one writes the embedding's size, so that tying needs no projection; a mixture of softmaxes
    projects anyway, and may read a last layer of another size.
    Skip and residual (Melis et al. 2020; Melis 2023): E -> H -> ... -> H, all layers of one size,
    projected to the embedding's where the two differ and the softmax is tied, or says so.
    The embedding is initialised U(-0.1, 0.1), all else U(-1/sqrt(H), 1/sqrt(H)).
    """

    def __init__(self, config: RecurrentConfig, vocabulary: int) -> None:
        super().__init__()
        config = within_budget(config, lambda sized: RecurrentModel(sized, vocabulary))
        self.config = config
        self.vocabulary = vocabulary
        self.rates = replace(rates(config), latent=config.softmax.dropout)
        self.embedding = nn.Parameter(torch.empty(vocabulary, config.embedding).uniform_(-0.1, 0.1))
        self.stack = recurrent_layers(config, self.rates)
        self.softmax = Softmax(
            vocabulary,
            self.stack.widths[-1],
            config.embedding,
            config.tied,
            config.softmax.experts,
            1 / math.sqrt(config.hidden),
            config.softmax.projected,
            self.rates,
            config.dropout.locked,
        )

    @property
    def widths(self) -> list[int]:
        return self.stack.widths

    @property
    def activations(self) -> int:
        return 8 * self.config.layers * max(self.config.hidden, self.config.embedding)

    def initial_state(self, batch: int) -> list[State]:
        """The state before any token: zeros."""
        return self.stack.initial_state(batch)

    def forward(self, tokens: Tensor | PackedSequence, state: list[State]) -> Output:
        """tokens: (T, B), or packed sentences -> what predicts the token after each."""
        rates, drop = self.rates, locked_dropout if self.config.dropout.locked else step_dropout
        rows, packed = unpacked(tokens)
        sizes = packed.batch_sizes if packed else None
        x = embedding_dropout(self.embedding, rows, rates.embedding, self.training)
        x = drop(x, rates.input, self.training, sizes)
        hidden, layers, after = self.stack(packed._replace(data=x) if packed else x, state)
        return Output(hidden, drop(hidden, rates.output, self.training, sizes), layers, after)

    def selected(self, state: list[State], columns: Tensor) -> list[State]:
        return [tuple(tensor.index_select(1, columns) for tensor in layer) for layer in state]

    def joined(self, states: Sequence[list[State]]) -> list[State]:
        return [
            tuple(torch.cat(parts, 1) for parts in zip(*layers, strict=True))
            for layers in zip(*states, strict=True)
        ]

    def kept(self, state: list[State], columns: Tensor) -> list[State]:
        factor = columns.to(self.embedding.dtype)[:, None]
        return [tuple(tensor * factor for tensor in layer) for layer in state]


def rates(config: LayersConfig) -> Rates:
    """The dropout rates of these layers."""
    return Rates(weight=config.weight_drop, **config.dropout.model_dump(exclude={"locked"}))


def recurrent_layers(config: RecurrentConfig, rates: Rates) -> Stack:
    """The layers of a language model whose sizes are decided."""
    return build_stack(config, config.embedding, config.last_hidden or config.embedding, rates)


def build_stack(config: LayersConfig, inputs: int, last: int | None, rates: Rates) -> Stack:
    """The layers that `config` describes, behind `inputs` columns.

    last: the size of the last one, where that differs and the layers are stacked.
    """
    widths = [config.hidden] * config.layers
    if last and config.connections == "stacked":
        widths[-1] = last
    cells = []
    for width in widths:
        cells.append(build_cell(config, inputs, width, rates))
        inputs = width
    return Stack(cells, config.connections, rates, config.dropout.locked)


def build_cell(config: LayersConfig, inputs: int, hidden: int, rates: Rates) -> Cell:
    """One layer."""
    options, mogrifier = config.mogrifier, None
    if options.rounds:
        if options.rank > min(inputs, hidden):
            raise InfolmError(
                f"model.mogrifier.rank is {options.rank}, above the size of what it gates "
                f"({inputs} inputs, {hidden} units): lower it, or set 0 for full rank"
            )
        mogrifier = Mogrifier(
            inputs, hidden, options.rounds, options.rank, options.zigzag, options.gate
        )
    kind = CELLS[config.cell]
    capped = {"capped": config.capped} if kind.can_cap else {}
    cell = kind(inputs, hidden, rates, mogrifier, **capped)
    if config.chrono:
        cell.chrono(config.chrono)
    if config.forget_bias:
        cell.remember(config.forget_bias)
    return cell


def within_budget(config: C, build: Callable[[C], nn.Module]) -> C:
    """`config` with the largest `hidden` (and the `embedding` that goes with it) whose model has at
    most `config.parameters` parameters; `config` itself if there is no budget."""
    budget = config.parameters
    if budget is None:
        return config

    def sized(hidden: int) -> C:
        ratio = min(config.embedding_ratio, 1.0)
        sizes = {"hidden": hidden, "embedding": max(1, round(ratio * hidden))}
        return config.model_copy(update={**sizes, "parameters": None})

    def weights(hidden: int) -> int:
        trial = sized(hidden)
        rank = min(trial.mogrifier.rank, trial.embedding)  # a rank too high is refused at the end
        full = config.mogrifier.model_copy(update={"rank": rank})
        with torch.device("meta"):
            model = build(trial.model_copy(update={"mogrifier": full}))
        return sum(parameter.numel() for parameter in model.parameters())

    least = weights(1)
    if least > budget:
        raise InfolmError(
            f"model.parameters is {budget:,}, but the smallest such model has {least:,}: "
            "raise it, or lower data.vocabulary"
        )
    # A layer has at least a matrix of hidden x hidden. The number of parameters is nearly the
    # square of a linear function, so its root is interpolated: a few models are built, not a dozen.
    low, high = 1, math.isqrt(budget) + 1
    at_low, at_high, goal = (math.sqrt(n) for n in (least, weights(high), budget))
    while high - low > 1:
        middle = low + int((high - low) * (goal - at_low) / (at_high - at_low))
        middle = min(max(middle, low + 1), high - 1)
        root = math.sqrt(weights(middle))
        if root <= goal:
            low, at_low = middle, root
        else:
            high, at_high = middle, root
    return sized(low).model_copy(update={"parameters": budget})
