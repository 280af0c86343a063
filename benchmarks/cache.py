"""Evaluation with the neural cache (window 2000) against evaluation without, at the PTB size.

    python benchmarks/cache.py            # bar: 1.5

Also the cache alone against the loop over tokens with one-hot vectors that the authors' program
has, on the same outputs.
"""

import numpy as np
import torch
from timing import ratio

from infolm.config import load_recipe
from infolm.evaluation.likelihood import log_probs
from infolm.evaluation.method import Method, measure
from infolm.evaluation.neural_cache import CacheSettings, NeuralCache
from infolm.models.recurrent import RecurrentConfig, RecurrentModel

VOCABULARY, TOKENS, CHUNK = 10_000, 3_000, 200


def released_loop(hidden: torch.Tensor, targets: torch.Tensor, window: int, theta: float) -> None:
    """p_cache a token at a time, the window's words as one-hot vectors."""
    one_hot = torch.nn.functional.one_hot(targets, VOCABULARY).float()
    for t in range(1, len(hidden)):
        first = max(0, t - window)
        weights = torch.softmax(theta * hidden[first:t] @ hidden[t], 0)
        (weights[:, None] * one_hot[first:t]).sum(0)


def main() -> None:
    torch.manual_seed(0)
    config = load_recipe("awd-lstm/ptb").model
    assert isinstance(config, RecurrentConfig)
    model = RecurrentModel(config, VOCABULARY).eval()
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, TOKENS)
    settings = CacheSettings(window=2000, weight=0.1, flatness=1.0)
    value, a, b = ratio(
        lambda: measure(model, tokens, [Method(), Method(cache=settings)], CHUNK),
        lambda: log_probs(model, tokens, CHUNK),
        repeats=5,
    )
    print(f"evaluation with the cache / without: {value:.2f} (bar 1.5; {a:.2f} s / {b:.2f} s)")

    hidden, targets = torch.randn(300, 400) / 20, torch.randint(0, VOCABULARY, (300,))
    value, a, b = ratio(
        lambda: released_loop(hidden, targets, 2000, 1.0),
        lambda: NeuralCache(2000, 1.0).log_prob(hidden, targets),
        repeats=3,
    )
    print(f"a loop with one-hot vectors / ours, 300 tokens: {value:.0f} ({a:.2f} s / {b:.4f} s)")


if __name__ == "__main__":
    main()
