"""What it costs to know that a run and its tokens are whole, as ratios in one process.

    python benchmarks/opening.py

Opening a run with its manifest over opening it without; saving weights with the manifest over
saving them without; opening a split with its blocks checked, over reading it once from the memory
of the file system.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from infolm.data import store
from infolm.data.store import Counts
from infolm.training import checkpoint
from infolm.training.run import RunFolder


def median(function: Callable[[], object], times: int) -> float:
    """Seconds of a call."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--times", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.recipe.write_text("seed: 1\n")
        weights = {"w": torch.randn(arguments.parameters)}
        plain = median(lambda: checkpoint.save(folder.path / "x", weights), arguments.times)
        listed = median(lambda: folder.save_model(weights), arguments.times)
        print(f"saving {arguments.parameters:,} parameters, with / without: {listed / plain:.2f}")
        load = median(lambda: checkpoint.load(folder.model), arguments.times)
        verify = median(lambda: folder.verify(folder.model), arguments.times)
        vouched = median(lambda: checkpoint.load(folder.model, vouched=True), arguments.times)
        print(f"loading them, with / without: {(vouched + verify) / load:.2f}")

        path = folder.path / "train.tokens"
        tokens = np.random.default_rng(0).integers(10_000, size=arguments.tokens)
        store.write(path, 10_000, "v", [(tokens, Counts())])
        read = median(path.read_bytes, arguments.times)
        opened = median(lambda: store.read(path, "v"), arguments.times)
        print(f"opening {arguments.tokens:,} tokens, checked / read: {opened / read:.2f}")
        print(f"  that is {opened:.3f} s")
        store.blocks_of(path).unlink()
        first = median(lambda: store.read(path, "v"), 1)
        print(f"  the first time, of an earlier release: {first:.3f} s")


if __name__ == "__main__":
    main()
