"""The parts of each batch that a process reads, and their random numbers.

With W processes and `accumulate` = N there are W N parts of a batch. Process r reads N of them,
from r N on, one after another. A batch in one part is read whole; its random numbers come from
PyTorch's own generator. Otherwise those of the batch come from a shared generator that starts at
that one's state, equal in all processes, and PyTorch's own is reseeded in each process: so W N
parts together draw what one process draws with the whole batch (see `nn.draws`).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from infolm.data.parts import part
from infolm.nn.draws import Part
from infolm.nn.gather import processes

Random = dict[str, Any]


class Parts:
    """numbers: the parts that this process reads, of `count`."""

    def __init__(self, accumulate: int) -> None:
        self.rank, self.processes = processes()
        self.count = self.processes * accumulate
        self.numbers = range(self.rank * accumulate, (self.rank + 1) * accumulate)
        self._generators: dict[str, torch.Generator] = {}
        if self.count > 1:
            self._divide(_own_state())

    def _divide(self, state: Random) -> None:
        """Start the shared generators at `state`, and reseed PyTorch's own."""
        for device, numbers in state.items():
            self._generators[device] = torch.Generator(device)
            self._generators[device].set_state(numbers)
        torch.manual_seed((torch.initial_seed() + 7919 * (self.rank + 1)) % 2**63)

    def __iter__(self) -> Iterator[int]:
        """The parts in turn; the shared generators are at the same state for each."""
        before = {device: each.get_state() for device, each in self._generators.items()}
        for number in self.numbers:
            for device, state in before.items():
                self._generators[device].set_state(state)
            yield number

    def of(self, batch: Any, number: int) -> tuple[Any, Part | None]:
        """A part of a batch, and the whole that its random numbers are part of."""
        own = part(batch, number, self.count)
        if self.count == 1:
            return own, None
        return own, Part(torch.from_numpy(own.whole.columns), batch.columns, self._generators)

    def state_dict(self) -> tuple[Random, Random]:
        """The random numbers of the whole batch, and those of this process."""
        if self.count == 1:
            return _own_state(), {}
        shared: Random = {device: each.get_state() for device, each in self._generators.items()}
        return shared, _own_state()

    def load_state_dict(self, shared: Random, own: Random) -> None:
        """Restore them; own: empty if this process had none of its own."""
        if self.count == 1:
            _restore(shared)
            return
        for device, generator in self._generators.items():
            if device in shared:
                generator.set_state(shared[device])
        if own:
            _restore(own)


def _own_state() -> dict[str, Tensor]:
    """The states of PyTorch's generators; feeds keep their own."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _restore(state: Random) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
