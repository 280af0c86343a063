"""A training step of AWD-LSTM at the paper's PTB size against a bare stack of the same shapes.

The yardstick has no regularisation at all: embedding, three `nn.LSTM`s, `linear`, cross entropy,
backward and a plain SGD step. Ours has weight drop, all the dropouts, AR, TAR, clipping, weight
decay and the running average of the weights. Bar: 1.10.

    python benchmarks/training_step.py
"""

from itertools import pairwise

import torch
from timing import ratio
from torch import nn
from torch.nn import functional

from infolm.averaging.tail import Tail, TailConfig
from infolm.config import load_recipe
from infolm.data.stream import Batch
from infolm.models.recurrent import RecurrentModel
from infolm.nn.cells.lstm import LSTM
from infolm.objectives.likelihood import Likelihood

VOCABULARY, STEPS = 10_000, 70


def main() -> None:
    torch.manual_seed(0)
    recipe = load_recipe("awd-lstm/ptb")
    batch, size = recipe.feed.batch, recipe.model.embedding
    tokens = torch.randint(0, VOCABULARY, (STEPS + 1, batch))

    model = RecurrentModel(recipe.model, VOCABULARY).train()
    objective = Likelihood(recipe.objective)
    optimiser = torch.optim.SGD(model.parameters(), 0.1, weight_decay=1.2e-6)
    averager = Tail(model, TailConfig(start=0))
    segment = Batch(tokens[:-1], tokens[1:], True, 1.0)

    def ours() -> None:
        objective(model, segment, None).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimiser.step()
        optimiser.zero_grad()
        averager.update(1)

    sizes = [size, recipe.model.hidden, recipe.model.hidden, size]
    stack = nn.ModuleList(nn.LSTM(a, b) for a, b in pairwise(sizes))
    weight = nn.Parameter(torch.empty(VOCABULARY, size).uniform_(-0.1, 0.1))
    bias = nn.Parameter(torch.zeros(VOCABULARY))
    bare_optimiser = torch.optim.SGD([*stack.parameters(), weight, bias], 0.1)

    def bare() -> None:
        x = functional.embedding(tokens[:-1], weight)
        for layer in stack:
            x, _ = layer(x)
        logits = functional.linear(x.reshape(-1, size), weight, bias)
        functional.cross_entropy(logits, tokens[1:].reshape(-1)).backward()
        bare_optimiser.step()
        bare_optimiser.zero_grad()

    value, a, b = ratio(ours, bare, repeats=5)
    print(f"training step / bare step: {value:.2f} (bar 1.10; {a:.2f} s / {b:.2f} s)")

    dropped = LSTM(size, recipe.model.hidden, weight_drop=0.5).train()
    plain = nn.LSTM(size, recipe.model.hidden)
    x = torch.randn(STEPS, batch, size)
    state = dropped.initial_state(batch)

    def weight_dropped() -> None:
        dropped(x, state)[0].sum().backward()

    def without() -> None:
        plain(x, state)[0].sum().backward()

    value, a, b = ratio(weight_dropped, without)
    print(f"weight-dropped LSTM / nn.LSTM: {value:.3f} (bar 1.05; {a:.3f} s / {b:.3f} s)")


if __name__ == "__main__":
    main()
