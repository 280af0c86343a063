"""Readers of files, fuzzed by coverage: whatever a file holds, a reader gives what is in it or one
sentence (`InfolmError`).

    python tests/support/fuzz_readers.py tokenizer --minutes 10      needs `pip install atheris`
    python tests/support/fuzz_readers.py all --minutes 10 --json fuzz.json

`READERS` has the readers, each with files that are sound. Atheris (libFuzzer) changes their bytes
and keeps the inputs that reach new lines of infolm; half of the changes are made to the tree that a
JSON file holds, so that they come past its parser. Any other exception, more than 60 seconds or
3 GB is a finding: it is kept in `tests/found/READER-*`, and should become a test. Minutes
are of CPU time, so that a busy machine fuzzes no less.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
FOUND = HERE.parent / "found"
TEXT = "the cat sees a dog .\nthe dog hears a cat and sleeps .\n"


class Reader(NamedTuple):
    """read: reads the file at a path. seeds: sound contents. pack: from fuzzed bytes to the file's,
    for formats whose digest no fuzzer guesses."""

    read: Callable[[Path], object]
    seeds: Callable[[], list[bytes]]
    pack: Callable[[bytes], bytes] = bytes
    name: str = "input"


# -- what reads ------------------------------------------------------------------------------


def _recipe(path: Path) -> None:
    from infolm.config import load_recipe

    load_recipe(str(path)).as_yaml()


def _recipe_seeds() -> list[bytes]:
    from importlib import resources

    shelf = resources.files("infolm") / "recipes"
    papers = (
        "awd-lstm",
        "bmi",
        "infoword",
        "monte-carlo",
        "rewired",
        "sentence-mim",
        "transformer",
    )
    return [(shelf / paper / "demo.yaml").read_bytes() for paper in papers]


def _tokenizer(path: Path) -> None:
    from infolm.data.tokens import Tokenizer

    found = Tokenizer.load(path)
    assert found.to_json()
    found.decode(found.encode(TEXT))


def _tokenizer_seeds() -> list[bytes]:
    from infolm.data.tokens import Tokenizer

    words = ["<eos>", "<unk>", *sorted(set(TEXT.split()))]
    made = [
        Tokenizer.from_words(words, pretokenised=True, lowercase=False),
        Tokenizer.from_words(words, pretokenised=False, lowercase=True),
        Tokenizer.from_characters(["\n", "<unk>", *"abcdehlnoprst ."]),
        Tokenizer.from_wordpiece([TEXT], 100),
        Tokenizer.from_bytes(),
        Tokenizer.from_bpe([TEXT], 260),
    ]
    return [each.to_json().encode() for each in made]


def _metrics(path: Path) -> None:
    from infolm.training.run import RunFolder, put_damaged_lines_aside, read_metrics

    records = read_metrics(path)
    run = RunFolder(path.parent)
    put_damaged_lines_aside(run)
    assert read_metrics(path) == records
    run.damaged_metrics.unlink(missing_ok=True)


def _metrics_seeds() -> list[bytes]:
    lines = [
        {"kind": "step", "step": 3, "likelihood/nll": 1.5, "learning_rate": 5.0},
        {"kind": "validation", "step": 5, "loss": 2.5, "answer": "average"},
        {"kind": "event", "step": 5, "name": "triggered"},
    ]
    return ["".join(json.dumps(line) + "\n" for line in lines).encode()]


def _corpus(path: Path) -> None:
    from infolm.families.recorded import source_of
    from infolm.training.run import RunFolder

    source_of(RunFolder(path.parent))


def _corpus_seeds() -> list[bytes]:
    tree = {"name": "text", "sha256": "0" * 64, "tokens": {"train": 9, "valid": 2, "test": 2}}
    return [json.dumps(tree, indent=2).encode()]


def _manifest(path: Path) -> None:
    from infolm.training.manifest import Manifest, altered

    Manifest.read(path.parent)
    altered(path)


def _manifest_seeds() -> list[bytes]:
    from infolm.training.manifest import Manifest

    recipe = _recipe_seeds()[0].decode()
    listed = {"manifest.json": ["0" * 64], "model.safetensors": ["1" * 64, "2" * 64]}
    return [Manifest(listed, recipe, {"compiler": "c++ 12"}).as_json().encode()]


def _measurements(path: Path) -> None:
    from infolm.evaluation import measurement

    measurement.as_json(measurement.read(path))


def _measurements_seeds() -> list[bytes]:
    from infolm.evaluation import measurement

    one = measurement.Measurement("nll", 1.5, "nats per token", 0.1, 9, "valid", "static", "all")
    return [measurement.as_json([one, one]).encode()]


def _settings(path: Path) -> None:
    from infolm.evaluation.neural_cache import CacheSettings
    from infolm.families.running import tuned

    tuned._built(CacheSettings, tuned._settings(path), "cache")


def _settings_seeds() -> list[bytes]:
    return [b'{"window": 500, "weight": 0.1, "flatness": 0.6}', b"{}"]


def _checkpoint(path: Path) -> None:
    import torch

    from infolm.training import checkpoint

    state = checkpoint.load(path)
    checkpoint.part(path, state, "model")
    model = torch.nn.Linear(2, 1)
    checkpoint.restore_weights(path, model, state["model"])


def _checkpoint_seeds() -> list[bytes]:
    import torch

    from infolm.training import checkpoint

    state = {
        "step": 3,
        "model": torch.nn.Linear(2, 1).state_dict(),
        "optimiser": {"state": {"0": {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1.0}]},
        "losses": [1.0, 2.0],
    }
    tensors: dict[str, Any] = {}
    tree = json.dumps(checkpoint._flatten(state, "", tensors))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        checkpoint.save(path, state)
        return [b"\0" + path.read_bytes(), b"\1" + tree.encode()]


def _packed_checkpoint(data: bytes) -> bytes:
    """A whole file as it is; or a tree of the fuzzer's under the right digest."""
    if data[:1] != b"\1":
        return data[1:]
    import torch
    from safetensors.torch import save

    from infolm.training import checkpoint

    tree = data[1:].decode("utf-8", "replace")
    tensors = {"model/weight": torch.zeros(1, 2), "model/bias": torch.zeros(1)}
    tensors["optimiser/state/0/step"] = torch.zeros(())
    about = {"format": checkpoint.FORMAT, "tree": tree}
    about["sha256"] = checkpoint._digest(tree, tensors)
    return save(tensors, {checkpoint.METADATA: json.dumps(about)})


