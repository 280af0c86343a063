"""A training step of AWD-LSTM at the paper's PTB size against a bare stack of the same shapes.

The yardstick has no regularisation at all: embedding, three `nn.LSTM`s, `linear`, cross entropy,
backward and a plain SGD step. Ours is the training loop's own step: the feed's cut, weight drop,
all the dropouts, AR, TAR, clipping, weight decay and the running average of the weights.

    python benchmarks/training_step.py [--device cuda]
"""

import argparse
from itertools import pairwise

import torch
from loops import on_noise
from timing import device_option, ratio
from torch import nn
from torch.nn import functional

from infolm.config import load_recipe
from infolm.data.stream import StreamConfig
from infolm.models.recurrent import RecurrentConfig
from infolm.nn.cells.lstm import LSTM
from infolm.nn.dropout import Rates

VOCABULARY = 10_000


def main() -> None:
    arguments = argparse.ArgumentParser()
    device_option(arguments)
    device = arguments.parse_args().device
    torch.manual_seed(0)
    overrides = ["feed.variable=false", "averaging.kind=tail", "averaging.start=0"]
    recipe = load_recipe("awd-lstm/ptb", overrides)
    loop, _ = on_noise(recipe, VOCABULARY, device)
    assert isinstance(recipe.feed, StreamConfig)
    assert isinstance(recipe.model, RecurrentConfig)
    batch, steps, size = recipe.feed.batch, recipe.feed.bptt, recipe.model.embedding
    tokens = torch.randint(0, VOCABULARY, (steps + 1, batch), device=device)

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
