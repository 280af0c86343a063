"""`infolm export`: save a trained model for other programs."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from infolm.cli.app import JsonOption, app


class PoolingKind(StrEnum):
    """How tokens become a sentence vector: their mean, or the first token."""

    mean = "mean"
    cls = "cls"


class WeightKind(StrEnum):
    """The precision of the saved matrices."""

    float32 = "float32"
    int8 = "int8"


@app.command()
def export(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="A run's folder; several for page.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The new folder; with --to page or word2vec, the new file.", show_default=False
        ),
    ],
    form: Annotated[
        str, typer.Option("--to", "--as", metavar="FORM", help="The format: see above.")
    ] = "transformers",
    pooling: Annotated[
        PoolingKind | None,
        typer.Option(
            help="For sentence-transformers: a sentence vector is the mean of its tokens, or "
            "[CLS].",
            show_default="mean",
        ),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(
            "--licence",
            "--license",
            metavar="NAME",
            help="For transformers: the licence named in the model card, such as cc-by-4.0.",
        ),
    ] = None,
    weights: Annotated[
        WeightKind | None,
        typer.Option(
            help="For onnx and page: matrices as trained, or in 8 bits, a quarter of the size.",
            show_default="float32",
        ),
    ] = None,
    ngrams: Annotated[
        bool | None,
        typer.Option(
            "--ngrams/--no-ngrams",
            help="For page: include the Kneser-Ney model. Your text can be recovered from it.",
            show_default="ngrams",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="The weights after this many words, such as 1M, of train.exposure.",
            show_default="the best weights",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Save a trained model for other programs.

    \b
    transformers           AutoModelForCausalLM loads a language model, after `import infolm`;
                           AutoModel and AutoModelForMaskedLM load an encoder; AutoTokenizer both.
                           Of an XLNet only the Transformer is saved: transformers has no place
                           for the layer between it and the words.
    sentence-transformers  SentenceTransformer loads an encoder.
    onnx                   graphs for onnxruntime: a language model's step and sequence, a sentence
                           model's encoder and decoder step, or an encoder.
    page                   one HTML file with the models of one or more runs, which a browser opens
                           offline: surprisals, alternatives, continuations.
    word2vec               a text file of an encoder's word vectors, for gensim and others.
    """
    from infolm.exports.base import export as write
    from infolm.exports.base import made
    from infolm.families.base import open_run

    options = {
        "pooling": pooling and pooling.value,
        "licence": licence,
        "weights": weights and weights.value,
        "ngrams": ngrams,
    }
    chosen = made(form, options)
    words = _words(at)
    opened = [open_run(run, words) for run in runs]
    write(opened[0], chosen, out, *opened[1:])
    named = [str(run) for run in runs]
    told = {"run": named[0] if len(named) == 1 else named, "as": form, "out": str(out)}
    print(json.dumps(told) if as_json else out)


def _words(at: str | None) -> int | None:
    """'1M' or '1000000' as a number."""
    from infolm.errors import InfolmError
    from infolm.section import count

    if at is None:
        return None
    number = count(at)
    try:
        return int(number)
    except ValueError:
        raise InfolmError(f"--at is a number of words, such as 1M, not '{at}'") from None