VOCABULARY = "0" * 64


def _tokens(path: Path) -> None:
    from infolm.data import store

    try:
        split = store.read(path, VOCABULARY)
        assert split.tokens.sum() >= 0
        assert split.lines >= 0
    except store.DamagedError:
        pass


def _tokens_seeds() -> list[bytes]:
    import numpy as np

    from infolm.data import store

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tokens"
        counts = store.Counts(1, 2, 3, 4, 0)
        store.write(path, 100, VOCABULARY, [(np.arange(50), counts)])
        whole = path.read_bytes()
    header = whole[store._JSON : store.HEADER].rstrip()
    return [b"\0" + whole, b"\1" + header + b"\0" + whole[store.HEADER :]]


def _packed_tokens(data: bytes) -> bytes:
    """A whole file as it is; or a header of the fuzzer's under its right digest, and tokens."""
    if data[:1] != b"\1":
        return data[1:]
    from infolm.data import store

    header, _, tokens = data[1:].partition(b"\0")
    text = header.ljust(store.HEADER - store._JSON)[: store.HEADER - store._JSON]
    return store._MAGIC + hashlib.sha256(text).digest() + text + tokens


def _tables(path: Path) -> None:
    from infolm.data.tables import read_samples

    kind = {1: ".npy", 2: ".csv", 3: ".tsv", 4: ".parquet"}
    data = path.read_bytes()
    to = path.with_suffix(kind.get(data[0] if data else 0, ".csv"))
    to.write_bytes(data[1:])
    try:
        read_samples(str(to))
    finally:
        to.unlink()


