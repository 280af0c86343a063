"""The word vectors of an encoder: neighbours, analogies, and word2vec's file.

vectors = WordVectors.open("runs/skip-gram")
vectors.neighbours("river", 5)            # [("lake", 0.81), ...]
vectors.analogy("man", "king", "woman")   # man is to king as woman to ...
vectors.save("vectors.txt")               # gensim: KeyedVectors.load_word2vec_format
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from infolm.errors import InfolmError
from infolm.families.base import open_run
from infolm.section import nearest
from infolm.training import checkpoint

Vectors = npt.NDArray[np.float32]


class WordVectors:
    """`words`, V of them, and their `vectors` (V, D)."""

    def __init__(self, words: Sequence[str], vectors: Vectors) -> None:
        self.words, self.vectors = list(words), vectors
        self._numbers = {word: number for number, word in enumerate(self.words)}
        length = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._directions = vectors / np.maximum(length, np.finfo(np.float32).tiny)

    @classmethod
    def open(cls, run: str | Path) -> Self:
        """The input vectors of an encoder's run, of words only: without [MASK] and <eos>."""
        opened = open_run(run)
        tokenizer, model = opened.tokenizer, opened.model
        if opened.recipe.model.capability != "encoder":
            raise InfolmError(
                f"{run} is not an encoder, so it has no word vectors: choose a run whose "
                "model.kind is encoder"
            )
        no_words = {tokenizer.eos, tokenizer.unk}
        if tokenizer.kind == "wordpiece":
            no_words |= set(tokenizer.special)
        kept = [number for number in range(len(tokenizer)) if number not in no_words]
        vectors = model.embedding.detach().float().cpu().numpy()[kept]
        return cls([tokenizer.token(number) for number in kept], vectors)

    def vector(self, word: str) -> Vectors:
        """(D,)."""
        return self.vectors[self._number(word)]

    def neighbours(self, word: str, k: int = 10) -> list[tuple[str, float]]:
        """The k words whose vectors are nearest in angle to that of `word`, with the cosines."""
        number = self._number(word)
        return self._nearest(self._directions[number], {number}, k)

    def analogy(self, a: str, b: str, c: str, k: int = 10) -> list[tuple[str, float]]:
        """The k words nearest to b - a + c, all as unit vectors: a is to b as c is to them.

        The three words themselves are excluded (Mikolov et al. 2013).
        """
        numbers = [self._number(word) for word in (a, b, c)]
        first, second, third = self._directions[numbers]
        return self._nearest(second - first + third, set(numbers), k)

    def save(self, path: str | Path) -> None:
        """word2vec's text format: "V D", then a line for each word with its numbers."""
        shape = " ".join(map(str, self.vectors.shape))
        rows = (
            f"{word} {' '.join(f'{x:.9g}' for x in vector)}"  # 9 digits give the same float back
            for word, vector in zip(self.words, self.vectors.tolist(), strict=True)
        )
        text = "\n".join([shape, *rows]) + "\n"
        checkpoint.atomically(Path(path), lambda part: part.write_text(text, encoding="utf-8"))

    def _number(self, word: str) -> int:
        for spelling in (word, word.lower()):
            if spelling in self._numbers:
                return self._numbers[spelling]
        raise InfolmError(f"'{word}' is not a word of this vocabulary{nearest(word, self.words)}")

    def _nearest(self, vector: Vectors, without: set[int], k: int) -> list[tuple[str, float]]:
        cosines = self._directions @ (vector / max(float(np.linalg.norm(vector)), 1e-30))
        order = [n for n in np.argsort(-cosines, kind="stable").tolist() if n not in without][:k]
        return [(self.words[n], float(cosines[n])) for n in order]
