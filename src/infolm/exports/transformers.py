"""A model as a folder that the `Auto...` classes of `transformers` read."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from infolm.errors import InfolmError
from infolm.exports.base import EXPORTS, Export
from infolm.exports.card import model_card
from infolm.families.base import Run

NEEDED = "this needs transformers: install it with `pip install 'infolm[encoders]'`"


@EXPORTS.register
@dataclass(frozen=True)
class Transformers(Export):
    """licence: under which the model is given away, as the model card names it: cc-by-4.0."""

    licence: str | None = None

    kind: ClassVar[str] = "transformers"
    reads: ClassVar[str] = "transformers"

    def language(self, run: Run, making: Path) -> None:
        """`AutoModelForCausalLM` and `AutoTokenizer` read it, after `import infolm`."""
        language_folder(run, making)
        (making / "README.md").write_text(model_card(run, LANGUAGE_USE, self.licence), "utf-8")

    def encoder(self, run: Run, making: Path) -> None:
        """`AutoModel`, `AutoModelForMaskedLM` and `AutoTokenizer` read it."""
        encoder_folder(run, making)
        # With its word head it is a `BertForMaskedLM`, which has no pooler for `AutoModel`.
        without = ", add_pooling_layer=False" if run.model.predicts_hidden_words else ""
        card = model_card(run, ENCODER_USE.format(without=without), self.licence)
        (making / "README.md").write_text(card, "utf-8")


LANGUAGE_USE = """\
import infolm  # registers the model's type with transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
prompt = tokenizer(tokenizer.bos_token + " the", return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=20, do_sample=True)[0]))
"""
ENCODER_USE = """\
from transformers import AutoModel, AutoTokenizer

model = AutoModel.from_pretrained("FOLDER"{without})
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
vectors = model(**tokenizer("a sentence", return_tensors="pt")).last_hidden_state
"""


def language_folder(run: Run, folder: Path) -> None:
    """The language model, its configuration and its tokenizer."""
    try:
        from tokenizers import Tokenizer as Backend
        from transformers import GenerationConfig, PreTrainedTokenizerFast
    except ModuleNotFoundError:
        raise InfolmError(NEEDED) from None
    from infolm.causal_lm import InfolmForCausalLM
    from infolm.causal_lm_config import InfolmConfig
    from infolm.finetuning.networks import quiet

    section = run.recipe.model
    if not section.reads_sentences:
        raise InfolmError(
            f"{run.folder.path} has a model of kind {section.kind}, which cannot read single "
            "sentences, as transformers requires: choose a recurrent model or a Transformer"
        )
    ours = run.tokenizer
    end = ours.written(ours.eos)
    ids = {"bos_token_id": ours.eos, "eos_token_id": ours.eos, "pad_token_id": ours.eos}
    config = InfolmConfig(section.model_dump(mode="json"), len(ours), **ids)
    with quiet(), torch.device("meta"):
        network = InfolmForCausalLM(config)
    network.language_model = run.model
    network.generation_config = GenerationConfig(**ids)
    unknown = {} if ours.unk is None else {"unk_token": ours.written(ours.unk)}
    with quiet():
        network.save_pretrained(folder)
        PreTrainedTokenizerFast(
            tokenizer_object=Backend.from_str(ours.to_json()),
            bos_token=end,
            eos_token=end,
            pad_token=end,
            padding_side="left",
            clean_up_tokenization_spaces=False,
            **unknown,
        ).save_pretrained(folder)


def encoder_folder(run: Run, folder: Path, words: bool = True) -> None:
    """The encoder and its tokenizer; words: with the head that predicts them, if it has one."""
    from infolm.finetuning.networks import save
    from infolm.models.pretrained import as_transformers

    refuse_word_vectors(run)
    model = run.model
    save(as_transformers(model, words), run.tokenizer, model.config.length, folder)


def refuse_word_vectors(run: Run) -> None:
    """Refuse an encoder whose Transformer is not trained."""
    if run.model.config.head == "context":
        raise InfolmError(
            f"{run.folder.path} has only word vectors and no trained Transformer, since its "
            "objective "
            f"is {run.recipe.objective.kind}: use --to word2vec"
        )
