"""Talking to a model: the prompt is echoed, unknown words are read, text comes as it is written."""

import io
import json

import pytest

import infolm as library
from infolm.families.running.run import LanguageRun


def test_the_prompt_is_echoed_unless_it_is_not_wanted(infolm, trained):
    options = ["generate", trained, "--prompt", "the cat", "--tokens", 6, "--seed", 3]
    echoed, alone = infolm(*options).out, infolm(*options, "--no-echo").out
    assert echoed == f"the cat {alone}"
    (record,) = json.loads(infolm(*options, "--json").out)
    assert (record["prompt"], record["prompt"] + record["text"]) == ("the cat", echoed.strip("\n"))


def test_unknown_words_are_read_as_unk_with_a_warning(infolm, trained):
    done = infolm("generate", trained, "--prompt", "the xylophone", "--tokens", 4)
    assert done.code == 0
    assert done.err.strip() == "the model's vocabulary lacks 'xylophone', read as <unk>."
    assert done.out.startswith("the xylophone ")
    read = library.generate(trained, prompt="the <unk>", tokens=4)
    assert done.out == f"the xylophone{read[0]}\n"


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_is_the_same_text_in_pieces(infolm, trained, seed):
    options = ["generate", trained, "--prompt", "a dog", "--tokens", 20, "--seed", seed]
    assert infolm(*options, "--stream").out == infolm(*options).out
    pieces = list(LanguageRun.open(trained).stream(prompt="a dog", tokens=20, seed=seed))
    assert len(pieces) > 10
    assert "".join(pieces) == library.generate(trained, prompt="a dog", tokens=20, seed=seed)[0]


def test_prompts_are_read_line_by_line(infolm, trained, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\na dog\n\nnever read\n"))
    done = infolm("generate", trained, "--interactive", "--tokens", 5, "--seed", 7)
    first, second = (
        infolm("generate", trained, "--prompt", prompt, "--tokens", 5, "--seed", seed).out
        for prompt, seed in (("the cat", 7), ("a dog", 8))
    )
    assert done.code == 0
    assert done.out == first + second
    assert "never" not in done.out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--stream", "--num", 2], "write one text: leave out --num"),
        (["--interactive", "--prompt", "the"], "leave out --prompt"),
        (["--stream", "--json"], "leave out --stream"),
    ],
)
def test_what_does_not_go_together_is_refused(infolm, trained, options, sentence):
    done = infolm("generate", trained, *options)
    assert done.code == 2
    assert sentence in done.err
