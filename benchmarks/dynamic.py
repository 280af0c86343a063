"""Dynamic evaluation against training, per token, at the same segment length.

The yardstick is a training step as infolm takes it: one column of the text, the model with its
dropout, the objective, backward, and a step of SGD. Ours measures each segment and then updates
the weights by the rule.

    python benchmarks/dynamic.py            # bar: 4
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from timing import ratio

from infolm.config import load_recipe
from infolm.data.stream import Batch
from infolm.evaluation.dynamic import DynamicSettings, Rule, Statistics, dynamic_stream
from infolm.models.recurrent import RecurrentConfig, RecurrentModel
from infolm.objectives.likelihood import Likelihood, LikelihoodConfig
from infolm.optimisation.optimisers import SGDConfig

VOCABULARY, SEGMENTS = 10_000, 20
RULES: tuple[Rule, ...] = ("rms", "sgd")


def training(model: RecurrentModel, tokens: Any, segment: int) -> Callable[[], None]:
    """A pass of training over the tokens, a step of SGD for each segment."""
    optimiser = SGDConfig(learning_rate=1e-3).build(model.parameters())
    objective = Likelihood(LikelihoodConfig())
    text = torch.from_numpy(tokens)[:, None]

    def run() -> None:
        model.train()
        state = None
        for start in range(0, len(text) - 1, segment):
            cut = text[start : start + segment + 1]
            estimate = objective(model, Batch(cut[:-1], cut[1:], start == 0, 1.0), state)
            state = estimate.carry
            estimate.loss.backward()
            optimiser.step()
            optimiser.zero_grad()

    return run


def dynamic(
    model: RecurrentModel, tokens: Any, segment: int, rule: Rule, statistics: Statistics
) -> Callable[[], None]:
    """A pass of dynamic evaluation over the tokens."""
    settings = DynamicSettings(rate=1e-6, decay=1e-3, segment=segment, rule=rule)

    def run() -> None:
        for _ in dynamic_stream(model, tokens, settings, statistics):
            pass

    return run


def main() -> None:
    torch.manual_seed(0)
    for recipe in ("awd-lstm/ptb-small", "awd-lstm/ptb"):
        config = load_recipe(recipe).model
        assert isinstance(config, RecurrentConfig)
        model = RecurrentModel(config, VOCABULARY)
        statistics = {name: 1e-8 * torch.rand_like(p) for name, p in model.named_parameters()}
        for segment in (5, 20, 50):
            tokens = np.random.default_rng(0).integers(0, VOCABULARY, SEGMENTS * segment + 1)
            for rule in RULES:
                ours = dynamic(model, tokens, segment, rule, statistics)
                value, a, b = ratio(ours, training(model, tokens, segment), repeats=3)
                print(
                    f"{recipe}, segments of {segment}, {rule}: dynamic evaluation / training "
                    f"{value:.2f} (bar 4; {a:.2f} s / {b:.2f} s)"
                )


if __name__ == "__main__":
    main()
