"""SIGKILL at random moments: each command is killed, some more than once, and then given again.

    python tests/support/kill_many.py 1000 --json kills.json

A case is killed at moments drawn evenly over the time that it takes undisturbed, and given again
until it ends by itself. What was there before must be intact after every kill, and in the end the
files must be those of a command that nobody killed, those that training determines with the same
bytes. The commands and checks are those of `fault_cases`.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fault_cases import MEMORY, Bench, Case, Finding, kill_after


def kill(bench: Bench, case: Case, rng: random.Random, seconds: float, left: int) -> int:
    """Kill a command once to three times, then let it end; how many kills found it at work."""
    bench.begin(case)
    kills = 0
    for _ in range(min(left, rng.choice((1, 1, 2, 3)))):
        pid = bench.start(case.command)
        hit = kill_after(pid, rng.random() * seconds)
        done = bench.end(pid)
        kills += hit
        if not hit:
            bench.check_ended(done, killed=False)
            break
        bench.check_intact(case)
    bench.check_again(case)
    return kills


def kill_many(bench: Bench, cases: dict[str, Case], count: int, seed: int = 0) -> dict[str, Any]:
    """So many kills, shared evenly among the commands."""
    rng = random.Random(seed)
    kills: Counter[str] = Counter()
    findings: list[dict[str, str]] = []
    began = time.monotonic()
    for number, (name, case) in enumerate(cases.items()):
        wanted = count * (number + 1) // len(cases) - count * number // len(cases)
        bench.clean(case)
        bench.begin(case)
        start = time.monotonic()
        bench.give(case.command)
        seconds = time.monotonic() - start
        tries = 0
        while kills[name] < wanted and tries < 4 * wanted + 4:
            tries += 1
            try:
                kills[name] += kill(bench, case, rng, seconds, wanted - kills[name])
            except Finding as finding:
                kills[name] += 1
                findings.append({"command": name, "wrong": str(finding)})
                print(f"{name}: {finding}", flush=True)
        print(f"{name}: {kills[name]} kills in {seconds:.1f} s each", flush=True)
    return {
        "kills": dict(kills),
        "total": kills.total(),
        "findings": findings,
        "seconds": round(time.monotonic() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        bench = Bench(Path(folder))
        cases = {n: c for n, c in bench.killed().items() if not asked.only or n in asked.only}
        found = kill_many(bench, cases, asked.count, asked.seed)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found | {"findings": found["findings"][:20]}, indent=2))
    sys.exit(bool(found["findings"]))


if __name__ == "__main__":
    main()
