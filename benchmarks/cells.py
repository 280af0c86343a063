"""A layer of each cell, forward and backward, against `nn.LSTM` of the same sizes.

    python benchmarks/cells.py

All but the plain LSTM are loops over time steps under autograd.
"""

from collections.abc import Callable

import torch
from timing import ratio
from torch import nn

from infolm.models.recurrent import MogrifierConfig, RecurrentConfig, build_cell, rates

STEPS, BATCH, SIZE = 70, 64, 512
PLAIN, FIVE = MogrifierConfig(), MogrifierConfig(rounds=5, rank=60)
CELLS = {
    "LSTM": RecurrentConfig(),
    "LSTM, capped": RecurrentConfig(capped=True),
    "Mogrifier LSTM, r = 5, k = 60": RecurrentConfig(capped=True, mogrifier=FIVE),
    "Rewired LSTM": RecurrentConfig(cell="rewired"),
    "Mogrifier RLSTM": RecurrentConfig(cell="rewired", mogrifier=FIVE),
    "multiplicative LSTM": RecurrentConfig(cell="multiplicative", capped=True),
    "GRU": RecurrentConfig(cell="gru"),
    "Elman": RecurrentConfig(cell="elman"),
}


def pass_through(layer: nn.Module, x: torch.Tensor, state: object) -> Callable[[], None]:
    def both_ways() -> None:
        outputs, _ = layer(x, state)
        outputs.sum().backward()
        layer.zero_grad()

    return both_ways


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(STEPS, BATCH, SIZE)
    yardstick = nn.LSTM(SIZE, SIZE)
    for name, config in CELLS.items():
        cell = build_cell(config, SIZE, SIZE, rates(config))
        value, a, b = ratio(
            pass_through(cell, x, cell.initial_state(BATCH)), pass_through(yardstick, x, None), 5
        )
        print(f"{name} / nn.LSTM: {value:.2f} ({a:.2f} s / {b:.2f} s)")


if __name__ == "__main__":
    main()
