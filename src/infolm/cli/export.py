"""`infolm export`: a trained model for other programs."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from infolm.cli.app import JsonOption, app


class PoolingKind(StrEnum):
    """What stands for a sentence: the mean of its tokens, or the first of them."""

    mean = "mean"
    cls = "cls"


class WeightKind(StrEnum):
    """How exactly matrices are kept."""

    float32 = "float32"
    int8 = "int8"


@app.command()
def export(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="A run's folder; of page also several.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The new folder, or the file of --to page or word2vec.", show_default=False
        ),
    ],
    form: Annotated[
        str, typer.Option("--to", "--as", metavar="FORM", help="Who will read it: see above.")
    ] = "transformers",
    pooling: Annotated[
        PoolingKind | None,
        typer.Option(
            help="Of sentence-transformers: a sentence is the mean of its tokens, or [CLS].",
            show_default="mean",
        ),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(
            "--licence",
            "--license",
            metavar="NAME",
            help="Of transformers: the licence that the model card names, such as cc-by-4.0.",
        ),
    ] = None,
    weights: Annotated[
        WeightKind | None,
        typer.Option(
            help="Of onnx and page: matrices as they are, or in 8 bits, a quarter of the size.",
            show_default="float32",
        ),
    ] = None,
    ngrams: Annotated[
        bool | None,
        typer.Option(
            "--ngrams/--no-ngrams",
            help="Of page: the Kneser-Ney model too. Your text can be read out of it.",
            show_default="ngrams",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="The weights after so many words, such as 1M, of train.exposure.",
            show_default="the best weights",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Save a trained model for other programs.

    \b
    transformers           AutoModelForCausalLM reads a language model, after `import infolm`;
                           AutoModel and AutoModelForMaskedLM an encoder; AutoTokenizer both.
                           Of an XLNet the Transformer alone is saved: transformers has no place
                           for the layer between it and the words.
    sentence-transformers  SentenceTransformer reads the folder of an encoder.
    onnx                   graphs for onnxruntime: of a language model a step and a sequence, of a
                           sentence model its encoder and its decoder's step, or an encoder.
    page                   one HTML file with the models of several runs, which a browser opens
                           without a network: surprisals, alternatives, text written on.
    word2vec               a text file with an encoder's vectors of words, for gensim and others.
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
