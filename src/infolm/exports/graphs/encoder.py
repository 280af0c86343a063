"""An encoder as a graph from tokens to vectors, and one from vectors to hidden words.

    encoder    input_ids, attention_mask, token_type_ids (B, T)
                                  -> last_hidden_state (B, T, D), sentence_embedding (B, D)
    words      hidden (N, D)      -> log_probs (N, V)

Inputs have the names that tokenizers of `transformers` give them. `sentence_embedding` is the mean
over the tokens that the mask does not hide, [CLS] and [SEP] among them.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from infolm.exports.graphs.exporter import exported, save
from infolm.models.encoder import Encoder

INPUTS = ["input_ids", "attention_mask", "token_type_ids"]
OUTPUTS = ["last_hidden_state", "sentence_embedding"]


class _Vectors(nn.Module):
    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        shares = mask.to(torch.float32)  # XLNet subtracts it, which ONNX does of one type alone
        vectors = self.model(tokens, shares, segments)
        counted = shares[..., None]
        return vectors, (vectors * counted).sum(1) / counted.sum(1).clamp(min=1)


class _HiddenWords(nn.Module):
    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, hidden: Tensor) -> Tensor:
        return self.model.hidden_words(hidden)


def encoder_graphs(model: Encoder, folder: Path, int8: bool) -> dict[str, Any]:
    """Write the graphs; what a program must know of them."""
    config = model.config
    tokens = torch.zeros(3, min(4, config.length), dtype=torch.long)
    batch, time = torch.export.Dim("batch"), torch.export.Dim("time", max=config.length)
    each = {0: batch, 1: time}
    given = (tokens, torch.ones_like(tokens), tokens.clone())  # one tensor would be one input
    found = exported(_Vectors(model), given, (each,) * 3, INPUTS, OUTPUTS, int8)
    save(
        found.graph,
        found,
        {name: ("int64", ["batch", "time"]) for name in INPUTS},
        {
            OUTPUTS[0]: ("float32", ["batch", "time", config.hidden]),
            OUTPUTS[1]: ("float32", ["batch", config.hidden]),
        },
        folder / "encoder.onnx",
    )
    described: dict[str, Any] = {"encoder": "encoder.onnx", "columns": config.hidden}
    described["length"] = config.length
    if model.predicts_hidden_words:
        rows = torch.zeros(3, config.hidden)
        found = exported(
            _HiddenWords(model), (rows,), ({0: batch},), ["hidden"], ["log_probs"], int8
        )
        save(
            found.graph,
            found,
            {"hidden": ("float32", ["rows", config.hidden])},
            {"log_probs": ("float32", ["rows", model.vocabulary])},
            folder / "words.onnx",
        )
        described["words"] = "words.onnx"
    return described
