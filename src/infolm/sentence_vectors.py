"""Sentence vectors from a sentence model's encoder, alone or in sentence-transformers.

    vectors = SentenceVectors.open("runs/mim")
    vectors.encode(["the cat sat down", "stocks fell"])          # (2, D)

    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer(modules=[vectors])               # and all that it can do
    model.save("vectors")
    model = SentenceTransformer("vectors", trust_remote_code=True)

sentence-transformers requires the last argument for modules outside its own package; the
folder holds no code, and nothing is pickled.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from infolm.data.sentences import Lines
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation.latent import encoded
from infolm.families.latent.run import LatentRun
from infolm.models.sentence import SentenceConfig, SentenceModel
from infolm.training import checkpoint

CONFIG, TOKENIZER, WEIGHTS = "sentence_model.json", "tokenizer.json", "model.safetensors"
"""The files that `SentenceVectors.save` writes."""


class SentenceVectors(nn.Module):
    """A sentence's vector is `sentence_vectors` of its q(z | x), (D,).

    Unknown words are read as <unk>, line breaks as blanks. An empty sentence is <eos> alone, and
    has a vector too. Gradients reach the encoder through `forward`, so sentence-transformers can
    train it further.
    """

    save_in_root = True  # sentence-transformers' convention for a module that reads text

    def __init__(self, model: SentenceModel, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer

    @classmethod
    def open(cls, run: str | Path) -> Self:
        """The best weights of a run's folder."""
        opened = LatentRun.open(Path(run))
        if not opened.model.ends:
            raise InfolmError(
                f"{run} is a model of single symbols, which has no sentence vectors: choose a "
                "run whose model.kind is sentence"
            )
        return cls(cast(SentenceModel, opened.model), opened.tokenizer)

    def encode(self, sentences: Sequence[str]) -> npt.NDArray[np.float32]:
        """Vectors (S, D) in the order of the sentences; batching does not change them."""
        if not sentences:
            return np.empty((0, self.get_embedding_dimension()), np.float32)
        return encoded(self.model, self._lines(sentences)).sentence_vectors.float().numpy()

    def _lines(self, sentences: Sequence[str]) -> Lines:
        adapted = self.tokenizer.adapted
        tokens = [self.tokenizer.encode(adapted(" ".join(s.splitlines()))) for s in sentences]
        return Lines.of(tokens, self.tokenizer.eos)

    # -- the interface of a sentence-transformers module --------------------------------------

    def get_embedding_dimension(self) -> int:
        """D."""
        return self.model.config.latent.vector_size

    def preprocess(
        self, inputs: Sequence[str], prompt: str | None = None, **_: Any
    ) -> dict[str, Tensor]:
        """Sentences as packed rows, the longest first, with their original order."""
        lines = self._lines([(prompt or "") + text for text in inputs])
        order = np.argsort(-lines.lengths, kind="stable")
        batch = lines.packed(order)
        return {
            "input_ids": torch.from_numpy(batch.read),
            "sizes": torch.tensor(batch.sizes),
            "order": torch.from_numpy(order),
        }

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Add the vectors, (B, D), in the original order of the sentences."""
        found = self.model.encode(
            features["input_ids"], features["sizes"].tolist()
        ).sentence_vectors
        return {**features, "sentence_embedding": found[features["order"].argsort()]}

    def save(self, output_path: str, **_: Any) -> None:
        """Save the configuration, the vocabulary and the weights into an existing folder."""
        folder = Path(output_path)
        (folder / CONFIG).write_text(self.model.config.model_dump_json(indent=2), encoding="utf-8")
        self.tokenizer.save(folder / TOKENIZER)
        checkpoint.save(folder / WEIGHTS, self.model.state_dict())

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        **_: Any,
    ) -> Self:
        """Load what `save` wrote, from a folder or the Hugging Face hub."""
        from sentence_transformers.util import load_dir_path

        found = load_dir_path(
            model_name_or_path, subfolder, token, cache_folder, revision, local_files_only
        )
        folder = Path(str(found))
        config = SentenceConfig.model_validate_json((folder / CONFIG).read_text(encoding="utf-8"))
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        model = SentenceModel(config, len(tokenizer))
        checkpoint.load_weights(folder / WEIGHTS, model)
        return cls(model, tokenizer).eval()