def _tables_seeds() -> list[bytes]:
    import io

    import numpy as np
    import pyarrow
    from pyarrow import parquet

    array, table = io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(12.0).reshape(6, 2))
    columns = {"a": [1.0, 2.0, 3.0], "b": ["x", "y", "x"]}
    parquet.write_table(pyarrow.table(columns), table, compression="none")
    return [
        b"\1" + array.getvalue(),
        b"\2a,b\n1,x\n2,y\n",
        b'\3a\tb\n1\t"x y"\n2\ty\n',
        b"\4" + table.getvalue(),
    ]


def _tsv(path: Path) -> None:
    from infolm.finetuning.tasks import TASKS, read_task

    data = path.read_bytes()
    task = list(TASKS.values())[data[0] % len(TASKS) if data else 0]
    folder = path.parent / "task"
    folder.mkdir(exist_ok=True)
    layout = task.layouts[-1]
    names = [layout.train, *(n for each in layout.dev.values() for n in each), *layout.held_out]
    for part, name in zip(data[1:].split(b"\0"), names, strict=False):
        (folder / name).write_bytes(part)
    try:
        read_task(task.name, folder)
    finally:
        shutil.rmtree(folder)


def _tsv_seeds() -> list[bytes]:
    from infolm.finetuning.tasks import TASKS

    seeds = []
    for number, task in enumerate(TASKS.values()):
        columns = ["index", *task.texts, task.label, "#1 ID", "#2 ID"]
        label = task.labels[0] if task.labels else "2.5"
        row = "\t".join(["0", *("a cat" for _ in task.texts), label, "1", "2"])
        part = ("\t".join(columns) + "\n" + row + "\n").encode()
        parts = [part, part, part]
        if task.layouts[-1].held_out:
            parts = [part + row.replace("1\t2", "3\t4").encode(), b"1\t2\n"]
        seeds.append(bytes([number]) + b"\0".join(parts))
    return [*seeds, b"\0" + b"\0".join([b"gj04\t1\t\ta cat\n"] * 3)]


def _squad(path: Path) -> None:
    from infolm.finetuning.squad import read_squad

    read_squad(path)


def _squad_seeds() -> list[bytes]:
    answers = [{"answer_start": 4, "text": "cat"}]
    asked = {"id": "1", "question": "what ?", "answers": answers, "is_impossible": False}
    context = "the cat sleeps . A dog hears it ."
    tree = {"version": "1.1", "data": [{"paragraphs": [{"context": context, "qas": [asked]}]}]}
    return [json.dumps(tree).encode()]


def _pairs(path: Path) -> None:
    from infolm.data.answers import read_questions

    read_questions(path)


def _pairs_seeds() -> list[bytes]:
    lines = b"question\tanswer\tlabel\nwho ?\ta cat\t1\nwho ?\ta dog\t0\n"
    return [lines, *_squad_seeds()]


def _bert(path: Path) -> None:
    from infolm.models.encoder import EncoderConfig

    EncoderConfig(checkpoint=path.parent).resolved()


def _bert_seeds() -> list[bytes]:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"intermediate_size": 64, "max_position_embeddings": 32, "hidden_act": "gelu"}
    return [json.dumps({"model_type": "bert", **sizes, **more}).encode()]


def _results(path: Path) -> None:
    from infolm.finetuning.glue import averages

    for average in averages(path.parent.parent):
        average.told()


def _results_seeds() -> list[bytes]:
    tree = {
        "task": "sst2",
        "fresh": False,
        "share": 1.0,
        "chosen": {"dev": {"dev": {"accuracy": 0.5}}},
        "choice": {"on": "half"},
    }
    return [json.dumps(tree).encode()]


def _race(path: Path) -> None:
    from infolm.studies.race.check import check as faults_of
    from infolm.studies.race.curve import best_of_each
    from infolm.studies.race.record import read

    record = read(path).signed()  # anyone can sign a record again
    faults_of(record)
    best_of_each([record])
    assert record.line()


def _race_seeds() -> list[bytes]:
    folder = HERE.parents[1] / "results" / "race"
    return [json.dumps(json.loads(min(folder.glob("*.json")).read_bytes())).encode()]


def _table(path: Path) -> None:
    from infolm.studies.tables import listing, pages

    (records,) = listing.opened(path.parent.parent, "small", ["awd-lstm/cache"])
    pages.page(records, "x.png")
    for arm in records.work.table.arms:
        records.done(arm, records.recipes(arm, 1)[0], 1)
    records.to_json()


