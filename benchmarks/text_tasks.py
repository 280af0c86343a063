"""Pairs of texts whose mutual information a channel sets, after Lee and Rhee (2024).

    python benchmarks/text_tasks.py

Every text is some sentences, each from one of two Markov languages, by a fair bit of its own. The
bits of y are those of x, each flipped with the probability p. With m(s) = p(1 | s) - p(0 | s) of a
sentence s, from the languages' own probabilities,

    I(X; Y) = sum over the sentences of E ln(1 + (1 - 2p) m(x) m(y)),

which is ln 2 - H(p) each where the languages share no word. `vectors`: the sentences as means of
word vectors (truncated SVD of positive pointwise information), by the panel. `text`: the tokens
themselves, by the critic of `infolm mi TEXT`.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infolm.information.languages import MarkovChain
from infolm.information.panel import Panel
from infolm.information.segments import Segments

TYPES, LENGTH, WIDTH = 20, 16, 6
"""Words of a language, tokens of a sentence, columns of a word vector."""
LARGE = 200_000

Tokens = npt.NDArray[np.int64]
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TextTask:
    """bits: sentences of a text. flip: of each bit. shared: the languages have the same words."""

    bits: int
    flip: float
    shared: bool = False

    @property
    def name(self) -> str:
        words = "shared words" if self.shared else "own words"
        return f"{self.bits} sentence{'s'[: self.bits > 1]}, flip {self.flip:g}, {words}"

    @property
    def types(self) -> int:
        return TYPES if self.shared else 2 * TYPES

    @property
    def languages(self) -> tuple[MarkovChain, MarkovChain]:
        rng = np.random.default_rng(0)
        one, other = (MarkovChain(rng.dirichlet(np.full(TYPES, 0.5), TYPES)) for _ in range(2))
        return one, other

    def sentences(self, bits: npt.NDArray[Any], rng: np.random.Generator) -> Tokens:
        """A sentence for each bit (...,): (..., L)."""
        texts = [
            language.sample(bits.size * LENGTH, rng).reshape(bits.size, LENGTH)
            for language in self.languages
        ]
        if not self.shared:
            texts[1] = texts[1] + TYPES
        chosen = np.where(bits.reshape(-1, 1) == 1, texts[1], texts[0])
        return chosen.reshape(*bits.shape, LENGTH)

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """x and y, (N, bits, L) each."""
        bits = rng.integers(0, 2, (n, self.bits))
        flipped = bits ^ (rng.random((n, self.bits)) < self.flip)
        return self.sentences(bits, rng), self.sentences(flipped, rng)

    def leaning(self, sentences: Tokens) -> Array:
        """m of each sentence: (..., L) -> (...)."""
        if not self.shared:
            return np.where(sentences[..., 0] >= TYPES, 1.0, -1.0)
        log = []
        for language in self.languages:
            steps = np.log(language.transition)[sentences[..., :-1], sentences[..., 1:]]
            log.append(np.log(language.stationary)[sentences[..., 0]] + steps.sum(-1))
        return np.tanh((log[1] - log[0]) / 2)

    @property
    def mutual_information(self) -> float:
        one = TextTask(1, self.flip, self.shared)
        x, y = one.sample(LARGE if self.shared else 2, np.random.default_rng(1))
        if not self.shared:
            kept = np.array([1 - self.flip, self.flip])
            kept = kept[kept > 0]
            return self.bits * float(np.log(2) + (kept * np.log(kept)).sum())
        product = (1 - 2 * self.flip) * one.leaning(x) * one.leaning(y)
        return self.bits * float(np.log1p(product).mean())


def word_vectors(text: Tokens, types: int) -> Array:
    """Positive pointwise information of neighbouring words, to `WIDTH` columns: (types, W)."""
    counts = np.full((types, types), 1e-3)
    np.add.at(counts, (text[:, :-1].ravel(), text[:, 1:].ravel()), 1.0)
    counts += counts.T
    p = counts / counts.sum()
    information = np.maximum(np.log(p / np.outer(p.sum(1), p.sum(0))), 0.0)
    left, strength, _ = np.linalg.svd(information)
    return left[:, :WIDTH] * np.sqrt(strength[:WIDTH])


def measured(task: TextTask, form: str, samples: int, seed: int) -> dict[str, Any]:
    x, y = task.sample(samples, np.random.default_rng([seed, task.bits]))
    start = time.process_time()
    if form == "vectors":
        vectors = word_vectors(x.reshape(-1, LENGTH), task.types)
        sides = (vectors[side].mean(2).reshape(samples, -1) for side in (x, y))
        found: Any = Panel(seed=seed).estimate(*sides)
    else:
        tokens = (side.reshape(samples, -1) for side in (x, y))
        found = Segments(task.types, folds=5, seed=seed).estimate(*tokens)
    return {
        "key": [task.name, form, samples, seed],
        "truth": task.mutual_information,
        "value": found.value,
        "interval": found.interval,
        "warning": found.warning,
        "seconds": time.process_time() - start,
    }


JOBS = [
    *((TextTask(bits, flip), "vectors") for bits in (1, 2, 4) for flip in (0.0, 0.1, 0.25)),
    (TextTask(2, 0.5), "vectors"),
    *((TextTask(bits, flip), "text") for bits in (1, 2) for flip in (0.0, 0.1)),
    *((TextTask(1, flip, shared=True), "text") for flip in (0.0, 0.1, 0.5)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=4_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=Path, default=Path("runs/text_tasks.jsonl"))
    args = parser.parse_args()
    args.records.parent.mkdir(parents=True, exist_ok=True)
    lines = args.records.read_text().splitlines() if args.records.exists() else []
    kept = {tuple(record["key"]): record for record in map(json.loads, lines)}
    print("| texts | as | truth | value | 95 % interval | holds | warned | CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with args.records.open("a") as file:
        for task, form in JOBS:
            key = (task.name, form, args.samples, args.seed)
            if key not in kept:
                kept[key] = measured(task, form, args.samples, args.seed)
                print(json.dumps(kept[key]), file=file, flush=True)
            record = kept[key]
            low, high = record["interval"]
            holds = low <= record["truth"] <= high
            print(
                f"| {task.name} | {form} | {record['truth']:.3f} | {record['value']:.3f} "
                f"| {low:.3f} to {high:.3f} | {'yes' if holds else 'no'} "
                f"| {'yes' if record['warning'] else ''} | {record['seconds']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
