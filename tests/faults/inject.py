"""Every operation on files of a command goes wrong in turn, and the power fails after each.

    python tests/faults/inject.py --json inject.json              every operation
    python tests/faults/inject.py train report --every 10         every tenth

`inject.cpp`, compiled when it is needed and preloaded, numbers the operations that change files,
those of C and Rust libraries too. Each is made to fail (ENOSPC, EIO, EACCES, a short write) and the
process is killed before it. What must hold each time:

- the command ends with one sentence, or with success where the operation did not matter;
- each file that was there has the bytes of before, or those that the command gives it;
- the command given again succeeds, and leaves what it leaves when nothing goes wrong, no litter.

The power fails: of the operations up to each point, writes that were not flushed (fsync) are lost,
or the names that were not flushed with their folder are. Given again, the command must do as above.

A process that has imported all that is needed is forked for each trial.
"""

import argparse
import ctypes
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
SOURCE = HERE / "inject.cpp"
HOWS = ("ENOSPC", "EIO", "EACCES", "SHORT", "KILL")
LOSSES = ("unflushed data", "unflushed names")


class Scenario(NamedTuple):
    """before: commands that make what is there. command: what goes wrong. again: what is given
    after that, if it is another. {} is the folder that all is in."""

    before: tuple[str, ...]
    command: str
    again: str = ""
    damage: str = ""


TRAIN = "train {}/tiny.yaml --out {}/run"
SCENARIOS = {
    "train": Scenario((), TRAIN, TRAIN + " --resume"),
    "resume": Scenario((TRAIN,), "train {}/run --resume train.max_steps=3"),
    "evaluate": Scenario((TRAIN,), "evaluate {}/run --split valid --temperature tune"),
    "report": Scenario((TRAIN,), "report {}/run"),
    "export": Scenario((TRAIN,), "export {}/run --out {}/exported"),
    "repair": Scenario((TRAIN,), "repair {}/run", damage="run/model.safetensors"),
    "finetune": Scenario(
        ("train {}/encoder.yaml --out {}/run",),
        "finetune {}/run --task sst2 --data {}/sst2 --epochs 1 --batch 48",
    ),
}


