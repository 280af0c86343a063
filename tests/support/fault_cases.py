"""Commands on tiny runs that are to be disturbed, and what must be true of each afterwards.

A `Bench` holds one folder, `work`, in which commands run in forked processes, so that PyTorch is
imported once. A case has a template, what `work` holds before its command; every disturbance begins
with a copy of it, at the same path. After it

- a command that ended by itself has succeeded, or has printed one sentence and no trace;
- each file of the template is there: as it was, as the undisturbed command leaves it, or whole;
- the same command, given again, succeeds, and leaves the files that the undisturbed one leaves,
  those that training determines with the same bytes.
"""

import gc
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # threads of OpenMP would not survive a fork

import yaml
from encoder_tiny import NOUNS, sst2_folder
from faulty_files import Layer
from forked_workers import fork_workers
from race_tiny import race_tree
from small_recipes import small
from training_tiny import tiny_tree

FAILING = (
    *("train", "resume", "ingest", "evaluate", "generate", "report", "report-again", "score"),
    *("export-page", "export-transformers", "repair", "finetune", "finetune-again", "tune"),
    *("compare", "mi", "variance", "export-onnx", "export-word2vec"),
    *("export-sentence-transformers", "serve", "sweep", "table", "race"),
)
"""Commands whose file operations fail."""
TRAININGS = (
    *("awd-lstm", "recovery", "mogrifier-two-tailed", "rewired", "transformer", "bmi-two-phases"),
    *("sentence-mim", "monte-carlo", "categorical", "infoword"),
)
KILLED = (*TRAININGS, "ingest", "finetune", "tune", "export-page", "report", "repair", "sweep")
"""Commands that are killed at random moments."""

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where the folder of a bench may lie: a flush costs nothing there. A power cut is played by the
layer, which does not ask the disk."""

VOLATILE = ("tensorboard/", "cache/", "study.db", ".claims/", ".lock", "tmp/")
"""Files that have other names or bytes each time, or that can be made again from others."""


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@dataclass
class Case:
    """prepare: commands that make what is there before. after: makes damage, for instance."""

    name: str
    command: list[str]
    prepare: list[list[str]] = field(default_factory=list)
    after: Callable[[Path], None] = lambda work: None
    made: str = "nothing"
    """What it makes once: given again, it may say that this exists already."""
    judge: "Callable[[Bench], None] | None" = None
    """Raises what is wrong in the end, where the files differ each time."""


class Finding(Exception):
    """What should not be."""


def warm() -> None:
    """Import what commands import late, and build what they build once, before anything forks."""
    from transformers import BertModel  # noqa: F401

    import infolm.training.board  # noqa: F401
    from infolm.data.tokens import word_pattern
    from infolm.families.base import FAMILIES
    from infolm.nn.recurrence import native

    list(FAMILIES.items())
    native.available()
    word_pattern(False, True)


def import_all(modules: list[str]) -> None:
    """Import what a command has imported, so that the next forked process need not."""
    for name in modules:
        if name != "__main__":
            with suppress(Exception):  # some can only be imported by another
                import_module(name)
    assert threading.active_count() == 1, "threads do not survive a fork"
    gc.freeze()  # or a collection in a forked process would copy all that has been imported


class Bench:
    """forks_workers: workers of a pool are forked, too, instead of started anew."""

    def __init__(self, base: Path, forks_workers: bool = False) -> None:
        warm()
        self.base, self.work = base, base / "work"
        self._forks_workers = forks_workers
        self._passed: set[tuple[str, str]] = set()
        self._operations: dict[str, list[tuple[str, str]]] = {}
        self.text = base / "text.txt"
        rng = random.Random(0)
        verbs = ("sees", "hears", "finds", "loses")
        lines = [
            f"the {rng.choice(NOUNS)} {rng.choice(verbs)} a {rng.choice(NOUNS)} . is it ? no !"
            for _ in range(300)
        ]
        base.mkdir(parents=True, exist_ok=True)
        self.text.write_text("\n".join(lines) + "\n")
        (base / "documents").mkdir(exist_ok=True)
        for number in range(4):
            part = lines[number * 75 : number * 75 + 75]
            texts = [json.dumps({"text": "\n".join(part[i : i + 3])}) for i in range(0, 75, 3)]
            (base / "documents" / f"part-{number}.jsonl").write_text("\n".join(texts) + "\n")
        sst2_folder(base / "sst2", train=32, dev=16)
        tree = tiny_tree(self.text, max_steps=8, validate_every=4, checkpoint_seconds=0)
        self._write("tiny.yaml", tree)
        ranges = {"optimiser.learning_rate": {"low": 0.5, "high": 20, "log": True}}
        self._write("tuned.yaml", {**tree, "tuning": ranges})
        gathered = {**tree, "data": {"path": str(base / "documents"), "shuffle": 1}}
        gathered["data"] |= {"deduplicate": True, "held_out": 0.2}
        self._write("gathered.yaml", gathered)
        one = "objective.samples=1 objective.augment=kl objective.alpha=1"
        curve = {"label": "DReG", "recipe": "monte-carlo/synthetic-continuous-small", "set": one}
        curve["sweep"] = {"objective.lambda": [0.2, 0.8]}  # type: ignore[assignment]
        figures = {"5.3": {"title": "tiny", "curves": ["one"]}}
        self._write("sweep.yaml", {"samples": 10, "curves": {"one": curve}, "figures": figures})
        self._write("table.yaml", tiny_table(self.text))
        (base / "short.txt").write_text("\n".join(lines[:100]) + "\n")
        self._write("race.yaml", race_tree(base / "short.txt"))
        rows = [f"{i % 7},{i * i % 5},{i * i % 5 + i % 2}" for i in range(60)]
        (base / "table.csv").write_text("\n".join(["a,b,c", *rows]) + "\n")

    def _write(self, name: str, tree: dict[str, Any]) -> None:
        (self.base / name).write_text(yaml.safe_dump(tree, sort_keys=False))

    # -- cases -------------------------------------------------------------------------------

    def cases(self) -> dict[str, Case]:
        """Those of `FAILING`."""
        base, run = str(self.base), str(self.work / "run")
        train = ["train", f"{base}/tiny.yaml", "--out", run, "--resume"]
        first = [*train, "train.max_steps=4"]
        text = ["--text", "the cat sees a dog"]
        others = [[*train[:3], str(self.work / "other"), "model.hidden=10"]]
        matrix, codes = str(self.work / "matrix.png"), str(self.work / "codes")
        monte_carlo = self.training("monte-carlo/demo", steps=4, out=codes)
        variance = ["variance", codes, "--batches", "8"]
        encoder = str(self.work / "encoder")
        infoword = self.training("infoword/demo", steps=4, out=encoder)
        tuned = ["finetune", encoder, "--task", "sst2", "--data", f"{base}/sst2", "--epochs", "1"]
        tuned += ["--batch", "16", "--learning-rate", "0.003", "--out", str(self.work / "tuned")]

        def damage(work: Path) -> None:
            (work / "run" / "tokenizer.json").write_text("{}")
            (work / "run" / "model.safetensors").write_bytes(b"damaged")

        cases = [
            Case("train", train),
            Case("resume", train, [first]),
            Case("ingest", ["train", f"{base}/gathered.yaml", *train[2:], "train.max_steps=1"]),
            Case("evaluate", ["evaluate", run, "--cache", "tune", "--json"], [train]),
            Case("generate", ["generate", run, "--tokens", "5"], [train]),
            Case("report", ["report", run], [train]),
            Case("report-again", ["report", run], [train, ["report", run]]),
            Case("score", ["score", run, *text, "--plot", str(self.work / "plot.svg")], [train]),
            self._export(run, "page", train),
            self._export(run, "transformers", train),
            Case("repair", ["repair", run], [train], damage),
            Case("finetune", tuned, [infoword]),
            Case("finetune-again", tuned, [infoword, tuned]),
            Case("tune", self._tune()),
            Case("compare", self._compare("curves"), [train, *others, self._compare("first")]),
            Case("mi", ["mi", f"{base}/table.csv", "--matrix", "--fast", "--plot", matrix]),
            Case("variance", variance, [monte_carlo, [*variance, "--out", f"{codes}.png"]]),
            self._export(run, "onnx", train),
            self._export(encoder, "word2vec", infoword),
            self._export(encoder, "sentence-transformers", infoword),
            Case("serve", ["serve", run, "--runs", str(self.work), "--port", "0"], [train]),
            Case("sweep", self._sweep("swept"), [self._sweep("first")]),
            Case("table", self._table("table"), [self._table("first")]),
            Case("race", self._race("race"), [self._race("first")], made="race", judge=check_race),
        ]
        assert tuple(case.name for case in cases) == FAILING
        return {case.name: case for case in cases}

    def _export(self, run: str, form: str, trained: list[str]) -> Case:
        made = f"exported-{form}"
        command = ["export", run, "--to", form, "--out", str(self.work / made)]
        return Case(f"export-{form}", command, [trained], made=made)

    def _tune(self) -> list[str]:
        study = str(self.work / "study")
        return ["tune", f"{self.base}/tuned.yaml", "--trials", "2", "--seeds", "1", "--out", study]

    def _compare(self, picture: str) -> list[str]:
        runs = [str(self.work / name) for name in ("run", "other")]
        return ["compare", *runs, "--plot", str(self.work / f"{picture}.png")]

    def _sweep(self, out: str) -> list[str]:
        sizes = ["data.uniform.symbols=8", "model.hidden=8", "model.latent.size=2"]
        lengths = ["train.max_steps=20", "train.validate_every=10"]
        command = ["reproduce", f"{self.base}/sweep.yaml", *sizes, *lengths]
        return [*command, "--out", str(self.work / out)]

    def _table(self, out: str) -> list[str]:
        return ["reproduce", f"{self.base}/table.yaml", "--out", str(self.work / out)]

    def _race(self, out: str) -> list[str]:
        command = ["race", f"{self.base}/race.yaml", "--minutes", "30", "--threads", "1"]
        return [*command, "--out", str(self.work / out)]

    def training(self, name: str, *more: str, steps: int = 12, out: str = "") -> list[str]:
        """A recipe of infolm's own, made small."""
        from infolm.config import load_recipe

        recipe = load_recipe(name)
        lengths = [f"train.max_steps={steps}", "train.validate_every=4", "train.log_every=2"]
        often = "train.checkpoint_seconds=0"
        where = ["--out", out or str(self.work / "run"), "--resume"]
        return ["train", name, *small(recipe, "", self.text), *lengths, often, *more, *where]

    def killed(self) -> dict[str, Case]:
        """Those of `KILLED`: trainings of all kinds, and others."""
        trainings = (
            self.training("awd-lstm/demo"),
            self.training("awd-lstm/demo", "train.recover=true", *DIVERGES),
            self.training("mogrifier/demo"),
            self.training("rewired/demo"),
            self.training("transformer/demo"),
            self.training("bmi/demo"),
            self.training("sentence-mim/demo"),
            self.training("monte-carlo/demo"),
            self.training("monte-carlo/synthetic-categorical-small"),
            self.training("infoword/demo"),
        )
        named = dict(zip(TRAININGS, trainings, strict=True))
        known = self.cases() | {name: Case(name, command) for name, command in named.items()}
        return {name: known[name] for name in KILLED}

    # -- commands ----------------------------------------------------------------------------

    def start(
        self, command: list[str], layer: Layer | None = None, note: Path | None = None
    ) -> int:
        """The process that runs a command; its output goes to files in `base`."""
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 70
        try:
            for descriptor, name in ((1, "out"), (2, "err")):
                file = os.open(self.base / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                os.dup2(file, descriptor)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            os.environ["INFOLM_CACHE"] = str(self.work / "cache")
            os.environ["TMPDIR"] = str(self.base)
            os.chdir(self.base)
            sys.argv = ["infolm", *command]
            from infolm.cli import main

            EARLY.get(command[0], lambda: None)()
            if self._forks_workers:
                fork_workers(layer.leave if layer else lambda: None)
            if layer:
                layer.install()
            try:
                main()
            except SystemExit as end:
                code = int(end.code or 0)
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
        if layer and note:
            named = [[each.kind, each.path] for each in layer.operations]
            note.write_text(json.dumps({"operations": named, "modules": list(sys.modules)}))
        os._exit(code)

    def end(self, pid: int) -> Ended:
        _, status = os.waitpid(pid, 0)
        out, err = ((self.base / name).read_text(errors="replace") for name in ("out", "err"))
        return Ended(os.waitstatus_to_exitcode(status), out, err)

    def give(self, command: list[str], layer: Layer | None = None) -> Ended:
        return self.end(self.start(command, layer))

    def template(self, case: Case) -> Path:
        """What `work` holds before the case's command, made when it is first asked for."""
        made = self.base / "templates" / case.name
        if not made.exists():
            self.clear()
            for command in case.prepare:
                done = self.give(command)
                if done.code:
                    raise Finding(f"{command} failed: {done.err}")
            case.after(self.work)
            shutil.copytree(self.work, made)
        return made

    def clear(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()

    def begin(self, case: Case) -> None:
        """`work` as the template has it."""
        template = self.template(case)
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(template, self.work)

    def clean(self, case: Case) -> Path:
        """What `work` holds after the command when nothing disturbed it."""
        made = self.base / "clean" / case.name
        if not made.exists():
            self.begin(case)
            note = self.base / "operations.json"
            done = self.end(self.start(case.command, Layer(self.work), note))
            if done.code:
                raise Finding(f"{case.command} failed: {done.err}")
            shutil.copytree(self.work, made)
            known = json.loads(note.read_text())
            self._operations[case.name] = known["operations"]
            import_all(known["modules"])
        return made

    def operations(self, case: Case) -> list[tuple[str, str]]:
        """The file operations of the undisturbed command."""
        self.clean(case)
        known = self._operations[case.name]
        return [(kind, os.path.relpath(path, self.work)) for kind, path in known]

    # -- what must be true -------------------------------------------------------------------

    def check_ended(self, done: Ended, killed: bool) -> None:
        """It succeeded, was killed as was meant, or said in one sentence why not."""
        if done.code == 0 or killed:
            return
        lines = [line for line in done.err.splitlines() if line.startswith("infolm: ")]
        bad = ("Traceback", "should not have happened")
        if len(lines) != 1 or any(word in done.err for word in bad) or done.code < 0:
            raise Finding(f"ended with {done.code}: {done.err[-1500:]}")

    def check_intact(self, case: Case) -> None:
        """Each file that was there before is there, old, new or whole."""
        before, after = self.template(case), self.clean(case)
        for name in names(before):
            now = self.work / name
            if not now.exists():
                # What `infolm repair` replaces it puts aside first.
                if (after / name).exists() and not self._aside((before / name).read_bytes()):
                    raise Finding(f"{name} is gone")
                continue
            data = now.read_bytes()
            if any(
                data == (each / name).read_bytes()
                for each in (before, after)
                if (each / name).exists()
            ):
                continue
            if not whole(now, (before / name).read_bytes()):
                raise Finding(f"{name} is damaged")

    def _aside(self, data: bytes) -> bool:
        """Whether a file with these bytes is anywhere in `work`."""
        return any(p.read_bytes() == data for p in self.work.rglob("*") if p.is_file())

    def check_again(self, case: Case) -> None:
        """The same command succeeds, and leaves what it leaves undisturbed.

        It is given once for each state that `work` is found in: many faults leave the same one.
        """
        found = case.name, state(self.work)
        if found in self._passed:
            return
        self._check_again(case)
        self._passed.add(found)

    def _check_again(self, case: Case) -> None:
        done = self.give(case.command)
        if done.code and not ("exists already" in done.err and case.made in done.err):
            raise Finding(f"given again, it ended with {done.code}: {done.err[-1500:]}")
        if case.judge:
            case.judge(self)
            return
        after = self.clean(case)
        there, wanted = set(names(self.work)), set(names(after))
        there = {name for name in there if name in wanted or not any(a in name for a in ASIDE)}
        if there != wanted:
            raise Finding(
                f"files differ: {sorted(there - wanted)} more, {sorted(wanted - there)} less"
            )
        for name in sorted(wanted):
            if not same(self.work / name, after / name):
                raise Finding(f"{name} has other content than after an undisturbed command")


def tiny_table(text: Path) -> dict[str, Any]:
    """A table of one training."""
    size = "data.vocabulary=40 model.hidden=8 model.embedding=4 feed.batch=2 feed.bptt=10"
    short = "train.max_steps=4 train.validate_every=2 train.checkpoint_seconds=0"
    keys = f"data.path={text} {size} {short}"
    figures = {"perplexity": {"label": "test perplexity"}}
    return {
        "title": "A tiny table",
        "paper": "none",
        "claim": "It learns.",
        "seeds": 1,
        "scales": {"small": {"recipe": "awd-lstm/demo", "set": keys, "minutes": 0.1}},
        "arms": {"low": {"label": "a small rate", "set": "optimiser.learning_rate=0.001"}},
        "measure": {"options": {"split": "test", "streams": 2}, "figures": figures},
        "comparisons": [{"claim": "It is below 100.", "lower": "low", "higher": "100"}],
    }


ASIDE = ("metrics.damaged.jsonl", "damaged/")
"""Where a record goes that was cut off, and what `infolm repair` could not read."""
DIVERGES = ("optimiser.learning_rate=1e5", "optimiser.clip=null")


def names(folder: Path) -> Iterator[str]:
    """Files below `folder` that are the same each time."""
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not any(each in name for each in VOLATILE):
            yield name


def whole(path: Path, before: bytes) -> bool:
    """Whether a file that has changed is complete: it can be read, and no record is lost."""
    from infolm.errors import InfolmError
    from infolm.training import checkpoint

    data = path.read_bytes()
    if path.suffix == ".jsonl":
        return data.startswith(before)
    if path.suffix == ".json":
        try:
            return bool(json.loads(data))
        except ValueError:
            return False
    if path.suffix == ".safetensors":
        try:
            return bool(checkpoint.load(path))
        except InfolmError:
            return False
    if path.suffix == ".yaml":
        return bool(yaml.safe_load(data))
    return b"</html>" in data[-20:] or b"</svg>" in data[-20:]


def state(folder: Path) -> str:
    """A digest of all that a folder holds, but for what the clock has written."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if "tensorboard/" in name:  # named by the clock, and read by no command
            continue
        data = path.read_bytes() if path.is_file() else b""
        if path.suffix in (".json", ".jsonl"):
            with suppress(ValueError):
                data = repr([timeless(json.loads(each)) for each in records(path, data)]).encode()
        digest.update(f"{name}\0{path.is_file()}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def records(path: Path, data: bytes) -> list[bytes]:
    return data.splitlines() if path.suffix == ".jsonl" else [data]


PICTURES = (".html", ".svg", ".png")
"""They have speeds and dates in them; that they are complete `whole` sees."""
TIMES = ("seconds", "tokens_per_second", "speed", "day", "time")


def same(one: Path, other: Path) -> bool:
    """Whether two files are the same, but for what the clock has written."""
    if one.read_bytes() == other.read_bytes():
        return True
    if one.suffix == ".jsonl":
        a, b = ([timeless(json.loads(x)) for x in p.read_text().splitlines()] for p in (one, other))
        return a == b
    if one.suffix == ".json":
        return bool(
            timeless(json.loads(one.read_text())) == timeless(json.loads(other.read_text()))
        )
    return one.suffix in PICTURES


def timeless(tree: Any) -> Any:
    """A tree of JSON without what the clock has written."""
    if isinstance(tree, dict):
        return {k: timeless(v) for k, v in tree.items() if not any(t in k for t in TIMES)}
    return [timeless(each) for each in tree] if isinstance(tree, list) else tree


def race_quickly() -> None:
    """A race of this process is planned in moments."""
    import pytest
    from race_tiny import make_quick

    make_quick(pytest.MonkeyPatch())


def serve_once() -> None:
    """A server of this process answers one request to each of these, and ends."""
    import uvicorn
    from starlette.testclient import TestClient

    def run(server: uvicorn.Server, sockets: Any) -> None:
        with TestClient(server.config.app, "http://127.0.0.1", raise_server_exceptions=False) as to:
            for path in ("/healthz", "/v1/models", "/v1/runs"):
                answer = to.get(path)
                print(path, answer.status_code, answer.text)
                if answer.status_code == 500:
                    raise SystemExit(f"{path} failed: {answer.text}")

    uvicorn.Server.run = run  # type: ignore[method-assign, assignment]


EARLY: dict[str, Callable[[], None]] = {"race": race_quickly, "serve": serve_once}
"""What is changed for a command, in its process alone."""


def check_race(bench: Bench) -> None:
    """There is no record, or one that holds."""
    raced = bench.work / "race"
    done = bench.give(["race", "--check", str(raced)])
    if done.code and (raced / "race.json").exists():
        raise Finding(f"a record does not hold: {done.err[-1500:]}")
    litter = [path.name for path in bench.work.rglob("*.writing")]
    if litter:
        raise Finding(f"left behind: {litter}")


def kill_after(pid: int, seconds: float) -> bool:
    """Kill a process after a while; whether it was still there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return False
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return True
