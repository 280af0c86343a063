"""`infolm export`: an encoder for other libraries."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infolm import files
from infolm.cli.app import JsonOption, RunArgument, app
from infolm.errors import InfolmError, RunError

if TYPE_CHECKING:
    from infolm.data.tokens import Tokenizer
    from infolm.models.encoder import Encoder


class Form(StrEnum):
    """Which library reads it."""

    transformers = "transformers"
    sentence_transformers = "sentence-transformers"
    word2vec = "word2vec"


class PoolingKind(StrEnum):
    """What stands for a sentence: the mean of its tokens, or the first of them."""

    mean = "mean"
    cls = "cls"


@app.command()
def export(
    run: RunArgument,
    out: Annotated[
        Path, typer.Option(help="The new folder, or the file of --as word2vec.", show_default=False)
    ],
    form: Annotated[
        Form, typer.Option("--as", help="The library that will read it.")
    ] = Form.transformers,
    pooling: Annotated[
        PoolingKind | None,
        typer.Option(
            help="Of sentence-transformers: a sentence is the mean of its tokens, or [CLS].",
            show_default="mean",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Save an encoder for other libraries.

    \b
    transformers           AutoModel, AutoModelForMaskedLM and AutoTokenizer read the folder.
                           Of an XLNet the Transformer alone is saved: transformers has no place
                           for the layer between it and the words.
    sentence-transformers  SentenceTransformer reads the folder.
    word2vec               a text file with the vectors of the words, for gensim and others.
    """
    from infolm.families.base import open_run
    from infolm.models.encoder import Encoder

    if pooling and form is not Form.sentence_transformers:
        raise InfolmError("--pooling is of sentence vectors: add --as sentence-transformers")
    if out.exists():
        raise InfolmError(f"{out} exists already: name another with --out")
    opened = open_run(run)
    recipe, tokenizer, model = opened.recipe, opened.tokenizer, opened.model
    if not isinstance(model, Encoder):
        raise InfolmError(
            f"{run} is a run of model.kind {recipe.model.kind}, and only encoders are exported: "
            "take a run whose model.kind is encoder"
        )
    if model.config.head == "context" and form is not Form.word2vec:
        raise InfolmError(
            f"{run} has learnt vectors of words and no Transformer, its objective being "
            f"{recipe.objective.kind}: take --as word2vec"
        )
    with _whole(out) as making:
        match form:
            case Form.transformers:
                _for_transformers(model, tokenizer, making)
            case Form.sentence_transformers:
                _for_sentences(model, tokenizer, pooling or PoolingKind.mean, making)
            case Form.word2vec:
                from infolm.word_vectors import WordVectors

                WordVectors.open(run).save(making)
    print(json.dumps({"run": str(run), "as": form.value, "out": str(out)}) if as_json else out)


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A name to write a file or a folder to, which then becomes `out`; or no trace is left."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        files.sweep(out.parent, out.name)
        with files.scratch_folder(out.parent, f".{out.name}") as scratch:
            making = scratch / out.name
            yield making
            os.replace(making, out)
    except OSError as error:
        raise RunError(f"{out} cannot be made ({error}): choose another --out") from error


def _for_transformers(model: "Encoder", tokenizer: "Tokenizer", folder: Path) -> None:
    from infolm.finetuning.networks import save
    from infolm.models.pretrained import as_transformers

    save(as_transformers(model), tokenizer, model.config.length, folder)


def _for_sentences(
    model: "Encoder", tokenizer: "Tokenizer", pooling: PoolingKind, folder: Path
) -> None:
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    except ModuleNotFoundError:
        raise InfolmError(
            "this needs sentence-transformers: install it with `pip install 'infolm[sentences]'`"
        ) from None
    from infolm.finetuning.networks import quiet

    plain = folder.with_name("transformers")  # which sentence-transformers reads, and writes anew
    _for_transformers(model, tokenizer, plain)
    with quiet():
        reader = Transformer(
            str(plain),
            max_seq_length=model.config.length,
            model_kwargs={"local_files_only": True},
            processor_kwargs={"local_files_only": True},
            config_kwargs={"local_files_only": True},
        )
        modules = [reader, Pooling(model.config.hidden, pooling.value)]
        SentenceTransformer(modules=modules, device="cpu").save(
            str(folder), create_model_card=False
        )
