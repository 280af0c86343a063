"""Train, evaluate, generate, score, report and serve for an hour: nothing may grow.

    python tests/support/soak.py --minutes 60 --json soak.json

All in one process, as in a notebook or behind a server that runs for weeks. After the first rounds,
which fill caches, memory may grow by `MEMORY` MB in all; open files and threads may not grow at
all; and nothing may be left in the folder for temporary files or beside the run.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from fault_cases import Bench
from fuzz_commands import give
from serving import served

WARM = 5
"""Rounds after which growth counts."""
MEMORY = 48
"""MB that memory may grow by: PyTorch's allocator and Python's arenas are not returned at once."""


def state(folder: Path) -> dict[str, int]:
    """Memory in MB, open files, threads, and files that somebody forgot."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    litter = [path for path in folder.rglob("*") if path.name.endswith((".writing", ".log"))]
    temporary = list(Path(tempfile.gettempdir()).iterdir())
    return {
        "megabytes": pages * os.sysconf("SC_PAGE_SIZE") // 2**20,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "litter": len(litter) + len(temporary),
    }


def asked(address: str, path: str, body: dict[str, Any] | None = None) -> Any:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def soak(base: Path, minutes: float) -> dict[str, Any]:
    from infolm.library import load

    base = base.resolve()
    temporary = base / "temporary"
    temporary.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    bench = Bench(base / "bench")
    bench.clear()
    os.environ["INFOLM_CACHE"] = str(bench.work / "cache")
    kept, fresh = str(bench.work / "kept"), str(bench.work / "fresh")
    train = ["train", f"{bench.base}/tiny.yaml", "--out"]
    page = str(bench.work / "page.html")

    def command(*line: str) -> None:
        code, said = give(list(line))
        if code:
            raise SystemExit(f"{' '.join(line)} ended with {code}: {said[-1000:]}")

    command(*train, kept)
    states = []
    began = time.monotonic()
    with served([load(kept)]) as (address, services):
        (name,) = services
        while len(states) <= WARM + 1 or time.monotonic() - began < 60 * minutes:
            command(*train, fresh)
            command(*train, fresh, "--resume", "train.max_steps=12")
            command("evaluate", kept, "--split", "valid", "--cache")
            command("generate", kept, "--tokens", "5")
            command("score", kept, "--text", "the cat sees a dog")
            command("report", kept)
            command("export", kept, "--to", "page", "--out", page)
            os.unlink(page)
            shutil.rmtree(fresh)
            asked(address, "/v1/models")
            prompt = {"model": name, "prompt": "the cat", "max_tokens": 4}
            asked(address, "/v1/completions", prompt)
            states.append(state(base))
    first, last = states[WARM], states[-1]
    budgets = {"megabytes": MEMORY, "descriptors": 0, "threads": 0, "litter": 0}
    grown = {key: last[key] - first[key] for key in budgets}
    grown["litter"] = last["litter"]
    return {
        "rounds": len(states),
        "seconds": round(time.monotonic() - began),
        "megabytes": [states[round(i * (len(states) - 1) / 10)]["megabytes"] for i in range(11)],
        "first": first,
        "last": last,
        "grown": grown,
        "budgets": budgets,
        "findings": [f"{k} grew by {v}" for k, v in grown.items() if v > budgets[k]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = soak(Path(folder), wanted.minutes)
    print(json.dumps(found, indent=2))
    if wanted.json:
        wanted.json.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(bool(found["findings"]))


if __name__ == "__main__":
    main()
