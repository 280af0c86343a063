"""What several processes gain, and what batches in parts cost, at equal batches.

    python benchmarks/scaling.py [--device cuda] [--repeats 7]

- Two processes of one thread against one process of one thread: at least 1.7 times as fast, for a
  step of the 24M LSTM of `awd-lstm/ptb` and of InfoWord with a BERT of 4 layers of 256 columns.
- The path of several processes, taken by one alone, against training without it: 1.03 at most.
- A batch in two parts one after another against the whole batch: 1.05 at most.

Each side is a team of processes of its own that waits for its turn; the median of the pairs' ratios
is given. Beside the time by the clock stands the processor's time, of all processes of a team: its
ratio is what a busy machine can still measure. About five minutes on two quiet cores.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from encoders import VOCABULARY, Nobody, Size, objective, random_feed
from lightning_fabric import Fabric
from loops import on_noise
from timing import device_option

from infolm.averaging.tail import NoAverage
from infolm.config import load_recipe
from infolm.models.encoder import Encoder, EncoderConfig
from infolm.optimisation.optimisers import AdamWConfig
from infolm.optimisation.schedule import Schedule
from infolm.training import processes
from infolm.training.loop import Loop, Term, TrainConfig, Validation
from infolm.training.run import RunFolder
from infolm.training.strategy import Kind, strategy

WORDS = 10_000


@dataclass(frozen=True)
class Side:
    """One side of a comparison. group: by the path of several processes."""

    model: str
    device: str
    processes: int = 1
    accumulate: int = 1
    group: bool = False
    strategy: Kind = "replicate"
    steps: int = 1


def lstm(side: Side) -> Loop:
    overrides = ["feed.variable=false", "averaging.kind=tail", "averaging.start=0"]
    parts = f"train.accumulate={side.accumulate}"
    return on_noise(load_recipe("awd-lstm/ptb", [*overrides, parts]), WORDS, side.device)[0]


def bert(side: Side) -> Loop:
    size = Size(4, 256, 4, VOCABULARY, 32)
    config = EncoderConfig(
        layers=size.layers, hidden=size.hidden, heads=size.heads, length=size.length
    )
    model = Encoder(config, size.vocabulary).to(side.device)
    optimiser = AdamWConfig(learning_rate=1e-3, clip=1.0)
    shared = strategy(side.strategy, model)
    return Loop(
        Fabric(accelerator=side.device, devices=1),
        model,
        [Term("infoword", random_feed(size, "spans"), objective("infoword"))],
        optimiser.build(shared.parameters),
        Schedule(optimiser.schedule),
        NoAverage(model),
        lambda: Validation(0.0),
        TrainConfig(accumulate=side.accumulate),
        optimiser.clip,
        RunFolder(Path()),
        Nobody(),
        strategy=shared,
    )


LOOPS: dict[str, Callable[[Side], Loop]] = {"24M LSTM": lstm, "BERT 4 x 256": bert}


def work(side: Side) -> None:
    """A process of a team: takes steps whenever it reads a line, and writes its processor time."""
    torch.manual_seed(0)
    with processes.together(side.device == "cuda") if side.group else nullcontext():
        loop = LOOPS[side.model](side)
        for _ in sys.stdin:
            before = time.process_time()
            for _ in range(side.steps):
                loop._take_step()
            if side.device == "cuda":
                torch.cuda.synchronize()
            print(time.process_time() - before, flush=True)


class Times(NamedTuple):
    """Seconds by the clock, and of all processors."""

    clock: float
    processors: float


class Team:
    def __init__(self, side: Side) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.workers = []
        for rank in range(side.processes):
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            if side.group:
                environment |= {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(side.processes),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                }
            self.workers.append(
                subprocess.Popen(
                    [sys.executable, __file__, "--worker", json.dumps(asdict(side))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )

    def take_steps(self) -> Times:
        start = time.perf_counter()
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        spent = 0.0
        for worker in self.workers:
            assert worker.stdout is not None
            spent += float(worker.stdout.readline())
        return Times(time.perf_counter() - start, spent)

    def end(self) -> None:
        for worker in self.workers:
            worker.communicate()


def compare(ours: Side, yardstick: Side, repeats: int) -> tuple[Times, Times]:
    """Median ratios of ours to the yardstick, and the yardstick's seconds."""
    teams = [Team(ours), Team(yardstick)]
    for team in teams:
        team.take_steps()
    pairs = []
    for i in range(repeats):
        order = teams if i % 2 else teams[::-1]
        found = [team.take_steps() for team in order]
        pairs.append(found if i % 2 else found[::-1])
    for team in teams:
        team.end()
    ratios = Times(
        statistics.median(a.clock / b.clock for a, b in pairs),
        statistics.median(a.processors / b.processors for a, b in pairs),
    )
    return ratios, Times(
        statistics.median(b.clock for _, b in pairs),
        statistics.median(b.processors for _, b in pairs),
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--worker", help=argparse.SUPPRESS)
    device_option(arguments)
    arguments.add_argument("--repeats", type=int, default=7)
    asked = arguments.parse_args()
    if asked.worker:
        work(Side(**json.loads(asked.worker)))
        return
    for model in LOOPS:
        one = Side(model, asked.device, steps=2 if model.startswith("BERT") else 1)
        two = replace(one, processes=2, group=True)
        ratios, seconds = compare(two, one, asked.repeats)
        print(
            f"{model}, two processes over one: {1 / ratios.clock:.2f} times as fast (bar 1.7; "
            f"{seconds.clock:.2f} s of one); processor time {ratios.processors:.2f}",
            flush=True,
        )
        alone = replace(one, group=True)
        ratios, _ = compare(alone, one, asked.repeats)
        print(
            f"{model}, the path of several processes, taken by one: {ratios.clock:.3f} (bar 1.03); "
            f"processor time {ratios.processors:.3f}",
            flush=True,
        )
        parts = replace(one, accumulate=2)
        ratios, _ = compare(parts, one, asked.repeats)
        print(
            f"{model}, a batch in two parts over the whole: {ratios.clock:.3f} (bar 1.05); "
            f"processor time {ratios.processors:.3f}",
            flush=True,
        )
    sharded = replace(two, strategy="fully_shard")
    ratios, _ = compare(sharded, two, asked.repeats)
    print(
        f"{model}, two processes, fully_shard over replicate: {ratios.clock:.2f}; "
        f"processor time {ratios.processors:.2f}"
    )


if __name__ == "__main__":
    main()
