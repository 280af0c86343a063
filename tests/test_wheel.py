"""A wheel carries everything that infolm reads, and the native recurrence for several instruction
sets, so that its user needs no compiler."""

import ctypes
import email
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch
import trove_classifiers
import yaml
from shared import once

from infolm.models.recurrent import MogrifierConfig, RecurrentConfig, build_cell, rates
from infolm.nn.recurrence import compiling, native
from infolm.nn.recurrence.driver import use

pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    environ = os.environ | environment
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    if not compiling.compiler():
        pytest.skip("there is no C++ compiler")
    (found,) = once(tmp_path_factory, "wheel", build_native).glob("*.whl")
    return found


def build_native(folder: Path) -> None:
    done = build(folder, INFOLM_REQUIRE_NATIVE="1")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def carried(installed, monkeypatch) -> Path:
    """The folder of the wheel's libraries, from which the machine is taken."""
    folder = installed / "infolm" / "nn" / "recurrence" / "carried"
    monkeypatch.setattr(native, "_CARRIED", folder)
    monkeypatch.setattr(native, "_library", native._library.__wrapped__)
    return folder


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    wanted = {
        str(path.relative_to(SOURCES))
        for path in (SOURCES / "infolm").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"infolm/py.typed", "infolm/recipes/awd-lstm/demo.yaml"} <= wanted
    with zipfile.ZipFile(wheel) as archive:
        assert wanted <= set(archive.namelist())


