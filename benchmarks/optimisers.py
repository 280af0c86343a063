"""A training step of a small Mogrifier LSTM with our optimisers beside PyTorch's defaults.

PyTorch's defaults go over the parameters once for each operation of the rule; ours once in all. The
model is `mogrifier/ptb-small` with 3,000 types in bfloat16, where the products leave most room to
be seen in.

    OMP_NUM_THREADS=1 python benchmarks/optimisers.py
"""

from collections.abc import Callable

import torch
from loops import on_noise
from timing import ratio
from torch import nn, optim

from infolm.config import load_recipe
from infolm.training.device import keep_freed_memory
from infolm.training.loop import Loop

DEFAULTS: dict[str, Callable[[list[nn.Parameter]], optim.Optimizer]] = {
    "sgd": lambda parameters: optim.SGD(parameters, 0.001, weight_decay=1e-6),
    "adam": lambda parameters: optim.Adam(parameters, 0.001),
    "radam": lambda parameters: optim.RAdam(parameters, 0.001),
}
STEPS = 5


def main() -> None:
    keep_freed_memory()  # as `infolm train` does
    for kind, default in DEFAULTS.items():
        ours, theirs = training(kind), training(kind)
        theirs.optimiser = default(list(theirs.model.parameters()))
        value, a, b = ratio(lambda: steps(ours), lambda: steps(theirs), repeats=15)  # noqa: B023
        print(f"{kind}: step / step by PyTorch's default {value:.2f} ({a:.3f} s / {b:.3f} s)")
        for parameter in (*ours.model.parameters(), *theirs.model.parameters()):
            parameter.grad = torch.full_like(parameter, 0.01)
        value, a, b = ratio(ours.optimiser.step, theirs.optimiser.step, repeats=15)
        print(f"  the optimiser alone {value:.2f} ({a * 1e3:.2f} ms / {b * 1e3:.2f} ms)")


def training(kind: str) -> Loop:
    torch.manual_seed(0)
    chosen = [f"optimiser.kind={kind}", "optimiser.learning_rate=0.001"]
    decay = ["optimiser.weight_decay=0.000001"] if kind == "sgd" else []
    settings = [*chosen, *decay, "train.precision=bf16-mixed"]
    return on_noise(load_recipe("mogrifier/ptb-small", settings), vocabulary=3000)[0]


def steps(loop: Loop) -> None:
    for _ in range(STEPS):
        loop._take_step()


if __name__ == "__main__":
    main()
