"""The base of the recipe sections that describe models."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import nn

from infolm.data.tokens import Tokenizer
from infolm.registry import Registry
from infolm.section import Section

Capability = Literal["language", "latent", "encoder"]
"""A model's capability, which determines its family: predict the next token of a running text
(`LanguageModel`), write sentences from a code (`LatentModel`), turn text into vectors (`Encoder`).
"""


Kept = TypeVar("Kept", bound=Section)


class Size(NamedTuple):
    """parameters: their number. tensors: the number of parameter tensors. rows: of all matrices but
    the vocabulary's, which is the number of outputs of the layers per token."""

    parameters: int
    tensors: int
    rows: int


class Model(nn.Module):
    """The interface of every model."""

    vocabulary: int

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def alike(self) -> list[nn.Module]:
        """Its equal layers in order, which `train.strategy: fully_shard` divides."""
        return []


class ModelConfig(Section):
    """The section of a recipe that describes a model. Every kind is registered."""

    capability: ClassVar[Capability]
    reads_sentences: ClassVar[bool] = True
    """For a language model: whether it can read packed single sentences."""
    answers: ClassVar[bool] = False
    """For a language model: whether it only continues a text that it has read."""
    longest: ClassVar[int | None] = None
    """For a model with a code: maximum words of a line; none: any number."""
    shards: ClassVar[bool] = False
    """Whether processes can divide its layers: see `Model.alike`."""
    if TYPE_CHECKING:
        kind: str

    @abstractmethod
    def build(self, vocabulary: int, tokenizer: Tokenizer | None = None) -> Model:
        """The model; without a tokenizer only to count its parameters."""

    def described(self, objective: str) -> str:
        """A description that 'with N parameters' can follow; objective: its name."""
        return f"A {self.capability} model of kind {self.kind} ({objective})"

    @property
    def called(self) -> str:
        """The name of such models without their size: 'Mogrifier LSTM'."""
        return self.kind

    @property
    def unigram_start(self) -> bool:
        """Whether the softmax's biases start as ln of the words' frequencies."""
        softmax = getattr(self, "softmax", None)
        return softmax is not None and bool(softmax.bias == "unigram")

    def parameters_of(self, vocabulary: int) -> int:
        """The number of parameters, without allocating them."""
        return self.size_of(vocabulary).parameters

    def size_of(self, vocabulary: int) -> Size:
        """The size of the model, without allocating it.

        The size of a repeated part, such as a layer, is linear in its number, so only a few are
        built even here, where none has memory.
        """
        for path, many in _repeated(self):
            if many > FEW + 1:
                few = FEW - 2 + many % 2  # rounds read two kinds of matrices by turns
                less, more = (_replaced(self, path, n).size_of(vocabulary) for n in (few, few + 2))
                each = zip(less, more, strict=True)
                return Size(*(a + (b - a) * (many - few) // 2 for a, b in each))
        with torch.device("meta"):
            model = self.build(vocabulary)
        tensors = list(model.parameters())
        rows = [t.shape[0] for t in tensors if t.dim() > 1 and t.shape[0] != vocabulary]
        return Size(sum(tensor.numel() for tensor in tensors), len(tensors), sum(rows))


REPEATED = ("layers", "rounds")
"""Keys for the number of repetitions of a part of a model."""
FEW = 10


def _repeated(section: Section) -> Iterator[tuple[tuple[str, ...], int]]:
    """The keys in `REPEATED` of a section and of those within it, with their values."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from (((name, *path), many) for path, many in _repeated(value))
        elif name in REPEATED and isinstance(value, int):
            yield (name,), value


def _replaced(section: Kept, path: tuple[str, ...], value: int) -> Kept:
    """The section with another value under a key, unchecked: it was valid with a larger one."""
    name, *rest = path
    inner = _replaced(getattr(section, name), tuple(rest), value) if rest else value
    return section.model_copy(update={name: inner})


MODELS: Registry[ModelConfig] = Registry("infolm.models")
