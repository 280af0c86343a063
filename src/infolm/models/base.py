"""What the section of a recipe that describes a model has in common with its like."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import nn

from infolm.data.tokens import Tokenizer
from infolm.registry import Registry
from infolm.section import Section

Capability = Literal["language", "latent", "encoder"]
"""What a model can do, and so which family it belongs to: predict the next token of a running text
(`LanguageModel`), write sentences from a code (`LatentModel`), turn text into vectors (`Encoder`).
"""


Kept = TypeVar("Kept", bound=Section)


class Size(NamedTuple):
    """parameters: how many numbers are learnt. tensors: in how many tensors. rows: those of all
    matrices but the vocabulary's, which is how many numbers the layers give for each token."""

    parameters: int
    tensors: int
    rows: int


class Model(nn.Module):
    """What every model has, whatever it can do."""

    vocabulary: int

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def alike(self) -> list[nn.Module]:
        """Its layers, called one after another, that `train.strategy: fully_shard` shares out."""
        return []


class ModelConfig(Section):
    """The section of a recipe that describes a model. Every kind is registered."""

    capability: ClassVar[Capability]
    reads_sentences: ClassVar[bool] = True
    """Of a language model: whether single sentences, packed, can be read."""
    answers: ClassVar[bool] = False
    """Of a language model: whether it writes only what follows what it has read."""
    longest: ClassVar[int | None] = None
    """Of a model with a code: most words of a line; none: any number."""
    shards: ClassVar[bool] = False
    """Whether processes can share out its layers: see `Model.alike`."""
    if TYPE_CHECKING:
        kind: str

    @abstractmethod
    def build(self, vocabulary: int, tokenizer: Tokenizer | None = None) -> Model:
        """The model; without a tokenizer only to count its parameters."""

    def described(self, objective: str) -> str:
        """What it is, in words that 'with so many parameters' can follow; objective: its name."""
        return f"A {self.capability} model of kind {self.kind} ({objective})"

    @property
    def called(self) -> str:
        """What such models are called, whatever their size: 'Mogrifier LSTM'."""
        return self.kind

    @property
    def unigram_start(self) -> bool:
        """Whether the softmax's biases begin as ln of the words' frequencies."""
        softmax = getattr(self, "softmax", None)
        return softmax is not None and bool(softmax.bias == "unigram")

    def parameters_of(self, vocabulary: int) -> int:
        """How many parameters the model has, without making them."""
        return self.size_of(vocabulary).parameters

    def size_of(self, vocabulary: int) -> Size:
        """How large the model is, without making it.

        Of a part that is repeated more than a few times, such as a layer, two more of it are two
        times as much more; not all are made even here, where none has memory.
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
"""Keys that say how often a part of a model is repeated."""
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
    """The section with another value under a key, unchecked: it was sound with a larger one."""
    name, *rest = path
    inner = _replaced(getattr(section, name), tuple(rest), value) if rest else value
    return section.model_copy(update={name: inner})


MODELS: Registry[ModelConfig] = Registry("infolm.models")
