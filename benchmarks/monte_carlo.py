"""Monte Carlo objectives with sixteen codes: what the mutual information costs, and the codes.

A step is forward and backward. The sentence model has the sizes of `monte-carlo/ptb-*`, with a
batch that is smaller: a bidirectional LSTM of 128 units and an LSTM decoder, 10,000 words, eight
sentences of twenty; the model of symbols those of `monte-carlo/synthetic-*`: 10,000 symbols, 64 of
them a batch. Words and symbols are random.

    augmented / plain     a step with a mutual information term over one without. Bar: 1.05
    16 codes / 16 of 1    a step over sixteen passes of the decoder with one code each and one of
                          the encoder. Bar: 1
    shared / own masks    dropout masks for each sentence over masks for each of its codes
    kept / again          logits kept for the backward pass over logits that it computes again

    python benchmarks/monte_carlo.py
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from timing import ratio

from infolm.config import load_recipe
from infolm.data.sentences import Lines, SentenceBatch
from infolm.models.latent import LatentModel
from infolm.nn import softmax
from infolm.objectives.monte_carlo import MonteCarlo, MonteCarloConfig
from infolm.training.device import keep_freed_memory
from infolm.training.loop import tensors

VOCABULARY, SAMPLES, EOS = 10_002, 16, 0
TERMS: dict[str, dict[str, Any]] = {
    "kl": {"augment": "kl", "lambda": 0.5},
    "renyi": {"augment": "renyi", "lambda": 0.5, "alpha": 1.5},
}
KINDS = {"continuous": ("dreg", "iwae"), "categorical": ("vimco", "vimco")}
"""The estimator of each kind of code, and the plain one that it is held against."""


def random_batch(sentences: int, words: int) -> SentenceBatch:
    text = np.random.default_rng(0).integers(2, VOCABULARY, (sentences, words))
    return tensors(Lines.of(list(text), EOS).packed(np.arange(sentences)), torch.device("cpu"))


def step(model: LatentModel, batch: SentenceBatch, **config: Any) -> Callable[[], None]:
    """A step of the objective that the config describes, with sixteen codes."""
    objective = MonteCarlo(MonteCarloConfig.model_validate({"samples": SAMPLES, **config}))

    def run() -> None:
        model.zero_grad()
        objective(model, batch, None).loss.backward()

    return run


def in_parts(model: LatentModel, batch: SentenceBatch) -> Callable[[], None]:
    """The encoder once, and the decoder with one code sixteen times."""

    def run() -> None:
        model.zero_grad()
        proposal = model.encode(batch.read, batch.sizes)
        z = proposal.sample(1).detach()
        for _ in range(SAMPLES):
            code = z.clone().requires_grad_(z.is_floating_point())
            (-model.log_likelihood(code, batch).sum()).backward()
        (proposal.kl().sum() - proposal.log_density(z).sum()).backward()

    return run


def forgetting(step: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        kept, softmax.KEPT = softmax.KEPT, 0
        step()
        softmax.KEPT = kept

    return run


def compare(
    name: str, ours: Callable[[], None], yardstick: Callable[[], None], bar: str, repeats: int
) -> None:
    value, a, b = ratio(ours, yardstick, repeats)
    print(f"{name:50} {value:6.3f} {bar:>6}   {a:.3f} s / {b:.3f} s", flush=True)


def task(recipe: str, batch: SentenceBatch, repeats: int) -> None:
    for kind, (estimator, plain) in KINDS.items():
        name = f"{recipe}-{kind}"
        torch.manual_seed(0)
        model = load_recipe(f"monte-carlo/{name}").model.build(VOCABULARY)
        assert isinstance(model, LatentModel)
        base = step(model, batch, estimator=plain)
        for term, config in TERMS.items():
            ours = step(model, batch, estimator=estimator, **config)
            said = f"{name}, {estimator} {term} / {plain}"
            compare(said, ours, base, "1.05", repeats)
        ours = step(model, batch, estimator=estimator, **TERMS["renyi"])
        compare(f"{name}, 16 codes / 16 of 1", ours, in_parts(model, batch), "1", repeats)
        if recipe == "ptb":
            own = step(model, batch, estimator=estimator, masks="sample", **TERMS["renyi"])
            compare(f"{name}, shared / own masks", ours, own, "", repeats)
        compare(f"{name}, kept / again", ours, forgetting(ours), "1", repeats)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--repeats", type=int, default=7)
    asked = arguments.parse_args()
    keep_freed_memory()  # as `infolm train` does
    print(f"{'':50} {'ratio':>6} {'bar':>6}   median seconds")
    task("synthetic", random_batch(64, 1), asked.repeats)
    task("ptb", random_batch(8, 20), asked.repeats)


if __name__ == "__main__":
    main()
