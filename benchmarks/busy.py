"""Training on a machine that is busy with something else.

    python benchmarks/busy.py

The demo's model is trained beside as many busy processes as there are cores, and alone: with
OpenMP's own waiting, and with the shorter one that `infolm` asks for.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

SETTINGS = {"OpenMP's own": "300000", "infolm's": "20000"}  # turns of waiting; the first by default


def tokens_per_second(folder: Path, turns: str, steps: int) -> float:
    command = [sys.executable, "-m", "infolm", "train", "awd-lstm/demo", "--out", str(folder)]
    settings = [f"train.max_steps={steps}", f"train.validate_every={steps}"]
    subprocess.run(
        [*command, *settings],
        env=os.environ | {"GOMP_SPINCOUNT": turns},
        check=True,
        capture_output=True,
    )
    records = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    *_, last = (each for each in records if each["kind"] == "step")
    return float(last["tokens_per_second"])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--steps", type=int, default=100)
    steps = arguments.parse_args().steps
    cores = len(os.sched_getaffinity(0))
    print("| beside | waiting | tokens/s |\n| --- | --- | --- |")
    for others in (0, cores):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            for _ in range(others):
                busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                stack.callback(busy.kill)
            for name, turns in SETTINGS.items():
                speed = tokens_per_second(Path(folder) / turns, turns, steps)
                print(f"| {others} busy processes | {name} | {speed:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
