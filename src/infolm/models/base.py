"""What the section of a recipe that describes a model has in common with its like."""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import nn

from infolm.data.tokens import Tokenizer
from infolm.registry import Registry
from infolm.section import Section

Capability = Literal["language", "latent", "encoder"]
"""What a model can do, and so which family it belongs to: predict the next token of a running text
(`LanguageModel`), write sentences from a code (`LatentModel`), turn text into vectors (`Encoder`).
"""


class Model(nn.Module):
    """What every model has, whatever it can do."""

    vocabulary: int

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


class ModelConfig(Section):
    """The section of a recipe that describes a model. Every kind is registered."""

    capability: ClassVar[Capability]
    reads_sentences: ClassVar[bool] = True
    """Of a language model: whether single sentences, packed, can be read."""
    longest: ClassVar[int | None] = None
    """Of a model with a code: most words of a line; none: any number."""
    if TYPE_CHECKING:
        kind: str

    @abstractmethod
    def build(self, vocabulary: int, tokenizer: Tokenizer | None = None) -> Model:
        """The model; without a tokenizer only to count its parameters."""

    def described(self, objective: str) -> str:
        """What it is, in words that 'with so many parameters' can follow; objective: its name."""
        return f"A {self.capability} model of kind {self.kind} ({objective})"

    @property
    def unigram_start(self) -> bool:
        """Whether the softmax's biases begin as ln of the words' frequencies."""
        softmax = getattr(self, "softmax", None)
        return softmax is not None and bool(softmax.bias == "unigram")

    def parameters_of(self, vocabulary: int) -> int:
        """How many parameters the model has, without making them."""
        with torch.device("meta"):
            model = self.build(vocabulary)
        return sum(parameter.numel() for parameter in model.parameters())


MODELS: Registry[ModelConfig] = Registry("infolm.models")
