"""The reverse copy task (Melis 2023, section 2.3.3): a corpus that requires only memory.

A line is n words drawn uniformly and independently from a vocabulary, a separator, and the same
words from the last to the first:

    x_1 x_2 ... x_n <sep> x_n ... x_2 x_1

Its entropy is known: n ln(types) nats a line, all of them before the separator. The rest is
determined, so a perfect model's loss after `<sep>` is 0, and that of a model without memory is n /
(n + 1) ln(types) per token, since <eos> is certain.
"""

import zlib
from collections.abc import Iterator

import numpy as np
from pydantic import Field

from infolm.section import Section

NAME = "reverse-copy"
SEPARATOR = "<sep>"
VERSION = 1  # raise it when other text comes out

BLOCK = 10_000
"""Lines made at a time."""


class ReverseCopyConfig(Section):
    """The size of the task; by default the thesis's easiest."""

    length: int = Field(50, ge=1, description="n, the words to be copied")
    types: int = Field(1000, ge=1, description="different words: 0, 1, 2, ...")
    examples: int = Field(500_000, ge=1, description="lines of the training split")
    held_out: int = Field(10_000, ge=1, description="lines of the validation split, as of the test")

    @property
    def name(self) -> str:
        sizes = (self.length, self.types, self.examples, self.held_out)
        return "-".join([NAME, *map(str, sizes), f"v{VERSION}"])

    @property
    def vocabulary(self) -> int:
        """With the separator, `<eos>` and `<unk>`."""
        return self.types + 3


def splits(config: ReverseCopyConfig) -> dict[str, Iterator[str]]:
    """The lines of each split, in parts: a sample of its own, from a seed of its own."""
    sizes = {"train": config.examples, "valid": config.held_out, "test": config.held_out}
    return {split: _lines(config, split, size) for split, size in sizes.items()}


def _lines(config: ReverseCopyConfig, split: str, count: int) -> Iterator[str]:
    seed = zlib.crc32(f"{NAME} {config.length} {config.types} {split}".encode())
    rng = np.random.Generator(np.random.PCG64(seed))
    words = [str(number) for number in range(config.types)]
    for start in range(0, count, BLOCK):
        drawn = rng.integers(config.types, size=(min(BLOCK, count - start), config.length))
        rows = [[words[number] for number in row] for row in drawn.tolist()]
        yield "".join(f"{' '.join(x)} {SEPARATOR} {' '.join(reversed(x))}\n" for x in rows)
