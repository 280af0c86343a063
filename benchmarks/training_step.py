"""A training step of AWD-LSTM at the paper's PTB size against a bare stack of the same shapes.

The yardstick has no regularisation at all: embedding, three `nn.LSTM`s, `linear`, cross entropy,
backward and a plain SGD step. Ours is the training loop's own step: the feed's cut, weight drop,
all the dropouts, AR, TAR, clipping, weight decay and the running average of the weights.

    python benchmarks/training_step.py [--device cuda]
"""

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from timing import device_option, ratio
from torch import nn
from torch.nn import functional

from infolm.averaging.tail import TailConfig
from infolm.config import load_recipe
from infolm.data.stream import Stream, StreamConfig
from infolm.models.recurrent import RecurrentConfig, RecurrentModel
from infolm.nn.cells.lstm import LSTM
from infolm.nn.dropout import Rates
from infolm.objectives.likelihood import Likelihood, LikelihoodConfig
from infolm.optimisation.schedule import Schedule
from infolm.training.loop import Loop, Term, Validation
from infolm.training.run import RunFolder

VOCABULARY = 10_000


class Nobody:
    """A watcher that looks away."""

    def step(self, progress: float, nll: float, tokens: int) -> None: ...
    def validated(self, step: int, progress: float, loss: float) -> None:
        pass

    def say(self, text: str) -> None: ...


def main() -> None:
    arguments = argparse.ArgumentParser()
    device_option(arguments)
    device = arguments.parse_args().device
    torch.manual_seed(0)
    recipe = load_recipe("awd-lstm/ptb")
    assert isinstance(recipe.objective, LikelihoodConfig)
    assert isinstance(recipe.model, RecurrentConfig)
    feed = StreamConfig(variable=False)  # the paper's batch and length are its defaults
    batch, steps, size = feed.batch, feed.bptt, recipe.model.embedding
    text = np.random.default_rng(0).integers(0, VOCABULARY, 100 * batch * steps)
    tokens = torch.randint(0, VOCABULARY, (steps + 1, batch), device=device)

    model = RecurrentModel(recipe.model, VOCABULARY).to(device)
    loop = Loop(
        Fabric(accelerator=device, devices=1),
        model,
        [Term("likelihood", Stream(text, feed, 0), Likelihood(recipe.objective))],
        recipe.optimiser.build(model.parameters()),
        Schedule(recipe.optimiser.schedule),
        TailConfig(start=0).build(model),
        lambda: Validation(0.0),
        recipe.train,
        recipe.optimiser.clip,
        RunFolder(Path()),
        Nobody(),
    )

    sizes = [size, recipe.model.hidden, recipe.model.hidden, size]
    stack = nn.ModuleList(nn.LSTM(a, b) for a, b in pairwise(sizes)).to(device)
    weight = nn.Parameter(torch.empty(VOCABULARY, size, device=device).uniform_(-0.1, 0.1))
    bias = nn.Parameter(torch.zeros(VOCABULARY, device=device))
    bare_optimiser = torch.optim.SGD([*stack.parameters(), weight, bias], 0.1)

    def bare() -> None:
        x = functional.embedding(tokens[:-1], weight)
        for layer in stack:
            x, _ = layer(x)
        logits = functional.linear(x.reshape(-1, size), weight, bias)
        functional.cross_entropy(logits, tokens[1:].reshape(-1)).backward()
        bare_optimiser.step()
        bare_optimiser.zero_grad()

    value, a, b = ratio(loop._take_step, bare, repeats=5)
    print(f"training step / bare step: {value:.2f} (bar 1.10; {a:.2f} s / {b:.2f} s)")

    dropped = LSTM(size, recipe.model.hidden, Rates(weight=0.5)).train().to(device)
    plain = nn.LSTM(size, recipe.model.hidden).to(device)
    x = torch.randn(steps, batch, size, device=device)
    state = dropped.initial_state(batch)

    def weight_dropped() -> None:
        dropped(x, state)[0].sum().backward()

    def without() -> None:
        plain(x, state)[0].sum().backward()

    value, a, b = ratio(weight_dropped, without)
    print(f"weight-dropped LSTM / nn.LSTM: {value:.3f} (bar 1.05; {a:.3f} s / {b:.3f} s)")


if __name__ == "__main__":
    main()
