"""The vectors of words as word2vec's text file, for gensim and others."""

from dataclasses import dataclass
from pathlib import Path

from infolm.exports.base import EXPORTS, Export
from infolm.families.base import Run
from infolm.word_vectors import WordVectors


@EXPORTS.register
@dataclass(frozen=True)
class Word2Vec(Export):
    """A line for each word: the word and its numbers."""

    kind = "word2vec"
    reads = "gensim"

    def encoder(self, run: Run, making: Path) -> None:
        WordVectors.open(run.folder.path).save(making)