def _table_seeds() -> list[bytes]:
    return [(HERE.parents[1] / "results" / "awd-lstm" / "cache.json").read_bytes()]


READERS = {
    "recipe": Reader(_recipe, _recipe_seeds, name="recipe.yaml"),
    "tokenizer": Reader(_tokenizer, _tokenizer_seeds, name="tokenizer.json"),
    "metrics": Reader(_metrics, _metrics_seeds, name="metrics.jsonl"),
    "corpus": Reader(_corpus, _corpus_seeds, name="corpus.json"),
    "measurements": Reader(_measurements, _measurements_seeds, name="measurements.json"),
    "settings": Reader(_settings, _settings_seeds, name="cache.json"),
    "checkpoint": Reader(_checkpoint, _checkpoint_seeds, _packed_checkpoint, "x.safetensors"),
    "tokens": Reader(_tokens, _tokens_seeds, _packed_tokens, "x.tokens"),
    "tables": Reader(_tables, _tables_seeds, name="table"),
    "tsv": Reader(_tsv, _tsv_seeds),
    "squad": Reader(_squad, _squad_seeds, name="train.json"),
    "pairs": Reader(_pairs, _pairs_seeds, name="pairs.tsv"),
    "manifest": Reader(_manifest, _manifest_seeds, name="manifest.json"),
    "bert": Reader(_bert, _bert_seeds, name="config.json"),
    "results": Reader(_results, _results_seeds, name="results.json"),
    "race": Reader(_race, _race_seeds, name="race.json"),
    "table": Reader(_table, _table_seeds, name="awd-lstm/cache.json"),
}


def check(reader: Reader, data: bytes, folder: Path) -> bool:
    """Whether the file is taken; any error but a sentence goes through."""
    from infolm.errors import InfolmError

    path = folder / reader.name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(reader.pack(data))
    try:
        reader.read(path)
    except InfolmError:
        return False
    return True


# -- changes to the tree in a JSON file ------------------------------------------------------

STRANGE: list[Any] = [
    *(None, True, 0, -1, 1.5, 10**30, float("nan"), float("inf"), "", "x", "0" * 64, [], {}),
    *("$nest", [[]], {"": ""}, "\ud800", "$tensor", {"$tensor": "model/weight"}, {"$tensor": 1}),
]


def mutated(data: bytes, rng: random.Random) -> bytes | None:
    """The JSON with one or a few places changed; None where it is none."""
    mark = data[:1] if data[:1] < b" " else b""
    body, nul, rest = data[len(mark) :].partition(b"\0")
    lines = body.split(b"\n") if body.count(b"\n{") else [body]
    at = rng.randrange(len(lines))
    try:
        tree = [json.loads(lines[at])]
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            node: Any = tree
            while True:
                keys = list(node) if isinstance(node, dict) else list(range(len(node)))
                if not keys:
                    break
                key = rng.choice(keys)
                if not isinstance(node[key], dict | list) or rng.random() < 0.2:
                    _change(node, key, rng)
                    break
                node = node[key]
        lines[at] = json.dumps(tree[0]).encode().replace(b'"$nest"', b"[" * 3000 + b"]" * 3000)
    except (ValueError, RecursionError, IndexError, KeyError):
        return None
    return mark + b"\n".join(lines) + nul + rest


def _change(node: Any, key: Any, rng: random.Random) -> None:
    match rng.randrange(5):
        case 0 if isinstance(node, dict):
            del node[key]
        case 1 if isinstance(node, list):
            node.append(node[key])
        case 2 if isinstance(node, dict):
            node[rng.choice(("x", "kind", "format", "id"))] = node.pop(key)
        case 3 if isinstance(node[key], str):
            node[key] = node[key][: rng.randrange(len(node[key]) + 1)] + rng.choice("\0é\t\n𝔘[ ")
        case _:
            node[key] = rng.choice(STRANGE)


# -- the fuzzer ------------------------------------------------------------------------------


