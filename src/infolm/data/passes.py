"""The base of feeds that draw an order for each pass: position, saving and restoring."""

from abc import ABC, abstractmethod
from typing import Any

import numpy.typing as npt


class Passes(ABC):
    """A `Feed` whose batches `_draw` makes for each pass, a function of seed and `epoch`.

    `_position` is the number of the next batch in its pass. A subclass calls `_draw` when it is
    ready, and `_advance` with each batch.
    """

    epoch = 0
    _position = 0
    _batches: list[Any] | npt.NDArray[Any]

    @abstractmethod
    def _draw(self) -> None:
        """Set `_batches` to those of this pass."""

    def _advance(self) -> None:
        self._position += 1
        if self._position == len(self._batches):
            self._position, self.epoch = 0, self.epoch + 1
            self._draw()

    def fraction(self) -> float:
        return self._position / len(self._batches)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self._position = state["epoch"], state["position"]
        self._draw()
