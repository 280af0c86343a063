"""A corpus of gigabytes: how fast it is read, in how much memory, and what a token of it costs.

    python benchmarks/big_corpus.py [--megabytes 2000] [--small 20] [--steps 300]

Generates gzipped JSON lines of that size in a temporary folder (removed in the end), some documents
twice. Then, in processes of their own:

- ingestion with `data.deduplicate` and `data.shuffle`: megabytes of text per second and per second
  of CPU, and the most memory that all its processes held;
- a small LSTM trained on a small corpus and on the big one, in turns: CPU seconds per token and
  their ratio, and the process's resident memory over the steps.
"""

import argparse
import gzip
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from ingest import PeakMemory, spelt

TYPES = 200_000
DOCUMENT = 40  # lines
FILE = 50 * 10**6  # bytes of text in a file


def write_corpus(folder: Path, megabytes: int) -> int:
    """Documents of forty lines in files of 50 MB; one in fifty comes again. Gives the bytes."""
    rng = np.random.default_rng(0)
    ranks = np.arange(1, TYPES + 1)
    cumulative = np.cumsum(1 / ranks)
    words = np.array([spelt(rank) for rank in ranks.tolist()])
    total, number, last = 0, 0, ""
    while total < megabytes * 10**6:
        size = 0
        with gzip.open(folder / f"part-{number:05d}.jsonl.gz", "wt", compresslevel=1) as file:
            while size < min(FILE, megabytes * 10**6 - total):
                drawn = rng.random((64, DOCUMENT, 12)) * cumulative[-1]
                for document in words[np.searchsorted(cumulative, drawn)].tolist():
                    text = last
                    if not last or rng.random() >= 0.02:
                        text = "\n".join(" ".join(line) + "." for line in document)
                    last = text
                    file.write(json.dumps({"text": text}) + "\n")
                    size += len(text) + 1
        total, number = total + size, number + 1
    return total


def ingest(folder: str) -> None:
    """In a process of its own: load the corpus of a folder, and print what it took."""
    from infolm.data.corpora import DataConfig, gathered, load

    config = DataConfig(
        path=Path(folder), vocabulary=20_000, deduplicate=True, shuffle=1, held_out=0.002
    )
    start = time.perf_counter()
    with PeakMemory() as peak:
        corpus = load(config)
    seconds = time.perf_counter() - start
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found = gathered(config)
    result = {
        "seconds": seconds,
        "cpu": sum(each.ru_utime + each.ru_stime for each in usage),
        "peak": peak.megabytes,
        "tokens": len(corpus.splits["train"].tokens),
        "duplicates": found.duplicates if found else 0,
    }
    print(json.dumps(result))


def train(folder: str, steps: str) -> None:
    """In a process of its own: steps of a small LSTM on the feed; CPU seconds and memory of each.

    The stream jumps to a drawn place for each batch, so that all of a big corpus is visited.
    """
    import torch

    from infolm.data.corpora import DataConfig, load
    from infolm.data.stream import Stream, StreamConfig

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = DataConfig(
        path=Path(folder), vocabulary=20_000, deduplicate=True, shuffle=1, held_out=0.002
    )
    tokens = load(config).splits["train"].tokens
    feed = Stream(tokens, StreamConfig(batch=20, bptt=35, variable=False), 0)
    embed, cell = torch.nn.Embedding(20_000, 64), torch.nn.LSTM(64, 64)
    head = torch.nn.Linear(64, 20_000)
    parameters = [*embed.parameters(), *cell.parameters(), *head.parameters()]
    rng = np.random.default_rng(0)
    costs, memory = [], []
    page = os.sysconf("SC_PAGE_SIZE")
    count = int(steps)
    for step in range(count):
        start = time.process_time()
        for _ in range(50):  # what reading costs is measured beside a step's cost
            feed._position = int(rng.integers(feed._height - 40))
            batch = feed.next()
        reading = (time.process_time() - start) / 50
        start = time.process_time()
        logits = head(cell(embed(torch.from_numpy(batch.tokens)))[0])
        targets = torch.from_numpy(batch.targets)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        for parameter in parameters:
            parameter.grad = None
        costs.append((reading + time.process_time() - start, reading, batch.targets.size))
        if step % max(1, count // 10) == 0 or step == count - 1:
            memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * page / 2**20)
    whole = statistics.median(a / n for a, _, n in costs[5:])
    read = statistics.median(b / n for _, b, n in costs[5:])
    print(json.dumps({"cost": whole, "reading": read, "memory": memory, "tokens": len(tokens)}))


def call(*arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, *arguments]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--small", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="big-corpus-"))
    os.environ["INFOLM_CACHE"] = str(root / "cache")
    try:
        sizes = {"small": arguments.small, "big": arguments.megabytes}
        for name, megabytes in sizes.items():
            (root / name).mkdir()
            size = write_corpus(root / name, megabytes) / 1e6
            took = call("ingest", str(root / name))
            print(
                f"{name}: {size:,.0f} MB of text, {took['tokens']:,} training tokens, "
                f"{took['duplicates']:,} duplicates left out; ingested in {took['seconds']:.0f} s "
                f"({size / took['seconds']:.1f} MB/s; {size / took['cpu']:.1f} MB per second of "
                f"CPU), peak {took['peak']:.0f} MiB over all processes",
                flush=True,
            )
        found: dict[str, list[dict[str, float]]] = {name: [] for name in sizes}
        for turn in range(3):
            for name in list(sizes)[:: 1 if turn % 2 else -1]:
                found[name].append(call("train", str(root / name), str(arguments.steps)))
        for name, runs in found.items():
            memory = runs[-1]["memory"]
            shown = " ".join(f"{value:.0f}" for value in memory)  # type: ignore[attr-defined]
            print(f"{name}: resident memory over the steps, MiB: {shown}")
        for what in ("cost", "reading"):
            ratios = [b[what] / a[what] for a, b in zip(found["small"], found["big"], strict=True)]
            share = statistics.median(run["reading"] / run["cost"] for run in found["big"])
            print(
                f"{'CPU' if what == 'cost' else 'of which reading,'} per token, big over small: "
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
                + (f"; reading is {share:.1%} of a step" if what == "reading" else "")
            )
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] in ("ingest", "train"):
        train(*sys.argv[2:4]) if sys.argv[1] == "train" else ingest(sys.argv[2])
    else:
        main()
