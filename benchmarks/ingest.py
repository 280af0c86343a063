"""How fast a large text becomes tokens, on one worker and on two, and in how much memory.

    python benchmarks/ingest.py [--megabytes 1000] [--tokens word]

The text is drawn from Zipf's law over five million word types, so that new words keep coming as
they do in real text. Prints the speed with each number of workers, their ratio, and the most memory
that all processes together held (the sum of their resident sets, sampled fifty times a second).
"""

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from infolm.data.corpora import DataConfig, load

TYPES = 5_000_000


def write_text(path: Path, megabytes: int) -> None:
    """Words `w<rank in base 36>`, ten thousand to a draw, some twenty to a line."""
    rng = np.random.default_rng(0)
    cumulative = np.cumsum(1 / np.arange(1, TYPES + 1))
    with path.open("w", encoding="ascii") as file:
        while file.tell() < megabytes * 10**6:
            ranks = np.searchsorted(cumulative, rng.random(500_000) * cumulative[-1])
            words = [np.base_repr(rank, 36).lower() for rank in ranks.tolist()]
            file.writelines(" ".join(words[i : i + 20]) + " .\n" for i in range(0, len(words), 20))


class PeakMemory:
    """The most that this process and its children held at once, in megabytes, beyond the start."""

    def __enter__(self) -> "PeakMemory":
        self.megabytes = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            family = {os.getpid()}
            resident = 0
            for entry in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
                try:
                    fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue  # it ended in the meantime
                if int(entry) in family or int(fields[1]) in family:
                    family.add(int(entry))
                    resident += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
            self.megabytes = max(self.megabytes, resident / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--tokens", default="word", choices=["word", "char", "byte", "bpe"])
    parser.add_argument("--vocabulary", type=int, default=250_000, help="words only")
    arguments = parser.parse_args()
    limit = {"word": arguments.vocabulary, "bpe": 10_000}.get(arguments.tokens)
    speeds = []
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text"
        write_text(text, arguments.megabytes)
        config = DataConfig(path=text, tokens=arguments.tokens, vocabulary=limit)
        for workers in (1, 2):
            os.environ["INFOLM_CACHE"] = f"{folder}/{workers}"
            start = time.perf_counter()
            with PeakMemory() as peak:
                corpus = load(config, workers=workers)
            seconds = time.perf_counter() - start
            speeds.append(text.stat().st_size / 1e6 / seconds)
            tokens = sum(len(split.tokens) for split in corpus.splits.values())
            print(
                f"{workers} worker{'s' * (workers > 1)}: {speeds[-1]:.1f} MB/s, {tokens:,} tokens, "
                f"{len(corpus.tokenizer):,} types, {seconds:.1f} s, peak {peak.megabytes:.0f} MiB",
                flush=True,
            )
    print(f"two workers are {speeds[1] / speeds[0]:.2f} times as fast as one")


if __name__ == "__main__":
    main()
