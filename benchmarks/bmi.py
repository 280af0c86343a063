"""What the mutual-information regulariser adds to a training step, at the paper's sizes.

Three training loops over the Penn Treebank's sizes (AWD-LSTM, a mixture of 15 softmaxes, batches of
12 x 70 tokens, 12 pairs of sentences, as `bmi/ptb` has them) take steps in turn: without the
regulariser, in phase one, and in phase two. The text is random words in sentences as long as the
treebank's. Bars: phase one at most 1.6 of the plain step, phase two at most 0.6 more.

    python benchmarks/bmi.py
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from loops import loop_of
from timing import seconds

from infolm.config import load_recipe
from infolm.data.corpora import Corpus, load
from infolm.families.base import build_terms
from infolm.models.recurrent import RecurrentConfig, RecurrentModel
from infolm.training.loop import Loop

VOCABULARY, SENTENCES = 10_000, 2_000
LENGTH, DEVIATION = 21.1, 10.2
"""Words of a sentence of the Penn Treebank."""


def write_text(folder: Path) -> None:
    """Every word once, in splits whose sentences are as long as the treebank's."""
    rng = np.random.default_rng(0)
    for split, lines in (("train", SENTENCES), ("valid", 20), ("test", 20)):
        lengths = rng.normal(LENGTH, DEVIATION, lines).round().clip(2, 80).astype(int)
        words = rng.permutation(np.resize(np.arange(VOCABULARY - 2), lengths.sum()))
        cut = np.split(words, lengths.cumsum()[:-1])
        text = "\n".join(" ".join(f"w{word}" for word in line) for line in cut)
        (folder / f"{split}.txt").write_text(text + "\n")


def loop(overrides: list[str], corpus: Corpus) -> Loop:
    torch.manual_seed(0)
    recipe = load_recipe("bmi/ptb", ["feed.variable=false", *overrides])
    assert isinstance(recipe.model, RecurrentConfig)
    model = RecurrentModel(recipe.model, len(corpus.tokenizer))
    return loop_of(recipe, model, build_terms(recipe, corpus, model))


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=9)
    steps = arguments.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder))
        data = load_recipe("bmi/ptb", [f"data.path={folder}", "data.corpus=null"]).data
        corpus = load(data)
        loops = {
            "plain": loop(["regularisers.bmi=null"], corpus),
            "phase one": loop(["regularisers.bmi.phase_two=false"], corpus),
            "phase two": loop(["regularisers.bmi.switch=0"], corpus),
        }
        times: dict[str, list[float]] = {name: [] for name in loops}
        for step in range(steps + 1):
            for name, each in loops.items():
                taken = seconds(each._take_step)
                if step:  # the first one warms up
                    times[name].append(taken)
    plain, one, two = (np.array(times[name]) for name in loops)
    for name, values, bar in (
        ("phase one / plain step", one / plain, 1.6),
        ("phase two - phase one, in plain steps", (two - one) / plain, 0.6),
    ):
        low, high = np.quantile(values, [0.25, 0.75])
        middle = statistics.median(values.tolist())
        print(f"{name}: {middle:.2f} (quartiles {low:.2f} to {high:.2f}; bar {bar})")
    print(f"plain step: {statistics.median(times['plain']):.2f} s")


if __name__ == "__main__":
    main()