def fuzz(name: str, seconds: float) -> None:
    """Fuzz one reader in this process; libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["infolm"]):
        import infolm.config
        import infolm.data.tables
        import infolm.evaluation.measurement
        import infolm.families.recorded
        import infolm.families.running.run
        import infolm.finetuning.glue
        import infolm.finetuning.squad
        import infolm.finetuning.tasks
        import infolm.models.encoder
        import infolm.studies.race.check
        import infolm.studies.race.curve
        import infolm.studies.tables.pages
        import infolm.training.run  # noqa: F401
    reader = READERS[name]
    scratch = Path(tempfile.mkdtemp(prefix="fuzz-", dir=_memory())) / "task"
    scratch.mkdir()
    seeds = scratch.parent / "seeds"
    seeds.mkdir()
    for number, seed in enumerate(reader.seeds()):
        (seeds / str(number)).write_bytes(seed)
        assert check(reader, seed, scratch), f"the seed {number} of {name} is refused"
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 what readers say; libFuzzer writes to 2

    known: set[object] = set()
    inputs, end = 0, time.process_time() + seconds

    def one(data: bytes) -> None:
        nonlocal inputs
        inputs += 1
        if time.process_time() > end:
            os.write(2, f"stat::number_of_executed_units: {inputs}\n".encode())
            shutil.rmtree(scratch.parent)
            os._exit(0)
        try:
            check(reader, data, scratch)
        except Exception as error:
            # Go on behind a finding: one input for each place that fails is enough.
            frames = [
                f for f in traceback.extract_tb(error.__traceback__) if "infolm" in f.filename
            ]
            place = (type(error), frames[-1].filename, frames[-1].lineno)
            if place not in known:
                known.add(place)
                digest = hashlib.sha256(data).hexdigest()[:12]
                (FOUND / f"{name}-{digest}").write_bytes(data)
                said = "".join(traceback.format_exception(error))[-1500:]
                os.write(2, f"FINDING {name}-{digest}\n{said}\n".encode(errors="replace"))

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        changed = mutated(data, rng) if rng.random() < 0.5 else None
        return changed[:most] if changed else atheris.Mutate(data, most)

    FOUND.mkdir(exist_ok=True)
    atheris.Setup(
        [
            sys.argv[0],
            *("-timeout=60", "-rss_limit_mb=3000", "-max_len=16384"),
            f"-artifact_prefix={FOUND}/{name}-",
            str(seeds),
        ],
        one,
        custom_mutator=mutate,
    )
    atheris.Fuzz()


def _memory() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


def campaign(names: list[str], minutes: float) -> list[dict[str, Any]]:
    """Fuzz readers one after another, each in a process of its own, and in a new one behind a
    crash; the time counts over all of them."""
    import re

    results = []
    for name in names:
        left, inputs, findings, covered = minutes * 60, 0, 0, 0
        while left > 1 and findings < 20:  # a hang or a crash ends the process
            began = _of_children()
            command = [sys.executable, __file__, name, "--here", str(left)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            left -= _of_children() - began
            said = done.stderr
            counts = re.findall(r"#(\d+)\s", said) or ["0"]
            executed = re.search(r"number_of_executed_units: (\d+)", said)
            inputs += int(executed[1] if executed else counts[-1])
            covered = max([covered, *map(int, re.findall(r" cov: (\d+)", said))])
            findings += said.count("\nFINDING ") + bool(done.returncode)
            if done.returncode or "\nFINDING " in said:
                print(f"--- {name}: exit code {done.returncode}\n{said[-20_000:]}", flush=True)
        spent = minutes * 60 - left
        results.append(
            {
                "reader": name,
                "seconds": round(spent),
                "inputs": inputs,
                "branches": covered,
                "findings": findings,
            }
        )
        print(json.dumps(results[-1]), flush=True)
    return results


def _of_children() -> float:
    """CPU seconds of the processes that have ended."""
    used = os.times()
    return used.children_user + used.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader", nargs="+", choices=[*READERS, "all"])
    parser.add_argument("--minutes", type=float, default=10, help="of CPU time, for each reader")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", type=float, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        fuzz(asked.reader[0], asked.here)
    names = list(READERS) if "all" in asked.reader else asked.reader
    results = campaign(names, asked.minutes)
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=2) + "\n")
    sys.exit(any(each["findings"] for each in results))


if __name__ == "__main__":
    main()
