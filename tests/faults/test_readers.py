"""Whatever a file holds, its reader gives what is in it or one sentence: see `fuzz_readers.py`."""

import json
import random
from pathlib import Path

import fuzz_readers as fuzz
import pytest

from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.studies.reproduction.sweep import Records, SweepFolder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sst2").mkdir()
    return tmp_path / "sst2"


@pytest.mark.parametrize("name", fuzz.READERS)
def test_sound_files_are_read_and_changed_ones_at_most_refused(name, folder, monkeypatch):
    """An error that is no sentence goes through `check`, and fails."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    reader, rng = fuzz.READERS[name], random.Random(0)
    seeds = reader.seeds()
    for seed in seeds:
        assert fuzz.check(reader, seed, folder)
    for _ in range(100):
        seed = rng.choice(seeds)
        data = fuzz.mutated(seed, rng) if rng.random() < 0.7 else None
        if data is None:  # a few bytes changed, or the end cut off
            data = bytearray(seed)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.choice(b'\0\xff"[]{}0,\t\n')
            data = bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
        fuzz.check(reader, data, folder)


def vocabulary(**change):
    tree = json.loads(Tokenizer.from_words(["<eos>", "<unk>", "a", "b"]).to_json())
    tree["model"]["vocab"] = {"<eos>": 0, "<unk>": 1, "a": 2, "b": 3} | change.pop("vocab", {})
    for word in change.pop("without", ()):
        del tree["model"]["vocab"][word]
    for key, value in change.items():
        tree[key] = tree[key] | value if isinstance(value, dict) else value
    return json.dumps(tree).encode()


FOR_EVER = {"pattern": {"Regex": "<eos>(?:x+)+$"}, "type": "Split", "behavior": "Removed"}
PIECES = json.loads(fuzz.READERS["tokenizer"].seeds()[3])
FINDINGS = {
    "numbers that are words": ("tokenizer", vocabulary(vocab={"a": "2"})),
    "a gap in the numbers": ("tokenizer", vocabulary(vocab={"a": 7})),
    "one number for two": ("tokenizer", vocabulary(vocab={"a": 3})),
    "a number beyond 64 bits": ("tokenizer", vocabulary(vocab={"a": 10**30})),
    "no end of a line": ("tokenizer", vocabulary(without=["b", "<eos>"], vocab={"a": 0})),
    "no unknown word": ("tokenizer", vocabulary(without=["<unk>", "b"], vocab={"a": 1})),
    "half a surrogate": ("tokenizer", vocabulary(vocab={"\ud800": 4})),
    "a pattern that takes for ever": ("tokenizer", vocabulary(pre_tokenizer=FOR_EVER)),
    "no normalizer": ("tokenizer", vocabulary(normalizer=None, pre_tokenizer=None)),
    "an added token of two numbers": (
        "tokenizer",
        vocabulary(added_tokens=[{"content": "a", "id": 3}]),
    ),
    "pieces with another unknown": (
        "tokenizer",
        json.dumps(PIECES | {"model": PIECES["model"] | {"unk_token": "x"}}).encode(),
    ),
    "a header of another dtype": ("tokens", b'\1{"dtype": "<f8", "count": 1}\0' + bytes(8)),
    "a header that is a list": ("tokens", b"\1[]\0"),
    "a header that is no JSON": ("tokens", b"\1{\0"),
    "a dtype that NumPy parses as Python": ("tokens", b'\1{"dtype": "(01)u2"}\0'),
    "an array's header that never ends": (
        "tables",
        b"\1\x93NUMPY\1\0v\0" + b"{'descr': '<f8', 'shape': (6, 2), y".ljust(117) + b"\n",
    ),
    "a BERT's size that is no number": ("bert", b'{"model_type": "bert", "hidden_size": NaN}'),
    "a BERT's sizes nested": ("bert", b"[" * 100_000),
    "results that are a list": ("results", b"[]"),
    "results of no task": ("results", b"{}"),
    "results without scores": (
        "results",
        b'{"task": "sst2", "fresh": 0, "share": 1, "chosen": {"dev": {}}}',
    ),
    "scores that are words": (
        "results",
        b'{"task": "sst2", "fresh": 0, "share": 1, "chosen": {"dev": {"dev": {"accuracy": "x"}}}}',
    ),
    "nested results": ("results", b"[" * 100_000),
    "nested questions": ("squad", b'{"data": ' + b"[" * 100_000),
    "a question's number of too many digits": ("squad", b'{"data": ' + b"9" * 9000 + b"}"),
    "nested pairs": ("pairs", b"{" + b'"a":{' * 100_000),
}


@pytest.mark.parametrize(("name", "data"), FINDINGS.values(), ids=FINDINGS.keys())
def test_what_the_fuzzer_found_is_refused(name, data, folder):
    assert name == "tokens" or not fuzz.check(fuzz.READERS[name], data, folder)
    if name == "tokens":  # refused by an error of its own, after which the text is tokenised again
        fuzz.check(fuzz.READERS[name], data, folder)


@pytest.mark.parametrize("text", [b"", b"1", b"[]", b"\xff", b"[" * 100_000, b'{"points": [1]}'])
def test_damaged_points_of_a_sweep(tmp_path, text):
    class plan:
        source, overrides, reproduction = "x", (), None

    (tmp_path / "points.json").write_bytes(text)
    records = Records.__new__(Records)
    records._folder, records._plan = SweepFolder(tmp_path), plan
    with pytest.raises(InfolmError, match=r"points\.json is damaged"):
        records._read()
