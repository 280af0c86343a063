"""A layer of each cell, forward and backward, against `nn.LSTM` of the same sizes.

    python benchmarks/cells.py [--compiled] [--device cuda]

Each line gives the time of every path over that of `nn.LSTM`, the median of pairs, beside the
bar of the path that is taken by default and the floor: the products' multiplications over those of
`nn.LSTM`. `--compiled` adds the path that takes torch.compile a minute for each cell.
With `--device cuda` the default path is `fused`, and memory is not measured.

Memory: what is kept from the forward to the backward pass, weights and input aside, over the same
of the plain loop (bar 1.5), and the peak over both passes, gradients of weights and input aside.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from heads import peak
from timing import device_option, ratio
from torch import nn

from infolm.models.recurrent import MogrifierConfig, RecurrentConfig, build_cell, rates
from infolm.nn.cells.base import Cell
from infolm.nn.recurrence.driver import Path, choose, use


class Size(NamedTuple):
    batch: int
    steps: int
    inputs: int
    hidden: int
    rank: int


SIZES = (
    Size(64, 70, 400, 650, 64),
    Size(64, 70, 400, 1150, 64),
    Size(32, 70, 128, 256, 40),
    Size(20, 35, 200, 200, 40),
)
FIVE = MogrifierConfig(rounds=5)
CELLS = {
    "Mogrifier LSTM": RecurrentConfig(capped=True, mogrifier=FIVE),
    "Rewired LSTM": RecurrentConfig(cell="rewired"),
    "Mogrifier RLSTM": RecurrentConfig(cell="rewired", mogrifier=FIVE),
    "LSTM": RecurrentConfig(),
    "LSTM, capped": RecurrentConfig(capped=True),
    "multiplicative LSTM": RecurrentConfig(cell="multiplicative"),
    "GRU": RecurrentConfig(cell="gru"),
    "Elman": RecurrentConfig(cell="elman"),
}
BARS = {"Mogrifier LSTM": (1.5, 1.5, 1.6, 2.2), "Rewired LSTM": (1.2, 1.25, 1.6, 1.9)}


def make(name: str, size: Size, device: str = "cpu") -> Cell:
    torch.manual_seed(0)
    config = CELLS[name]
    ranked = config.mogrifier.model_copy(update={"rank": size.rank})
    config = config.model_copy(update={"mogrifier": ranked})
    return build_cell(config, size.inputs, size.hidden, rates(config)).to(device)


def both_ways(layer: nn.Module, size: Size, path: Path | None) -> Callable[[], None]:
    """A pass forward and backward, gradients of the input included."""
    device = next(layer.parameters()).device
    x = torch.randn(size.steps, size.batch, size.inputs, requires_grad=True, device=device)
    gradient = torch.randn(size.steps, size.batch, size.hidden, device=device)
    state: Any = layer.initial_state(size.batch) if isinstance(layer, Cell) else None

    def run() -> None:
        layer.zero_grad()
        if path is None:
            layer(x, state)[0].backward(gradient)
            return
        with use(path):
            layer(x, state)[0].backward(gradient)

    return run


def products(layer: nn.Module) -> int:
    return sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)


def times(name: str, paths: list[Path], device: str) -> None:
    default = choose(torch.zeros(1, 1, device=device), steps=2)
    for index, size in enumerate(SIZES):
        cell, yardstick = make(name, size, device), nn.LSTM(size.inputs, size.hidden).to(device)
        against = both_ways(yardstick, size, None)
        found = []
        for path in paths:
            repeats = 5 if size.hidden > 500 else 21
            value, _, _ = ratio(both_ways(cell, size, path), against, repeats)
            bar = f" (bar {BARS[name][index]})" if path == default and name in BARS else ""
            found.append(f"{path} {value:.2f}{bar}")
        floor = products(cell) / products(yardstick)
        shape = f"{size.batch} x {size.steps}, {size.inputs} -> {size.hidden}"
        print(f"  {shape:>22}: {', '.join(found)}; floor {floor:.2f}", flush=True)


def kept_memory(name: str, size: Size, path: Path) -> float:
    """MB of the tensors that the backward pass will read, weights and input aside."""
    cell, kept = make(name, size), {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    x = torch.randn(size.steps, size.batch, size.inputs, requires_grad=True)
    with use(path), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        cell(x, cell.initial_state(size.batch))
    for tensor in (x, *cell.parameters()):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in kept.values()) / 2**20


def peak_memory(name: str, size: Size) -> None:
    """In a process of its own."""
    small = Size(2, 2, 8, 8, 4)
    both_ways(make(name, small), small, None)()  # libraries and threads are loaded
    cell = make(name, size)
    run = both_ways(cell, size, None)
    for parameter in cell.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = peak(since_now=True)
    run()
    print(peak() - before)


def memory(name: str, default: Path) -> None:
    found = []
    for index, size in enumerate(SIZES):
        command = [sys.executable, __file__, "--memory", name, str(index)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        ours, plain = (kept_memory(name, size, path) for path in (default, "plain"))
        found.append(
            f"{ours / plain:.2f} ({ours:.0f} / {plain:.0f}, peak {float(done.stdout):.0f})"
        )
    print(f"  MB kept / plain (bar 1.5): {', '.join(found)}")


def through(cell: Cell, steps: int, learns: bool, path: Path) -> None:
    x = torch.ones(steps, 1, cell.inputs, device=next(cell.parameters()).device)
    with use(path), torch.set_grad_enabled(learns):
        outputs, _ = cell(x, cell.initial_state(1))
        if learns:
            cell.zero_grad()
            outputs.sum().backward()


def one_stream(default: Path, device: str) -> None:
    """As in evaluation and in dynamic evaluation: one row, 200 units."""
    cell = make("Mogrifier LSTM", Size(1, 70, 200, 200, 40), device)
    for steps, learns in ((70, False), (20, True)):
        run = partial(through, cell, steps, learns)
        value, _, _ = ratio(partial(run, default), partial(run, "plain"), 21)
        passes = "both passes" if learns else "without gradient"
        print(f"Mogrifier LSTM, 200 units, one stream of {steps}, {passes}: {value:.2f} of plain")


def main() -> None:
    if sys.argv[1:2] == ["--memory"]:
        peak_memory(sys.argv[2], SIZES[int(sys.argv[3])])
        return
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--compiled", action="store_true")
    device_option(arguments)
    asked = arguments.parse_args()
    default = choose(torch.zeros(1, 1, device=asked.device), steps=2)
    paths: list[Path] = ["plain", "fused"]
    paths += ["compiled"] if asked.compiled else []
    paths += ["native"] if default == "native" else []
    one_stream(default, asked.device)
    for name in CELLS:
        print(f"{name} / nn.LSTM, default {default}", flush=True)
        times(name, paths if name in BARS else [default], asked.device)
        if name in BARS and asked.device == "cpu":
            memory(name, default)


if __name__ == "__main__":
    main()
