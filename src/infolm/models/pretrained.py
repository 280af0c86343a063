"""Loading and saving an encoder as the folder of a BERT: `config.json` and `model.safetensors`.

A folder to start from is a public BERT, or one saved by `transformers`. Its tensors have the names
below, with or without the prefix "bert."; old ones have gamma and beta instead of weight and bias.

| there | here |
| --- | --- |
| bert.embeddings..., bert.encoder... | transformer.embeddings..., transformer.encoder... |
| cls.predictions.transform.dense, .LayerNorm | head.dense, head.norm |
| cls.predictions.bias | head.bias |

The pooler and the classifier of sentence pairs are not used here and are left out. The output
table, cls.predictions.decoder, is the input table.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from infolm.errors import InfolmError
from infolm.models.encoder import Encoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WORDS = "transformer.embeddings.word_embeddings.weight"
OUTPUT = "transformer.cls.predictions.decoder.weight"
HEAD = {
    "transformer.cls.predictions.transform.dense.": "head.dense.",
    "transformer.cls.predictions.transform.LayerNorm.": "head.norm.",
    "transformer.cls.predictions.bias": "head.bias",
}


def load_pretrained(folder: Path, model: Encoder) -> str:
    """Copy the weights of the BERT in `folder` into an encoder of its sizes; returns a message.

    If the encoder has a word head and the folder has none, or one with its own output table, the
    head keeps its initial weights.
    """
    found, own = _renamed(_tensors(folder)), model.state_dict()
    table = found.get(WORDS, torch.empty(0))
    if len(table) not in (0, model.vocabulary):
        raise InfolmError(
            f"{folder} has the vectors of {len(table):,} word pieces and a vocabulary of "
            f"{model.vocabulary:,}: give the vocabulary that belongs to the model"
        )
    head = {name for name in own if name.startswith("head.")}
    fresh = {name for name in own if not name.startswith("transformer.")}
    if head <= found.keys() and torch.equal(found.get(OUTPUT, table), table):
        fresh -= head
    for name in own.keys() - fresh:
        shape = tuple(found[name].shape) if name in found else "missing"
        if shape != tuple(own[name].shape):
            raise InfolmError(
                f"{folder / 'model.safetensors'} is not of the BERT that config.json describes: "
                f"'{name.removeprefix('transformer.')}' is {shape}, and should be "
                f"{tuple(own[name].shape)}; get the folder again"
            )
    model.load_state_dict(own | {name: found[name] for name in own.keys() - fresh})
    if not head:
        return f"starting from {folder}"
    lacking = "; it has no head that predicts words, so the head starts untrained"
    return f"starting from {folder}{lacking if fresh else ', with its head that predicts words'}"


def _tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / "model.safetensors"
    if not path.exists() and (folder / "pytorch_model.bin").exists():
        raise InfolmError(
            f"{folder} has its weights in pytorch_model.bin, which is a pickle and may run any "
            'program: convert a folder that you trust by `python -c "from transformers import '
            f"AutoModelForMaskedLM as M; M.from_pretrained('{folder}').save_pretrained('NEW')\"`, "
            "and copy its vocabulary to NEW"
        )
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InfolmError(
            f"{path} cannot be read ({error}): model.checkpoint is a folder that transformers' "
            "save_pretrained made"
        ) from error


def _renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names that they have in an `Encoder`."""
    found = {}
    for name, tensor in tensors.items():
        stem, _, last = name.removeprefix("bert.").rpartition(".")
        last = {"gamma": "weight", "beta": "bias"}.get(last, last)
        name = f"transformer.{stem}.{last}"
        for beginning, ours in HEAD.items():
            if name.startswith(beginning):
                name = name.replace(beginning, ours)
        found[name] = tensor
    return found


def as_transformers(model: Encoder, words: bool = True) -> "PreTrainedModel":
    """The encoder as a model of `transformers`, to be saved.

    A BERT with a word head is a `BertForMaskedLM`, unless without `words`; any other is a
    `BertModel`. An XLNet is an `XLNetModel`: its word head is left out, as `XLNetLMHeadModel` has
    no place for the layer between the last hidden one and the words.
    """
    from transformers import BertForMaskedLM, BertModel

    if model.config.architecture == "xlnet":
        return model.transformer
    config, weights = model.transformer.config, model.transformer.state_dict()
    if not (words and model.predicts_hidden_words):
        network = BertModel(config)
        # `AutoModel` has a pooler, and draws one at random where the folder has none. This one
        # gives tanh of the vector of [CLS].
        hidden = model.config.hidden
        weights |= {"pooler.dense.weight": torch.eye(hidden)}
        weights |= {"pooler.dense.bias": torch.zeros(hidden)}
        network.load_state_dict(weights)
        return network.eval()
    network = BertForMaskedLM(config)
    network.bert.load_state_dict(weights)
    predictions = network.cls.predictions
    predictions.transform.dense.load_state_dict(model.head.dense.state_dict())
    predictions.transform.LayerNorm.load_state_dict(model.head.norm.state_dict())
    with torch.no_grad():
        predictions.bias.copy_(model.head.bias)
    return network.eval()
