"""The networks for fine-tuning: `transformers`' own, around a pretrained encoder.

| what is told | BERT | XLNet |
| --- | --- | --- |
| a class or a score, `pooler` | `BertForSequenceClassification` | `XLNetForSequence...` |
| the same, `linear` | `BertForTokenClassification` | `XLNetForTokenClassification` |
| start and end of a span | `BertForQuestionAnswering` | `XLNetForQuestionAnsweringSimple` |

With x_0 the vector of [CLS], the scores of the classes are W tanh(P x_0) with BERT's pooler P, and
W x_0 with the plain linear layer (Kong et al. 2020, section 5.3): that of a network that scores
every token, read at [CLS] alone. The last is their appendix C: the scores of token m are
w_start . x_m and w_end . x_m. What is saved, `AutoModelFor...` of that name reads.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from infolm.data.tokens import SPECIAL, Tokenizer
from infolm.errors import InfolmError
from infolm.families.base import open_run
from infolm.models.encoder import need_transformers, transformers_config

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True, eq=False)
class Pretrained:
    """An encoder to be fine-tuned.

    sizes: as `transformers` has them. weights: of its `BertModel` or `XLNetModel`; None if each
    network starts from random weights, the baseline. length: maximum tokens of a sequence.
    """

    sizes: "PreTrainedConfig"
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    length: int


def open_encoder(path: Path) -> Pretrained:
    """The encoder of a run, or of a folder where `transformers` saved a BERT."""
    need_transformers()
    if (path / "recipe.yaml").is_file():
        return _of_run(path)
    if (path / "config.json").is_file():
        return _of_bert(path)
    raise InfolmError(
        f"{path} is not an encoder's folder: give a run's folder, with a recipe.yaml, or a "
        "BERT's folder saved "
        "by transformers, with a config.json"
    )


def _of_run(path: Path) -> Pretrained:
    run = open_run(path)
    recipe, tokenizer, model = run.recipe, run.tokenizer, run.model
    if recipe.model.capability != "encoder":
        raise InfolmError(
            f"{path} is a run of model.kind {recipe.model.kind}, and only encoders can be "
            "fine-tuned: choose a run whose model.kind is encoder"
        )
    sizes = transformers_config(model.config, len(tokenizer), tokenizer.special.pad)
    weights = {name: weight.cpu() for name, weight in model.transformer.state_dict().items()}
    return Pretrained(sizes, weights, tokenizer, model.config.length)


def _of_bert(path: Path) -> Pretrained:
    from transformers import BertModel

    try:
        kind = json.loads((path / "config.json").read_bytes())["model_type"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InfolmError(
            f"{path / 'config.json'} is not one of transformers' ({error!r}): get the folder again"
        ) from error
    if kind != "bert":
        raise InfolmError(f"{path} holds a model of type {kind}: give a folder with a BERT")
    tokenizer = Tokenizer.from_bert(path)
    try:
        with quiet():
            model, found = BertModel.from_pretrained(
                path, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())
        raise InfolmError(
            f"{path} has no weights of a BERT that can be read ({said}): it needs config.json and "
            "model.safetensors, as transformers saves them"
        ) from error
    if model.config.vocab_size < len(tokenizer):
        raise InfolmError(
            f"{path} has a vocabulary of {len(tokenizer):,} pieces and a model of "
            f"{model.config.vocab_size:,}: give the vocabulary that belongs to the model"
        )
    # A layer on top of [CLS] that the folder lacks is drawn anew with each network.
    weights = {k: w for k, w in model.state_dict().items() if k not in found["missing_keys"]}
    return Pretrained(model.config, weights, tokenizer, model.config.max_position_embeddings)


Head = Literal["pooler", "linear"]
"""The head between the vector of [CLS] and the classes."""


def classifier(
    encoder: Pretrained, labels: Sequence[str], head: Head = "pooler"
) -> "PreTrainedModel":
    """A network with a score for each class; with one score, to be learnt by its squared error,
    where there are none. Its new weights are drawn by PyTorch's global generator.

    Its `logits` are (B, C) with a pooler, and (B, L, C) with a linear head: those of [CLS] stand at
    place 0.
    """
    from transformers import (
        BertForSequenceClassification,
        BertForTokenClassification,
        XLNetForSequenceClassification,
        XLNetForTokenClassification,
    )

    sizes = copy.deepcopy(encoder.sizes)
    sizes.num_labels = max(1, len(labels))
    sizes.problem_type = "single_label_classification" if labels else "regression"
    if labels:
        sizes.id2label = dict(enumerate(labels))
        sizes.label2id = {label: number for number, label in enumerate(labels)}
    if head == "linear":
        if sizes.model_type == "xlnet":
            return _with_weights(XLNetForTokenClassification(_forgetful(sizes)), encoder)
        return _with_weights(BertForTokenClassification(sizes), encoder)
    if sizes.model_type == "xlnet":
        # XLNet's own sequences end with [CLS]; ours begin with it.
        sizes.summary_type, sizes.summary_last_dropout = "first", sizes.dropout
        return _with_weights(XLNetForSequenceClassification(_forgetful(sizes)), encoder)
    return _with_weights(BertForSequenceClassification(sizes), encoder)


def span_finder(encoder: Pretrained) -> "PreTrainedModel":
    """A network with the scores of each token as the first and as the last of the answer."""
    from transformers import BertForQuestionAnswering, XLNetForQuestionAnsweringSimple

    sizes = copy.deepcopy(encoder.sizes)
    sizes.num_labels = 2
    if sizes.model_type == "xlnet":
        return _with_weights(XLNetForQuestionAnsweringSimple(_forgetful(sizes)), encoder)
    return _with_weights(BertForQuestionAnswering(sizes), encoder)


def _forgetful(sizes: "PreTrainedConfig") -> "PreTrainedConfig":
    """XLNet without its memory of the sequence before."""
    sizes.use_mems_eval = sizes.use_mems_train = False
    return sizes


def _with_weights(network: "PreTrainedModel", encoder: Pretrained) -> "PreTrainedModel":
    inner = network.base_model
    own = inner.state_dict()
    inner.load_state_dict(own | {k: w for k, w in encoder.weights.items() if k in own})
    return network


def save(network: "PreTrainedModel", tokenizer: Tokenizer, length: int, folder: Path) -> None:
    """The network and its tokenizer, as `Auto...from_pretrained(folder)` reads them."""
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerFast

    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    with quiet():
        network.save_pretrained(folder)
        PreTrainedTokenizerFast(
            tokenizer_object=Backend.from_str(tokenizer.to_json()),
            model_max_length=length,
            **dict(zip(names, SPECIAL, strict=True)),
        ).save_pretrained(folder)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the bars and remarks of `transformers`."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