def test_the_wheel_has_the_licence_and_what_an_index_shows(wheel):
    (about,) = (path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info"))
    licence = (ROOT / "LICENSE").read_text()
    assert (about / "licenses" / "LICENSE").read_text() == licence
    metadata = email.message_from_string((about / "METADATA").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == project["license-files"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text().strip()
    assert set(metadata.get_all("Classifier")) <= trove_classifiers.classifiers


def test_nothing_of_others_is_in_the_package_without_its_licence():
    """Nothing is vendored. What ever is, says whose it is: its licence then joins
    `license-files`, and its name this list."""
    theirs: set[str] = set()
    assert theirs == {
        str(path.relative_to(SOURCES))
        for path in (SOURCES / "infolm").rglob("*")
        if path.suffix in {".js", ".css", ".html", ".svg", ".cpp", ".py"}
        and re.search(rb"(?i)copyright|\(c\) (19|20)\d\d|@license|spdx", path.read_bytes())
    }


def test_the_citation_has_what_its_format_requires():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert cited["version"] == project["version"]
    assert cited["license"] == project["license"]
    assert len(cited["references"]) == 5  # the papers
    for paper in cited["references"]:
        assert {"type", "title", "authors"} <= paper.keys()
        assert all({"family-names", "given-names"} <= person.keys() for person in paper["authors"])


def test_one_wheel_serves_every_python_of_a_platform(wheel):
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")


def test_each_library_is_recorded_with_its_digest_and_flags(carried):
    record = json.loads((carried / compiling.RECORD).read_text())
    libraries = {path.name for path in carried.glob(f"*{compiling.SUFFIX}")}
    assert libraries == record.keys()
    for name, about in record.items():
        assert about["library"] == compiling.sha256(carried / name)
        assert set(compiling.SETS[Path(name).stem]) <= set(about["flags"].split())


CAPABILITIES = {"baseline": "default", "avx2": "avx2", "avx512": "avx512", "avx512_bf16": "avx512"}
"""What PyTorch calls the sets, the smallest first."""


def usable() -> list[str]:
    """The sets that are taken on this processor, by what PyTorch is told of it."""
    own = torch.backends.cpu.get_cpu_capability().lower()
    sets = ["baseline", "avx2", "avx512"]
    found = sets[: 1 + sets.index(own)] if own in sets else sets[:1]
    pairs = found[-1] == "avx512" and torch.cpu._is_avx512_bf16_supported()
    return [*found[:-1], "avx512_bf16"] if pairs else found


@pytest.mark.parametrize("name", compiling.SETS)
def test_without_a_compiler_the_carried_library_for_the_processor_computes(installed, name):
    if name not in usable() or sys.platform != "linux":
        pytest.skip(
            f"{name} is not for this processor, or this is not Linux, which tells what is loaded"
        )
    program = (
        "import torch; from infolm.nn.recurrence import native\n"
        "from infolm.models.recurrent import RecurrentConfig, build_cell, rates\n"
        "layer = build_cell(RecurrentConfig(), 5, 6, rates(RecurrentConfig()))\n"
        "layer(torch.ones(3, 2, 5), layer.initial_state(2))[0].sum().backward()\n"
        "print(native.build()['flags'])\n"
        "print(*[line.split()[-1] for line in open('/proc/self/maps') if '/carried/' in line][:1])"
    )
    environment = os.environ | {
        "PYTHONPATH": str(installed),
        "PATH": "",
        "ATEN_CPU_CAPABILITY": CAPABILITIES[name],
        "INFOLM_CELLS": "native",
    }
    environment.pop("CXX", None)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    flags, loaded = done.stdout.splitlines()
    assert "-march=native" not in flags
    assert Path(loaded) == installed / f"infolm/nn/recurrence/carried/{name}{compiling.SUFFIX}"


def results(library: ctypes.CDLL, dtype: torch.dtype, monkeypatch) -> list[torch.Tensor]:
    """Outputs, last state and gradients of a cell that has every kind of instruction but `min`."""
    monkeypatch.setattr(native, "_library", lambda: library)
    torch.manual_seed(0)
    config = RecurrentConfig(cell="rewired", mogrifier=MogrifierConfig(rounds=3, rank=8))
    layer = build_cell(config, 37, 53, rates(config)).to(dtype)
    x = torch.randn(13, 7, 37, dtype=dtype, requires_grad=True)
    with use("native"):
        outputs, last = layer(x, layer.initial_state(7))
        outputs.sin().sum().backward()
    return [
        outputs.detach(),
        *(t.detach() for t in last),
        x.grad,
        *(p.grad for p in layer.parameters()),
    ]


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_sets_agree_to_rounding_and_those_with_fma_to_the_bit(carried, dtype, monkeypatch):
    """Sums run in the same order whatever the vectors' width; FMA alone rounds otherwise."""
    if "avx2" not in usable():
        pytest.skip("this processor has the baseline alone")
    libraries = {
        name: native._declared(ctypes.CDLL(str(carried / f"{name}{compiling.SUFFIX}")))
        for name in usable()
    }
    found = {name: results(each, dtype, monkeypatch) for name, each in libraries.items()}
    for ours, theirs in zip(found["baseline"], found["avx2"], strict=True):
        torch.testing.assert_close(ours, theirs)
    if "avx512" in found:
        assert all(map(torch.equal, found["avx512"], found["avx2"]))


@pytest.mark.parametrize("damaged", ["baseline", "record"])
def test_a_damaged_library_is_not_loaded_and_one_is_compiled(
    carried, damaged, tmp_path, monkeypatch, capsys
):
    (tmp_path / "tiny.cpp").write_text(
        'extern "C" int execute() { return 0; } extern "C" void exponentiate() {}\n'
    )
    monkeypatch.setattr(native, "_SOURCE", tmp_path / "tiny.cpp")
    monkeypatch.setenv("INFOLM_NATIVE", str(tmp_path / "cache"))
    copy = tmp_path / "carried"
    copy.mkdir()
    for path in carried.iterdir():
        (copy / path.name).write_bytes(
            path.read_bytes()[: -100 if path.suffix != ".json" else None]
        )
    if damaged == "record":
        (copy / compiling.RECORD).write_text("[]")
    monkeypatch.setattr(native, "_CARRIED", copy)
    assert "-march=native" in native.build()["flags"]
    said = capsys.readouterr().err
    assert "is damaged" in said
    assert "reinstall infolm" in said


def test_without_a_compiler_the_wheel_is_one_for_all_or_refused(tmp_path):
    done = build(tmp_path, CXX="no-such-compiler", INFOLM_REQUIRE_NATIVE="0")
    assert done.returncode == 0, done.stderr
    assert "has no native recurrence: there is no C++ compiler" in done.stderr + done.stdout
    (found,) = tmp_path.glob("*.whl")
    assert found.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(found) as archive:
        assert not [name for name in archive.namelist() if "/carried/" in name]
    done = build(tmp_path, CXX="no-such-compiler", INFOLM_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert "cannot be compiled: there is no C++ compiler" in done.stderr
