"""Contextual encoders: `transformers`' BERT and XLNet, with heads for contrastive objectives.

Every objective of the InfoNCE family scores pairs by f(a, b) = g_psi(b) . g_omega(a) (Kong et al.
2020, section 2). The encoder is g_omega, which is kept after training; g_psi is the encoder's
`head`:

| head | g_psi(b) | for |
| --- | --- | --- |
| words | the word's input vector and a bias (BERT's tied output) | MLM, permutation LM, InfoWord |
| context | the word's row of a second table | skip-gram, whose g_omega is the input table alone |
| next | one vector psi for all pairs | next sentence prediction |
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.models.base import MODELS, Model, ModelConfig
from infolm.trees import fits

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Architecture = Literal["bert", "xlnet"]
NAMES = {"bert": "BERT", "xlnet": "XLNet"}
DEVIATION = 0.02
"""Standard deviation of the initial weights, BERT's."""
BERT_SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "length": "max_position_embeddings",
}
"""Key of `EncoderConfig` -> key of a BERT's config.json."""
ALIKE = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "position_embedding_type": "absolute",
}
"""Values that a BERT's config.json must have if it has the key."""


@MODELS.register
class EncoderConfig(ModelConfig):
    """A Transformer that reads whole sequences."""

    capability = "encoder"
    shards = True
    kind: Literal["encoder"] = "encoder"
    architecture: Architecture = Field("bert", description="xlnet: relative positions, two streams")
    layers: int = Field(12, ge=1, description="layers of attention and feed-forward")
    hidden: int = Field(768, ge=2, description="size of every layer and of the word vectors")
    heads: int = Field(12, ge=1, description="attention heads; must divide hidden")
    inner: int | None = Field(
        None, ge=1, description="size inside a feed-forward block; none: 4 x hidden"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate of layers and attention")
    length: int = Field(
        512, ge=8, description="maximum tokens of a sequence, [CLS] and [SEP] included"
    )
    head: Literal["words", "context", "next"] = Field(
        "words", description="the table of b: tied word vectors, a second table, one vector"
    )
    activation_checkpointing: bool = Field(
        False, description="recompute the layers in the backward pass, to save memory"
    )
    checkpoint: Path | None = Field(
        None,
        description="folder of a BERT saved by transformers to start from: its sizes and "
        "vocabulary replace "
        "the recipe's",
    )

    @model_validator(mode="after")
    def _divides(self) -> "EncoderConfig":
        if self.hidden % self.heads:
            raise ValueError(f"heads: {self.heads} does not divide hidden, {self.hidden}")
        if self.activation_checkpointing and self.architecture == "xlnet":
            raise ValueError(
                "activation_checkpointing: transformers' XLNet cannot compute its activations "
                "again: set it to false, or architecture to bert"
            )
        return self

    def build(self, vocabulary: int, tokenizer: Tokenizer | None = None) -> "Encoder":
        pieces = tokenizer is not None and tokenizer.kind == "wordpiece"
        return Encoder(self, vocabulary, tokenizer.special.pad if tokenizer and pieces else 0)

    def described(self, objective: str) -> str:
        if self.head == "context":
            return f"Word vectors of {self.hidden:,} columns ({objective})"
        return (
            f"An encoder ({NAMES[self.architecture]}, {objective}) of {self.layers} "
            f"layer{'s'[: self.layers != 1]} with {self.hidden:,} columns, and"
        )

    def resolved(self) -> "EncoderConfig":
        """With the sizes of the checkpoint, if there is one."""
        if self.checkpoint is None:
            return self
        found = _checkpoint_config(self.checkpoint)
        return self.model_copy(
            update={
                "architecture": "bert",
                "checkpoint": self.checkpoint.absolute(),
                **{key: found[theirs] for key, theirs in BERT_SIZES.items()},
            }
        )


def _checkpoint_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        found = dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InfolmError(
            f"{path} cannot be read ({error}): model.checkpoint is a folder that transformers' "
            "save_pretrained made"
        ) from error
    if found.get("model_type") != "bert":
        raise InfolmError(
            f"{folder} holds a model of type {found.get('model_type')}: model.checkpoint takes a "
            "BERT's"
        )
    for key, value in found.items():
        if key in ALIKE and value != ALIKE[key]:
            raise InfolmError(
                f"{path} has {key} {value}, and encoders here have {ALIKE[key]}: choose another "
                "BERT"
            )
    if lacking := [key for key in BERT_SIZES.values() if not fits(int, found.get(key))]:
        raise InfolmError(f"{path} lacks {', '.join(lacking)}: get the folder again")
    return found


def need_transformers() -> None:
    """Refuse with an instruction if transformers is not installed."""
    if find_spec("transformers") is None:
        raise InfolmError("encoders need transformers: pip install 'infolm[encoders]'")


def transformers_config(config: EncoderConfig, vocabulary: int, pad: int) -> "PretrainedConfig":
    """The same sizes as a configuration of `transformers`."""
    from transformers import BertConfig, XLNetConfig

    inner = config.inner or 4 * config.hidden
    if config.architecture == "xlnet":
        return XLNetConfig(
            vocab_size=vocabulary,
            d_model=config.hidden,
            n_layer=config.layers,
            n_head=config.heads,
            d_inner=inner,
            dropout=config.dropout,
            pad_token_id=pad,
        )
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=inner,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
        max_position_embeddings=config.length,
        pad_token_id=pad,
    )


