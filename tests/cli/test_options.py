"""The options of `evaluate` and `generate` are the families' sections, on every way to them."""

import subprocess
import sys
from dataclasses import replace

import pytest

from infolm.cli.options import spelt_out
from infolm.errors import InfolmError
from infolm.families.base import FAMILIES
from infolm.families.options import EVALUATING, GENERATING, chosen, described, union

BOTH = pytest.mark.parametrize("sections", [EVALUATING, GENERATING])


@BOTH
def test_every_family_has_its_section(sections):
    assert set(sections) == set(FAMILIES)


@BOTH
def test_an_option_of_several_families_is_described_alike(sections):
    known = union(sections)
    for section in sections.values():
        for name, ours in described(section).items():
            # What it needs is each family's own affair.
            assert ours.annotation == known[name].annotation
            assert ours.default == known[name].default
            assert replace(ours.option, needs=()) == replace(known[name].option, needs=())


@BOTH
def test_defaults_are_of_their_types_and_refuse_nothing(sections):
    for kind, section in sections.items():
        assert chosen(sections, kind, "RUN", {}) == section()
        # As the command line gives them: a default for every option of every family.
        everything = {name: option.default for name, option in union(sections).items()}
        assert chosen(sections, kind, "RUN", everything) == section()
        for option in described(section).values():
            assert option.default is None or not option.choices or option.default in option.choices


@pytest.mark.parametrize(
    ("sections", "kind", "given", "sentence"),
    [
        (EVALUATING, "latent", {"mc": 3}, "--mc: RUN is a model of single sentences and reads no"),
        (EVALUATING, "language", {"nz": 3, "z": "sampled"}, "--nz, --z: RUN has no latent code"),
        (EVALUATING, "encoder", {"cache": "tune"}, "--cache: RUN is an encoder, which is measured"),
        (GENERATING, "encoder", {"prompt": "a"}, "RUN is an encoder, which generates no text"),
        (GENERATING, "latent", {"prompt": "a"}, "--prompt: RUN is a model of single sentences"),
        (EVALUATING, "language", {"mc_rate": "2"}, "is for Monte Carlo dropout: add --mc 200"),
        (
            EVALUATING,
            "language",
            {"dynamic": "tune", "dynamic_rule": "sgd", "dynamic_mean": "tensor"},
            "are for the rule rms: leave out --dynamic-rule sgd",
        ),
        (EVALUATING, "language", {"split": "train"}, "has no latent code, so train is refused"),
        (EVALUATING, "latent", {"split": "all"}, "--split is valid or test, or train for a model"),
        (EVALUATING, "language", {"mc": -1}, "--mc is 0 or more, not -1"),
        (EVALUATING, "language", {"mc": "many"}, "--mc is of type int, not 'many'"),
        (EVALUATING, "language", {"mc": True}, "--mc is of type int, not True"),
        (EVALUATING, "language", {"tempering": "both"}, "--tempering is mixture or expert, not"),
        (EVALUATING, "latent", {"sentencs": 3}, "no option 'sentencs' here, did you mean 'sent"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(sections, kind, given, sentence):
    with pytest.raises(InfolmError) as refused:
        chosen(sections, kind, "RUN", given)
    assert sentence in str(refused.value)


def test_values_may_be_given_as_python_has_them():
    options = chosen(EVALUATING, "language", "RUN", {"temperature": 1.5, "cache": "tune"})
    assert (options.temperature, options.cache) == ("1.5", "tune")
    latent = chosen(GENERATING, "latent", "RUN", {"interpolate": ["a", "b"], "temperature": 2})
    assert latent.interpolate == ("a", "b")
    assert latent.drawing


def test_options_that_may_stand_alone(tmp_path):
    given = ["evaluate", "--cache", str(tmp_path), "--dynamic", "--mc-rate", "2", "--temperature"]
    assert spelt_out(given) == [
        *("evaluate", "--cache=tuned", str(tmp_path)),
        *("--dynamic=tuned", "--mc-rate", "2", "--temperature=tuned"),
    ]
    # A temperature of sampling is a number, and cannot be tuned.
    assert spelt_out(["generate", "--temperature", "-1", "--cache"])[1:] == [
        *("--temperature", "-1", "--cache=tuned")
    ]


FAMILY = """
from dataclasses import dataclass
from typing import Annotated

from infolm.families.options import EVALUATING, GENERATING, EvaluateOptions, Needs
from infolm.families.options import GenerateOptions, Option

PAIRED = Needs(lambda o: o.pairs, "--beam is of pairs: add --pairs")


@EVALUATING.register
@dataclass(frozen=True, kw_only=True)
class EvaluateTranslations(EvaluateOptions):
    kind = "translating"
    elsewhere = "{} translates nothing: leave this out"
    pairs: Annotated[int, Option("Pairs of sentences.", least=0, panel="Translation")] = 0
    beam: Annotated[int, Option("Kept at each step.", panel="Translation", needs=(PAIRED,))] = 1


@GENERATING.register
@dataclass(frozen=True, kw_only=True)
class Translate(GenerateOptions):
    kind = "translating"
"""
SCRIPT = """
import sys
from pathlib import Path

import infolm.families

infolm.families.__path__.append(sys.argv.pop(1))
from infolm.cli import main

main()
"""


def test_a_family_that_is_a_new_folder_brings_its_options(tmp_path, trained):
    folder = tmp_path / "families" / "translating"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "options.py").write_text(FAMILY)
    (folder / "family.py").touch()

    def infolm(*arguments):
        command = [sys.executable, "-c", SCRIPT, folder.parent, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    shown = infolm("evaluate", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "Translation" in shown.stdout
    assert "--beam" in shown.stdout
    refused = infolm("evaluate", str(trained), "--beam", "3")
    assert refused.returncode == 2
    assert (
        refused.stderr.strip() == f"infolm: --beam: {trained} translates nothing: leave this out."
    )
