"""No line of metrics.jsonl is lost: one that cannot be read is put aside, with a sentence."""

import json

import pytest

from infolm.training.run import RunFolder, read_metrics

DAMAGES = {
    "half a line": b'{"kind": "step", "st',
    "no UTF-8": b'{"kind": "\xff\xfe", "step": 3}',
    "a number": b"1",
    "a list": b"[]",
    "no step": b'{"kind": "step"}',
    "a step of a word": b'{"kind": "step", "step": "3"}',
    "a value of a word": b'{"kind": "step", "step": 3, "likelihood/nll": "low"}',
    "an event without a name": b'{"kind": "event", "step": 3}',
    "a number beyond 64 bits": b'{"kind": "step", "step": 3, "x": ' + b"9" * 400 + b"}",
    "a step beyond 64 bits": b'{"kind": "step", "step": 1' + b"0" * 30 + b"}",
    "half a character": b'{"kind": "event", "name": "\\ud800", "step": 3}',
    "too many digits to read": b'{"kind": "step", "step": ' + b"9" * 9000 + b"}",
    "nested": b"[" * 100_000,
    "zeros of a torn block": bytes(512),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_in_the_middle_all_other_lines_stay(infolm, run, damage):
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines()
    whole = read_metrics(path)
    assert len(whole) == len(lines)
    path.write_bytes(b"\n".join([*lines[:3], damage, *lines[4:], b""]))
    left = whole[:3] + whole[4:]

    done = infolm("report", run)
    assert done.code == 0, done.err
    assert "1 line that cannot be read, left out" in done.err
    assert damage in path.read_bytes()  # a report changes nothing

    done = infolm("train", run, "--resume", "train.max_steps=61")
    assert done.code == 0, done.err
    assert "1 line that cannot be read, moved to" in done.err
    assert read_metrics(path)[: len(left)] == left
    assert RunFolder(run).damaged_metrics.read_bytes() == damage + b"\n"

    done = infolm("train", run, "--resume", "train.max_steps=62")
    assert "cannot be read" not in done.err
    assert RunFolder(run).damaged_metrics.read_bytes() == damage + b"\n"


def test_a_line_cut_short_by_a_crash_is_no_news_to_a_reader(run, capsys):
    path = run / "metrics.jsonl"
    whole = read_metrics(path)
    path.write_bytes(path.read_bytes() + b'{"kind": "st')
    assert read_metrics(path) == whole
    assert capsys.readouterr().err == ""


def test_what_is_put_aside_twice_is_kept_once_and_nothing_else_lost(infolm, run):
    path, aside = run / "metrics.jsonl", RunFolder(run).damaged_metrics
    aside.write_bytes(b"of before\n1\n")
    path.write_bytes(b"1\n[]\n" + path.read_bytes())
    assert infolm("train", run, "--resume", "train.max_steps=61").code == 0
    assert aside.read_bytes() == b"of before\n1\n[]\n"
    assert all(json.loads(line) for line in path.read_text().splitlines())
