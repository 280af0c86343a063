"""How fast a large text becomes tokens, on one worker and on two, and in how much memory.

    python benchmarks/ingest.py [--megabytes 1000] [--tokens word]

The text is drawn from Zipf's law over five million word types, with a steeper tail beyond the ten
thousand most frequent, as in real text: a gigabyte has some two million different words. Prints
the speed with each number of workers, their ratio, and the most memory that all processes together
held (the sum of their resident sets, sampled ten times a second).
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
KNEE = 10_000
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]


def spelt(rank: int) -> str:
    """A number in base 60, a syllable to a digit."""
    word = ""
    while rank:
        rank, digit = divmod(rank, len(SYLLABLES))
        word += SYLLABLES[digit]
    return word


def write_text(path: Path, megabytes: int) -> None:
    """Words that are their rank, spelt in letters, the rarer the longer; twenty to a line."""
    rng = np.random.default_rng(0)
    ranks = np.arange(1, TYPES + 1)
    cumulative = np.cumsum(1 / (ranks * np.maximum(ranks / KNEE, 1) ** 0.6))
    words = [spelt(rank) for rank in ranks.tolist()]
    with path.open("w", encoding="ascii") as file:
        while file.tell() < megabytes * 10**6:
            drawn = np.searchsorted(cumulative, rng.random((25_000, 20)) * cumulative[-1])
            file.writelines(" ".join([words[i] for i in line]) + ".\n" for line in drawn.tolist())


class PeakMemory:
    """The most that this process and its children held at once, in megabytes."""

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
        while not self._done.wait(0.1):
            self.megabytes = max(self.megabytes, resident(os.getpid()) / 2**20)


def resident(process: int) -> int:
    """Bytes that a process and its children hold in memory."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        threads = Path(f"/proc/{process}/task").glob("*/children")
        children = " ".join(path.read_text() for path in threads).split()
    except OSError:
        return 0  # it ended in the meantime
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident(int(child)) for child in children)


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