class WordHead(nn.Module):
    """BERT's: LayerNorm(gelu(W h + c)), to be multiplied with the word vectors; a bias per word."""

    def __init__(self, hidden: int, vocabulary: int, epsilon: float) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, epsilon)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.normal_(self.dense.weight, std=DEVIATION)
        nn.init.zeros_(self.dense.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(functional.gelu(self.dense(hidden)))


class Encoder(Model):
    """tokens (B, L) -> (B, L, D), a vector of each token in its sequence.

    The first token, [CLS], represents the sequence. pad: the id of [PAD].
    """

    def __init__(self, config: EncoderConfig, vocabulary: int, pad: int = 0) -> None:
        need_transformers()
        from transformers import BertModel, XLNetModel

        super().__init__()
        self.config, self.vocabulary, self.pad = config, vocabulary, pad
        sizes = transformers_config(config, vocabulary, pad)
        if config.architecture == "xlnet":
            self.transformer: nn.Module = XLNetModel(sizes)
        else:
            self.transformer = BertModel(sizes, add_pooling_layer=False)
        if config.activation_checkpointing:
            options = {"use_reentrant": False}
            self.transformer.gradient_checkpointing_enable(options)  # type: ignore[operator]
        if config.head == "words":
            epsilon = float(getattr(sizes, "layer_norm_eps", 1e-12))
            self.head = WordHead(config.hidden, vocabulary, epsilon)
        elif config.head == "context":
            # Zero, as in word2vec: no two words are similar before training.
            self.context = nn.Parameter(torch.zeros(vocabulary, config.hidden))
        else:
            self.psi = nn.Parameter(DEVIATION * torch.randn(config.hidden))

    @property
    def embedding(self) -> Tensor:
        """The input vectors of the words, (V, D)."""
        return self.transformer.get_input_embeddings().weight  # type: ignore[operator]

    @property
    def predicts_hidden_words(self) -> bool:
        """Whether `hidden_words` is trained. XLNet's head reads only the query stream, which exists
        only in training."""
        return self.config.head == "words" and self.config.architecture == "bert"

    def hidden_words(self, hidden: Tensor) -> Tensor:
        """ln p of the word at each of these vectors of the last layer, (..., D) -> (..., V)."""
        scores = functional.linear(self.head(hidden), self.embedding, self.head.bias)
        return scores.log_softmax(-1)

    def alike(self) -> list[nn.Module]:
        xlnet = self.config.architecture == "xlnet"
        return list(self.transformer.layer if xlnet else self.transformer.encoder.layer)  # type: ignore

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        hidden_from: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """The last layer, (B, L, D).

        mask (B, L): 1 for tokens, 0 for padding. segments (B, L): 0 for the first sentence, 1 for
        the second. XLNet alone: hidden_from (B, L, L), 1 where a token may not see another, and
        targets (B, S, L), 1 where a place is to be predicted; then the query stream, (B, S, D).
        """
        given: dict[str, Any] = {"attention_mask": mask, "token_type_ids": segments}
        if self.config.architecture == "xlnet":
            given |= {"perm_mask": hidden_from, "target_mapping": targets, "use_mems": False}
        return self.transformer(tokens, **given)[0]
