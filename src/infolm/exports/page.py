"""The microscope: language models as one HTML file that a browser opens without any network.

The file holds the models' arrays, their vocabularies and a runtime in plain JavaScript, the files
of `infolm/web`. A recurrent cell is included as the program of its step, so the runtime knows only
operations, not cells.
"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infolm.data.prose import BOTH, CLOSING, ENDINGS, OPENING
from infolm.data.tokens import Tokenizer, word_pattern
from infolm.errors import InfolmError
from infolm.evaluation.kneser_ney import KneserNey
from infolm.evaluation.suite import NGRAM_ORDER
from infolm.exports.base import EXPORTS, Export, Weights
from infolm.families.base import Run
from infolm.families.running.scoring import NgramScorer
from infolm.nn.cells.base import Cell
from infolm.nn.recurrence.program import Node, trace
from infolm.nn.softmax import Softmax

Described = dict[str, Any]

MODULES = ("arrays", "models", "tokens", "scoring", "microscope")
"""Of the runtime, each before those that import it."""
SHOWN = 40
"""Tokens of the validation text, at most, that a page opens with."""


@EXPORTS.register
@dataclass(frozen=True)
class Page(Export):
    """weights: the precision of matrices. ngrams: whether to include the Kneser-Ney model of each
    text, from which the text can be recovered."""

    weights: Weights = "float32"
    ngrams: bool = True

    kind: ClassVar[str] = "page"
    reads: ClassVar[str] = "a browser"
    several: ClassVar[bool] = True

    def language(self, run: Run, making: Path, *more: Run) -> None:
        """One file for all runs, side by side."""
        runs = (run, *more)
        tokenizers: dict[str, Described] = {}
        models: list[Described] = []
        blobs: list[str] = []
        texts: set[str] = set()

        def add(
            name: str, about: str, each: Run, describe: Callable[["Arrays"], Described]
        ) -> None:
            key = each.tokenizer.to_json()
            tokenizers.setdefault(key, described_tokenizer(each.tokenizer))
            arrays = Arrays(self.weights)
            model = describe(arrays)
            place = list(tokenizers).index(key)
            named = {"name": name, "about": about, "tokenizer": place}
            models.append({**named, "model": model, "arrays": arrays.described})
            blobs.append(arrays.packed())

        for each in runs:
            network, section = each.model, each.recipe.model
            describe = DESCRIBED.get(section.kind)
            if describe is None:
                raise InfolmError(
                    f"{each.folder.path} has a model of kind {section.kind}, which --to page "
                    f"cannot hold: choose a run of kind {' or '.join(DESCRIBED)}"
                )
            parameters = sum(parameter.numel() for parameter in network.parameters())
            about = f"{section.described(each.recipe.objective.kind)}, {parameters:,} parameters"
            name = each.folder.path.absolute().name
            add(name, about, each, lambda arrays, m=network, d=describe: d(m, arrays))  # type: ignore[misc]
            text = _digest(each) if self.ngrams else ""
            if self.ngrams and text not in texts:
                texts.add(text)
                counted = NgramScorer(each).ngrams  # type: ignore[arg-type]
                about = f"Kneser-Ney of order {NGRAM_ORDER}, of the text of {name}"
                add("n-grams", about, each, lambda arrays, n=counted: _kneser_ney(n, arrays))  # type: ignore[misc]
        data = {
            "weights": self.weights,
            "tokenizers": list(tokenizers.values()),
            "models": models,
            "text": _first_words(run) if self.ngrams else "",
        }
        making.write_text(page(data, blobs), encoding="utf-8")


def _digest(run: Any) -> str:
    """Of the training text, in tokens: runs of one text share an n-gram model."""
    tokens = run.corpus.splits["train"].tokens.astype(np.int64)
    return run.tokenizer.to_json() + hashlib.sha256(tokens.tobytes()).hexdigest()


def _first_words(run: Any) -> str:
    """The beginning of the validation text, up to the end of a line."""
    tokens = run.corpus.splits["valid"].tokens[:SHOWN]
    ends = np.flatnonzero(tokens == run.tokenizer.eos)
    return str(run.tokenizer.prose(tokens[: ends[-1] if len(ends) else SHOWN])).strip()


# -- one file --------------------------------------------------------------------------------


def page(data: Described, blobs: list[str]) -> str:
    """The file, from the parts in `infolm/web`."""
    parts = {
        "style": web("microscope.css"),
        "data": json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"),
        "arrays": "\n".join(
            f'<script type="text/plain" id="arrays-{i}">{blob}</script>'
            for i, blob in enumerate(blobs)
        ),
        "script": script(),
    }
    return re.sub(r"<!--(\w+)-->", lambda marker: parts[marker[1]], web("microscope.html"))


def web(name: str) -> str:
    """A file of `infolm/web`."""
    return (resources.files("infolm") / "web" / name).read_text(encoding="utf-8")


def script() -> str:
    """The modules as one: their names are all different, so nothing has to be imported."""
    whole = "\n".join(web(f"{name}.js") for name in MODULES)
    whole = re.sub(r'^import \{[^}]*\} from "\./\w+\.js";\n', "", whole, flags=re.MULTILINE)
    return re.sub(r"^export ", "", whole, flags=re.MULTILINE)


@dataclass
class Arrays:
    """The arrays of one model, one after the other, each from a multiple of four bytes on."""

    weights: Weights
    described: list[Described] = field(default_factory=list)
    _parts: list[bytes] = field(default_factory=list)
    _size: int = 0

    def add(self, tensor: Tensor | None) -> int | None:
        """The number of a tensor of float32: as it is, or rounded to int8 by rows."""
        if tensor is None:
            return None
        values = tensor.detach().float().cpu().numpy()
        if self.weights == "float32" or values.ndim == 1:
            return self.exact(values.astype(np.float32))
        scale = np.abs(values).max(1, keepdims=True) / 127
        whole = np.rint(values / np.where(scale, scale, 1)).astype(np.int8)
        number = self._put(whole, "int8", whole.tobytes())
        self._append(scale.astype(np.float32).tobytes())
        return number

    def exact(self, values: npt.NDArray[np.float32] | npt.NDArray[np.uint32]) -> int:
        return self._put(values, str(values.dtype), values.tobytes())

    def _put(self, values: npt.NDArray[Any], kind: str, data: bytes) -> int:
        self.described.append({"shape": values.shape, "type": kind, "start": self._size})
        self._append(data)
        return len(self.described) - 1

    def _append(self, data: bytes) -> None:
        data += bytes(-len(data) % 4)
        self._parts.append(data)
        self._size += len(data)

    def packed(self) -> str:
        """Gzipped, as letters."""
        return base64.b64encode(gzip.compress(b"".join(self._parts), 6, mtime=0)).decode("ascii")


# -- models ----------------------------------------------------------------------------------


def _recurrent(model: Any, arrays: Arrays) -> Described:
    embedding = arrays.add(model.embedding)
    return {
        "kind": "recurrent",
        "embedding": embedding,
        "cells": [_cell(cell, arrays) for cell in model.stack.cells],
        "connections": model.stack.connections,
        "softmax": _softmax(model.softmax, embedding, arrays),
    }


@torch.no_grad()
def _cell(cell: Cell, arrays: Arrays) -> Described:
    """The program of a step: what it reads, what it computes, and which values are the state."""
    gates = cell.mogrifier.factors() if cell.mogrifier else ()
    weights = (*cell.weights(), *gates)
    program = trace(cell._step, cell.inputs, cell.hidden, cell.remembered, weights, masked=False)
    body = [*program.hoisted, *program.inference.body]
    leaves = {node for each in body for node in each.inputs} - set(body)
    return {
        "hidden": cell.hidden,
        "remembered": cell.remembered,
        "weights": [arrays.add(weight) for weight in weights],
        "leaves": [_node(node) for node in sorted(leaves, key=lambda node: node.number)],
        "body": [_node(node) for node in body],
        "after": [node.number for node in program.after],
    }


def _node(node: Node) -> Described:
    names = ("number", "operation", "size", "weight", "start", "alpha", "beta")
    inputs = [each.number for each in node.inputs]
    return {**{name: getattr(node, name) for name in names}, "inputs": inputs}


def _transformer(model: Any, arrays: Arrays) -> Described:
    from infolm.models.transformer import BASE, EPSILON

    embedding = arrays.add(model.embedding)
    return {
        "kind": "transformer",
        "embedding": embedding,
        "norm": arrays.add(model.norm.weight),
        "blocks": [
            {name: arrays.add(part.weight) for name, part in block.named_children()}
            for block in model.blocks
        ],
        "heads": model.config.heads,
        "context": model.config.context,
        "base": BASE,
        "epsilon": EPSILON,
        "softmax": _softmax(model.softmax, embedding, arrays),
    }


DESCRIBED: Mapping[str, Callable[[Any, Arrays], Described]] = {
    "recurrent": _recurrent,
    "transformer": _transformer,
}
"""Kinds of models that the runtime knows."""


def _softmax(softmax: Softmax, embedding: int | None, arrays: Arrays) -> Described:
    return {
        "weight": embedding if softmax.weight is None else arrays.add(softmax.weight),
        "bias": arrays.add(softmax.bias),
        "projection": arrays.add(softmax.projection),
        "projection_bias": arrays.add(softmax.projection_bias),
        "prior": arrays.add(softmax.prior),
        "experts": softmax.experts,
    }


def _kneser_ney(model: KneserNey, arrays: Arrays) -> Described:
    """Of each order: how many k-grams each context has, their last words, shares and back-off."""
    levels = []
    for level in model.levels:
        contexts, words = np.divmod(level.keys[:-1], model.vocabulary)
        children = np.bincount(contexts, minlength=len(level.backoff) - 1)
        levels.append(
            {
                "children": arrays.exact(children.astype(np.uint32)),
                "words": arrays.exact(words.astype(np.uint32)),
                "share": arrays.exact(level.share[:-1].astype(np.float32)),
                "backoff": arrays.exact(level.backoff[:-1].astype(np.float32)),
            }
        )
    return {"kind": "kneser-ney", "levels": levels, "vocabulary": model.vocabulary}


# -- vocabularies ----------------------------------------------------------------------------


def described_tokenizer(tokenizer: Tokenizer) -> Described:
    """What the runtime needs to cut a line and to name its tokens."""
    if tokenizer.kind == "wordpiece":
        raise InfolmError(
            "--to page cannot cut a text into word pieces: choose a run whose data.tokens are "
            "word, "
            "char, byte or bpe"
        )
    numbers = range(len(tokenizer))
    description = json.loads(tokenizer.to_json())
    found: Described = {
        "kind": tokenizer.kind,
        "tokens": [tokenizer.written(i) for i in numbers],
        "eos": tokenizer.eos,
        "unk": tokenizer.unk,
        "lowercase": tokenizer.lowercase,
    }
    if tokenizer.kind == "word":
        pattern = description["pre_tokenizer"]["pattern"]["Regex"]
        pretokenised = not pattern.startswith("<")
        endings = "|".join(ENDINGS)
        found |= {
            "pattern": pattern,
            "marks": word_pattern(False) if pretokenised else None,
            "joining": {
                "opening": OPENING,
                "closing": CLOSING,
                "both": BOTH,
                "ending": f"^(?:n['’]t|['’](?:{endings}))$",
            },
        }
    else:
        found |= {
            "names": [tokenizer.token(i) for i in numbers],
            "begins": np.flatnonzero(tokenizer.begins).tolist(),
            "merges": [
                pair.split(" ") if isinstance(pair, str) else pair
                for pair in description["model"].get("merges", [])
            ],
        }
    return found
