"""Writing a text to measure, as reverse perplexity does, against reading one as evaluation does.

The text is written as 100 rows side by side, a token of each at a time; `infolm evaluate` reads one
stream, and with `--streams 20` twenty. Speeds are in tokens per second. Bar: at least half of the
one stream's. The yardstick that learns from the text: seconds for a pass over 18,000 tokens, a
tenth of what it has by default.

    python benchmarks/reverse.py
"""

from functools import partial

import numpy as np
import torch
from timing import ratio, seconds

from infolm.evaluation.likelihood import one_stream, parallel_log_probs
from infolm.evaluation.reverse import TRAIN, yardstick
from infolm.generation.text import STREAMS, write_long
from infolm.models.recurrent import ProjectedSoftmaxConfig, RecurrentConfig, RecurrentModel
from infolm.training.device import one_device

VOCABULARY = 10_000
MODELS = {  # and steps of writing: a second or two
    "awd-lstm/ptb-small": (RecurrentConfig(layers=2, hidden=400, embedding=200), 30),
    "BMI, 15 softmaxes": (
        RecurrentConfig(
            layers=3,
            hidden=960,
            last_hidden=620,
            embedding=280,
            softmax=ProjectedSoftmaxConfig(experts=15),
        ),
        3,
    ),
}


def one(model: RecurrentModel, tokens: np.ndarray) -> None:
    for _ in one_stream(model, tokens, 200):
        pass


def twenty(model: RecurrentModel, tokens: np.ndarray) -> None:
    parallel_log_probs(model, tokens, 20, 0, 200)


def main() -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    for name, (config, steps) in MODELS.items():
        model = RecurrentModel(config, VOCABULARY).eval()
        count = STREAMS * steps
        tokens = rng.integers(VOCABULARY, size=count + 1)
        write = partial(write_long, model, 0, count, 1)
        for label, read, bar in (("one stream", one, "; bar 0.5"), ("twenty streams", twenty, "")):
            value, a, b = ratio(partial(read, model, tokens), write, repeats=5)
            print(
                f"{name}: writes {value:.2f} times as fast as {label} is read "
                f"({count / b:,.0f} / {count / a:,.0f} tokens/s{bar})"
            )
    text = rng.zipf(1.2, size=(STREAMS, 200)) % VOCABULARY
    fabric = one_device("cpu")
    took = seconds(lambda: yardstick(text, VOCABULARY, 1, fabric)) / TRAIN.epochs
    print(f"yardstick: {took:.1f} s a pass over 18,000 tokens, {TRAIN.epochs} passes")


if __name__ == "__main__":
    main()
