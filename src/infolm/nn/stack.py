"""Stacks of recurrent layers."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from infolm.nn.cells.base import Cell, State
from infolm.nn.dropout import Rates, locked_dropout, step_dropout

Connections = Literal["stacked", "skip", "skip-raw", "residual"]


class StackOutput(NamedTuple):
    """output (T, B, H): the softmax's input, before its dropout. layers: every layer's output,
    before any dropout, (T, B, H_l) each. state: of each layer after the last step. Of packed
    sentences, output and layers are the rows (N, H), the state that after each one's last token."""

    output: Tensor
    layers: list[Tensor]
    state: list[State]


def unpacked(x: Tensor | PackedSequence) -> tuple[Tensor, PackedSequence | None]:
    """The rows, and their packing, if any."""
    return (x.data, x) if isinstance(x, PackedSequence) else (x, None)


class Stack(nn.Module):
    """Recurrent layers. With h^l the output of layer l and d^l the same behind `hidden` dropout,

        stacked     layer l reads d^{l-1}                  the output is h^L
        skip        layer l reads d^{l-1}                  the output is d^1 + ... + d^L
        skip-raw    layer l reads d^{l-1}                  the output is h^1 + ... + h^L
        residual    layer l reads d^1 + ... + d^{l-1}      the output is d^1 + ... + d^L

    Stacked are AWD-LSTM's layers (Merity et al. 2017, section 4.2), skip-raw those of Melis et al.
    (2020) in their program, residual those of Melis (2023, section 4.2), who drops before the sum.
    skip has the layers of the one and the dropout of the other. The input is not in the sums. Two
    layers of skip and of residual are the same, and without dropout those of skip-raw too.
    """

    def __init__(
        self, cells: Sequence[Cell], connections: Connections, rates: Rates, locked: bool
    ) -> None:
        super().__init__()
        self.connections, self.rates = connections, rates
        self.drop = locked_dropout if locked else step_dropout
        self.cells = nn.ModuleList(cells)
        self.widths = [cell.hidden for cell in cells]

    def initial_state(self, batch: int) -> list[State]:
        return [cast(Cell, cell).initial_state(batch) for cell in self.cells]

    def forward(
        self, x: Tensor | PackedSequence, state: Sequence[State], copies: int = 1
    ) -> StackOutput:
        """x: (T, B, E), already dropped; or sentences of several lengths, packed, of which each
        `copies` that follow each other have the same dropout masks."""
        x, packed = unpacked(x)
        sizes = packed.batch_sizes if packed else None
        layers: list[Tensor] = []
        after: list[State] = []
        total: Tensor | None = None
        for cell, before in zip(self.cells, state, strict=True):
            h, new = cell(packed._replace(data=x) if packed else x, before, copies)
            h = h.data if packed else h
            layers.append(h)
            after.append(new)
            if self.connections == "stacked" and len(layers) == len(self.cells):
                return StackOutput(h, layers, after)
            raw = self.connections == "skip-raw"
            # an output that is not read is not dropped
            if not (raw and len(layers) == len(self.cells)):
                x = self.drop(h, self.rates.hidden, self.training, sizes, copies)
            if self.connections != "stacked":
                summand = h if raw else x
                total = summand if total is None else total + summand
            if self.connections == "residual":
                x = cast(Tensor, total)
        return StackOutput(cast(Tensor, total), layers, after)
