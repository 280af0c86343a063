"""Every file operation of every command fails in turn, is cut off in turn, and loses its power.

    python tests/support/inject.py --json faults.json               all of them (hours)
    python tests/support/inject.py --share 0.02 --only train report  a sample
    python tests/support/inject.py --only tune --part 3/12           a twelfth of those of one

The faults are those of `faulty_files`, the commands and checks those of `fault_cases`.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fault_cases import MEMORY, Bench, Case, Finding
from faulty_files import KILLED, POWER, Fault, Layer, applies

KINDS = ("ENOSPC", "EIO", "EACCES", "short", "kill", *POWER)


def disturb(bench: Bench, case: Case, fault: Fault) -> str:
    """Have one operation fail; what was wrong then, or nothing."""
    shadow = bench.base / "shadow"
    shutil.rmtree(shadow, ignore_errors=True)
    shadow.mkdir()
    bench.begin(case)
    done = bench.give(case.command, Layer(bench.work, fault, shadow))
    try:
        bench.check_ended(done, killed=done.code == KILLED and fault.kind in ("kill", *POWER))
        bench.check_intact(case)
        bench.check_again(case)
    except Finding as finding:
        return str(finding)
    return ""


def disturb_all(
    bench: Bench,
    cases: dict[str, Case],
    share: float,
    seed: int = 0,
    most: int | None = None,
    part: tuple[int, int] = (1, 1),
) -> dict[str, Any]:
    """A share of all faults of these commands, chosen at random, `most` of each at most.

    part: (k, n), of every n faults the k-th; all n parts together have each fault once.
    """
    rng = random.Random(seed)
    number, parts = part
    counts: dict[str, Counter[str]] = {}
    findings: list[dict[str, Any]] = []
    began = time.monotonic()
    for name, case in cases.items():
        operations = bench.operations(case)
        faults = [
            Fault(kind, at)
            for at, (operation, _) in enumerate(operations)
            for kind in KINDS
            if applies(kind, operation)
        ]
        own = faults[number - 1 :: parts]
        wanted = min(most or len(own), max(1, round(share * len(own))))
        counts[name] = Counter(operations=len(operations), faults=len(faults), tried=wanted)
        for fault in sorted(rng.sample(own, wanted)):
            counts[name][fault.kind] += 1
            if wrong := disturb(bench, case, fault):
                operation = " ".join(operations[fault.at])
                findings.append({"command": name, "fault": list(fault), "at": operation})
                findings[-1]["wrong"] = wrong
                print(f"{name}: {fault.kind} at {fault.at} ({operation}): {wrong}", flush=True)
        print(f"{name}: {dict(counts[name])}", flush=True)
    return {
        "commands": {name: dict(count) for name, count in counts.items()},
        "tried": sum(count["tried"] for count in counts.values()),
        "findings": findings,
        "seconds": round(time.monotonic() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--most", type=int)
    parser.add_argument("--part", default="1/1", metavar="K/N", help="the K-th of N parts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", nargs=2, metavar=("KIND", "NUMBER"), help="this one alone")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        bench = Bench(Path(folder), forks_workers=True)
        cases = {n: c for n, c in bench.cases().items() if not asked.only or n in asked.only}
        if asked.fault:
            for case in cases.values():
                operations = bench.operations(case)
                fault = Fault(asked.fault[0], int(asked.fault[1]))
                print(*operations[max(0, fault.at - 5) : fault.at + 2], sep="\n")
                print(disturb(bench, case, fault) or "nothing was wrong")
            return
        number, parts = map(int, asked.part.split("/"))
        found = disturb_all(bench, cases, asked.share, asked.seed, asked.most, part=(number, parts))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found | {"findings": len(found["findings"])}, indent=2))
    sys.exit(bool(found["findings"]))


if __name__ == "__main__":
    main()
