"""An encoder as a folder that `SentenceTransformer` reads."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from infolm.errors import InfolmError, RunError
from infolm.exports.base import EXPORTS, Export
from infolm.exports.transformers import encoder_folder
from infolm.families.base import Run


@EXPORTS.register
@dataclass(frozen=True)
class SentenceTransformers(Export):
    """pooling: a sentence vector is the mean of its tokens, or [CLS]."""

    pooling: Literal["mean", "cls"] = "mean"

    kind: ClassVar[str] = "sentence-transformers"
    reads: ClassVar[str] = "sentence-transformers"

    def encoder(self, run: Run, making: Path) -> None:
        try:
            from sentence_transformers import SentenceTransformer
            from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
        except ModuleNotFoundError:
            raise InfolmError(
                "this needs sentence-transformers: install it with `pip install "
                "'infolm[sentences]'`"
            ) from None
        from infolm.finetuning.networks import quiet

        sizes = run.model.config
        plain = making.with_name("transformers")  # which is read, and written anew
        encoder_folder(run, plain, words=False)
        with quiet():
            try:
                reader = Transformer(
                    str(plain),
                    max_seq_length=sizes.length,
                    model_kwargs={"local_files_only": True},
                    processor_kwargs={"local_files_only": True},
                    config_kwargs={"local_files_only": True},
                )
            except ValueError as error:  # its word for files that it cannot open
                raise RunError(
                    f"what was written to {plain} cannot be read back: check the disk, and export "
                    "again"
                ) from error
            modules = [reader, Pooling(sizes.hidden, self.pooling)]
            SentenceTransformer(modules=modules, device="cpu").save(
                str(making), create_model_card=False
            )
