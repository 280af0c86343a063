"""The configuration of an infolm language model, as `transformers` stores it in config.json."""

from typing import Any

from transformers import AutoConfig, PreTrainedConfig


class InfolmConfig(PreTrainedConfig):
    """architecture: the section `model` of the run's recipe, every key with its value."""

    model_type = "infolm"

    def __init__(
        self, architecture: dict[str, Any] | None = None, vocab_size: int = 0, **others: Any
    ) -> None:
        self.architecture = architecture or {}
        self.vocab_size = vocab_size
        self.tie_word_embeddings = bool(self.architecture.get("tied", False))
        super().__init__(**{"tie_word_embeddings": self.tie_word_embeddings} | others)


AutoConfig.register(InfolmConfig.model_type, InfolmConfig, exist_ok=True)