def shim(folder: Path) -> Path:
    """The compiled layer."""
    library = folder / "inject.so"
    compiler = os.environ.get("CXX", "g++")
    flags = ["-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run([compiler, *flags], check=True)
    return library


# -- trials, in a process that has the layer -------------------------------------------------


def child(root: Path, command: str, at: int = 0, how: str = "", trace: str = "") -> dict[str, Any]:
    """Give a command in a forked process; its exit code, its errors, its number of operations."""
    out, err, counted = (root.parent / f"{name}" for name in ("out", "err", "counted"))
    pid = os.fork()
    if pid == 0:
        for path, descriptor in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        from infolm.cli import main

        layer = ctypes.CDLL(None)
        sys.argv = ["infolm", *command.format(*[root] * command.count("{}")).split()]
        code = 99
        layer.inject(f"{root}/".encode(), ctypes.c_long(at), how.encode(), trace.encode())
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
        operations = layer.injected()
        layer.inject(b"", ctypes.c_long(0), b"", b"")
        sys.stdout.flush()
        sys.stderr.flush()
        counted.write_text(str(operations))
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    said = err.read_text(errors="replace")
    return {"code": code, "err": said, "operations": int(counted.read_text() or 0)}


IGNORED = re.compile(
    r"(^|/)(tensorboard/.*|\.[^/]*lock|report\.html|cache/.*|.*\.png|results\.json)$"
)
LITTER = re.compile(r"\.writing($|/)|making-")


def state(root: Path) -> dict[str, bytes]:
    """What the files hold, but for times in metrics and for what is never the same."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_file() and not IGNORED.search(name):
            data = path.read_bytes()
            if path.name == "metrics.jsonl":
                data = re.sub(rb', "[a-z_]*(second|speed)[a-z_]*": [^,}]*', b"", data)
            found[name] = data
    return found


def place(before: Path, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(before, root)


def faults_of(
    clean: dict[str, bytes], versions: dict[str, set[bytes]], found: dict[str, bytes]
) -> str:
    """Which file that was there has neither its former bytes nor any that the command gave it."""
    for name, data in found.items():
        if LITTER.search(name) or name == "run/metrics.jsonl":
            continue
        if name in versions and data not in versions[name]:
            return f"{name} has other bytes than before and after"
    return ""


def differs(found: dict[str, bytes], wanted: dict[str, bytes]) -> str:
    names = [n for n in {**found, **wanted} if found.get(n) != wanted.get(n)]
    return (
        f"{', '.join(names[:3])} differ from what is left when nothing goes wrong" if names else ""
    )


class Trace:
    """The operations of a command, to be done again up to a point."""

    def __init__(self, path: Path, root: Path) -> None:
        lines = path.read_text().splitlines()
        self.root = str(root)
        self.lines = [line.split("\t") for line in lines]

    def versions(self, before: dict[str, bytes]) -> dict[str, set[bytes]]:
        """All that files held when they got their names."""
        found = {name: {data} for name, data in before.items()}
        for n, (what, *rest) in enumerate(self.lines):
            if what == "rename":
                now = self.after(n + 1, before, "")
                for name, data in now.items():
                    if name.startswith(rest[1].removeprefix(self.root + "/")):
                        found.setdefault(name, set()).add(data)
        return found

    def after(self, n: int, before: dict[str, bytes], loss: str) -> dict[str, bytes]:
        """The files after n operations and a power failure."""
        names: dict[str, int] = {}
        data: list[bytearray] = []
        kept: list[bytes] = []  # of each file, what is on the disk
        for name, content in before.items():
            names[name] = len(data)
            data.append(bytearray(content))
            kept.append(content)
        flushed = dict(names)

        def inner(path: str) -> str:
            return path.removeprefix(self.root).lstrip("/")

        for what, *rest in self.lines[:n]:
            name = inner(rest[0])
            if what in ("open", "truncate", "write") and name not in names:
                names[name] = len(data)
                data.append(bytearray())
                kept.append(b"")
            match what:
                case "write":
                    at, content = int(rest[1]), bytes.fromhex(rest[2])
                    whole = data[names[name]]
                    whole.extend(bytes(max(0, at - len(whole))))
                    whole[at : at + len(content)] = content
                case "truncate":
                    size = int(rest[1])
                    whole = data[names[name]]
                    whole.extend(bytes(max(0, size - len(whole))))
                    del whole[size:]
                case "fsync" if name in names:
                    kept[names[name]] = bytes(data[names[name]])
                case "fsync":  # a folder's names, and those of what was renamed into it whole
                    below = f"{name}/" if name else ""
                    flushed = {k: v for k, v in flushed.items() if not k.startswith(below)}
                    flushed |= {k: v for k, v in names.items() if k.startswith(below)}
                case "rename":
                    to = inner(rest[1])
                    moved = [k for k in names if k == name or k.startswith(f"{name}/")]
                    for each in moved:
                        names[to + each[len(name) :]] = names.pop(each)
                case "unlink":
                    names.pop(name, None)
        if loss == "unflushed names":
            return {k: bytes(data[v]) for k, v in flushed.items()}
        if loss == "unflushed data":
            return {k: kept[v] for k, v in names.items()}
        return {k: bytes(data[v]) for k, v in names.items()}


def bare(root: Path) -> dict[str, bytes]:
    """All files."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def trials(name: str, folder: Path, every: int, hows: tuple[str, ...]) -> dict[str, Any]:
    """All that can go wrong with one command."""
    scenario = SCENARIOS[name]
    before, root = folder / name / "before", folder / name / "root"
    prepare(before)
    root.parent.mkdir(exist_ok=True)
    for command in scenario.before:
        # At the place where all happens, for paths are written into files.
        place(before, root)
        done = child(root, command)
        assert done["code"] == 0, done
        shutil.rmtree(before)
        root.rename(before)
    if scenario.damage:
        (before / scenario.damage).write_bytes(b"")
    place(before, root)
    first = state(root)
    whole = bare(root)
    trace = folder / name / "trace"
    clean = child(root, scenario.command, trace=str(trace))
    assert clean["code"] == 0, clean
    wanted, operations = state(root), clean["operations"]
    recorded = Trace(trace, root)
    assert recorded.after(len(recorded.lines), whole, "") == bare(root), (
        "the layer misses operations"
    )
    versions = {
        k: v | {wanted[k]} if k in wanted else v for k, v in recorded.versions(first).items()
    }
    versions = {k: v for k, v in versions.items() if k in first}
    again = scenario.again or scenario.command
    counts: Counter[str] = Counter()
    findings = []

    def note(how: str, at: int, fault: str) -> None:
        counts[how] += 1
        if fault:
            findings.append(f"{name}, {how} at {at} ({_said(recorded, at)}): {fault}")
            print(findings[-1], file=sys.stderr, flush=True)

    rng = random.Random(name)
    for how in hows:
        for at in range(1 + rng.randrange(every), operations + 1, every):
            place(before, root)
            done = child(root, scenario.command, at, how)
            fault = ended(done, how) or faults_of(versions, state(root))
            if not fault:
                done = child(root, again)
                fault = f"given again: {done['err'][-500:]}" if done["code"] else ""
                fault = fault or differs(state(root), wanted)
            note(how, at, fault)
    for loss in LOSSES:
        points = [n for n, line in enumerate(recorded.lines) if line[0] in ("fsync", "rename")]
        points = [*{*points, *(n + 1 for n in points), len(recorded.lines)}]
        for n in sorted(points)[rng.randrange(every) :: every]:
            shutil.rmtree(root)
            for file, data in recorded.after(n, whole, loss).items():
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_bytes(data)
            fault = faults_of(versions, state(root))
            if not fault:
                done = child(root, again)
                fault = f"given again: {done['err'][-500:]}" if done["code"] else ""
                fault = fault or differs(state(root), wanted)
            note(loss, n, fault)
    shutil.rmtree(folder / name)
    return {"command": name, "operations": operations, "trials": dict(counts), "findings": findings}


def _said(trace: Trace, at: int) -> str:
    line = trace.lines[at - 1] if at <= len(trace.lines) else ["?"]
    return " ".join(part[:60] for part in line[:2]).replace(trace.root, "")


def ended(done: dict[str, Any], how: str) -> str:
    """What is wrong with the way the command ended."""
    if how == "KILL":
        return "" if done["code"] in (-signal.SIGKILL, 0) else f"exit code {done['code']}"
    if done["code"] not in (0, 1, 2):
        return f"exit code {done['code']}: {done['err'][-500:]}"
    if "Traceback" in done["err"] or "should not have happened" in done["err"]:
        return f"no sentence: {done['err'][-800:]}"
    if done["code"] and "infolm: " not in done["err"]:
        return f"nothing is said: {done['err'][-300:]}"
    return ""


def prepare(folder: Path) -> None:
    """Texts and recipes."""
    import yaml
    from encoder_runs import recipe
    from encoder_tiny import sst2_folder
    from training_tiny import tiny_tree

    folder.mkdir(parents=True)
    root = folder.parent / "root"
    text = "".join(
        f"the {w} sees a {v} .\n" for w in "cat dog bird".split() for v in "king fish".split()
    )
    (folder / "text.txt").write_text(text * 40)
    tree = tiny_tree(root / "text.txt", max_steps=2, checkpoint_seconds=0)
    tree["train"]["validate_every"] = 1
    (folder / "tiny.yaml").write_text(yaml.safe_dump(tree))
    encoder = recipe(root / "text.txt", "mlm").as_yaml()
    (folder / "encoder.yaml").write_text(re.sub(r"max_steps: \S+", "max_steps: 2", encoder))
    sst2_folder(folder / "sst2", 48, 16)
    (folder / "cache").mkdir()


def serve(names: list[str], every: int, hows: tuple[str, ...]) -> list[dict[str, Any]]:
    """In the process that has the layer."""
    import torch
    import torch.utils.tensorboard

    import infolm.cli
    import infolm.families.report
    import infolm.families.train  # noqa: F401

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as made:
        results = []
        for name in names:
            os.environ["INFOLM_CACHE"] = f"{made}/{name}/root/cache"
            results.append(trials(name, Path(made), every, hows))
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
        return results


def run(names: list[str], every: int = 1, hows: tuple[str, ...] = HOWS) -> list[dict[str, Any]]:
    """Start the process with the layer, and give what it found."""
    with tempfile.TemporaryDirectory() as made:
        out = Path(made) / "results.json"
        environment = os.environ | {
            "LD_PRELOAD": str(shim(Path(made))),
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]),
            "OMP_NUM_THREADS": "1",
            "INFOLM_NATIVE": os.environ.get("INFOLM_NATIVE", f"{made}/native"),
        }
        command = [sys.executable, "-W", "ignore", __file__, *names, "--every", str(every)]
        command += ["--hows", ",".join(hows), "--here", str(out)]
        subprocess.run(command, env=environment, check=True)
        return json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", default=list(SCENARIOS))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--hows", default=",".join(HOWS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    hows = tuple(asked.hows.split(","))
    if asked.here:
        asked.here.write_text(json.dumps(serve(asked.commands, asked.every, hows)))
        return
    results = run(asked.commands, asked.every, hows)
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=2) + "\n")
    sys.exit(any(each["findings"] for each in results))


if __name__ == "__main__":
    main()
