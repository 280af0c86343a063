"""A model as ONNX graphs, which onnxruntime and others run without PyTorch.

The graphs of each capability are described in `exports.graphs`. Beside them, `model.json` says what
a program must know of them, and `tokenizer.json` is the vocabulary.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from infolm.errors import InfolmError
from infolm.exports.base import EXPORTS, Export, Weights
from infolm.exports.transformers import refuse_word_vectors
from infolm.families.base import Run

NEEDED = "this needs onnx and onnxruntime: install them with `pip install 'infolm[onnx]'`"
DESCRIPTION, TOKENIZER = "model.json", "tokenizer.json"


@EXPORTS.register
@dataclass(frozen=True)
class Onnx(Export):
    """weights: the precision of matrices; with int8 the results are close, not equal."""

    weights: Weights = "float32"

    kind: ClassVar[str] = "onnx"
    reads: ClassVar[str] = "onnxruntime"

    def language(self, run: Run, making: Path) -> None:
        if not run.recipe.model.reads_sentences:
            raise InfolmError(
                f"{run.folder.path} has a model of kind {run.recipe.model.kind}, which does not "
                "read word by word: choose a recurrent model or a Transformer"
            )
        from infolm.exports.graphs.language import language_graphs

        self._write(run, making, lambda int8: language_graphs(run.model.cpu(), making, int8))

    def latent(self, run: Run, making: Path) -> None:
        if run.recipe.model.longest is not None:
            raise InfolmError(
                f"{run.folder.path} has a model of kind {run.recipe.model.kind}, which reads no "
                "sentences: choose a run whose model.kind is sentence"
            )
        from infolm.exports.graphs.latent import latent_graphs

        eos = run.tokenizer.eos
        self._write(run, making, lambda int8: latent_graphs(run.model.cpu(), eos, making, int8))

    def encoder(self, run: Run, making: Path) -> None:
        refuse_word_vectors(run)
        from infolm.exports.graphs.encoder import encoder_graphs

        self._write(run, making, lambda int8: encoder_graphs(run.model.cpu(), making, int8))

    def _write(self, run: Run, making: Path, write: Callable[[bool], dict[str, Any]]) -> None:
        """The folder: the graphs, `model.json` and `tokenizer.json`."""
        try:
            import onnx  # noqa: F401
            import onnxruntime  # noqa: F401
            import onnxscript  # noqa: F401
        except ModuleNotFoundError:
            raise InfolmError(NEEDED) from None
        making.mkdir()
        known = {
            "kind": run.recipe.model.kind,
            "vocabulary": len(run.tokenizer),
            "weights": self.weights,
            **write(self.weights == "int8"),
            "eos": run.tokenizer.eos,
            "unk": run.tokenizer.unk,
        }
        (making / DESCRIPTION).write_text(json.dumps(known, indent=2) + "\n", "utf-8")
        shutil.copyfile(run.folder.tokenizer, making / TOKENIZER)
