"""Many documents put together: splits, duplicates, shuffling, bounded memory, and going on."""

import gzip
import json
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from infolm.data import gather, ingest, own_text, sources
from infolm.data.corpora import DataConfig, gathering, load
from infolm.data.gather import File, Gathering, gathered, hash_of, normalised, split_of
from infolm.errors import InfolmError


def silent(stage: str, done: int, total: int) -> None:
    pass


def corpus_of(folder: Path, count: int = 400, files: int = 4) -> list[str]:
    """Documents of two lines in gzipped JSON lines; gives them in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    texts = [f"document {i} of many\nwith {rng.random()} in it" for i in range(count)]
    for number in range(files):
        lines = [json.dumps({"text": t}) for t in texts[number::files]]
        with gzip.open(folder / f"part-{number}.jsonl.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")
    return [text for number in range(files) for text in texts[number::files]]


def gather_all(
    files: list[Path], wanted: Gathering, folder: Path
) -> tuple[dict[str, list[str]], gather.Gathered]:
    """The documents of each split, of two lines each, as they were written."""
    made = gathered([File(path) for path in files], wanted, None, folder, silent)
    found = {}
    for split, names in made.texts.items():
        lines = "".join((folder / name).read_text() for name in names).splitlines()
        pairs = zip(lines[::2], lines[1::2], strict=True)
        found[split] = [f"{a}\n{b}" for a, b in pairs]
    return found, made


def test_a_documents_hash_decides_on_its_split(tmp_path: Path) -> None:
    texts = corpus_of(tmp_path / "in")
    files = sorted((tmp_path / "in").iterdir())
    found, made = gather_all(files, Gathering(held_out=0.1), tmp_path / "out")
    for split, documents in found.items():
        assert documents == [t for t in texts if split_of(hash_of(t), 0.1) == split]
        assert made.documents[split] == len(documents)
    # 400 documents: the share of a split is within four standard errors.
    assert all(abs(len(found[s]) - 40) < 4 * np.sqrt(400 * 0.1 * 0.9) for s in ("valid", "test"))
    fewer, _ = gather_all(files[1:], Gathering(held_out=0.1), tmp_path / "fewer")
    assert set(fewer["test"]) < set(found["test"])


@pytest.mark.parametrize("stretch", [3000, 10**9])
def test_shuffling_is_a_permutation_that_the_budget_does_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stretch: int
) -> None:
    texts = corpus_of(tmp_path / "in")
    files = sorted((tmp_path / "in").iterdir())
    whole, _ = gather_all(files, Gathering(shuffle=7, held_out=0.1), tmp_path / "whole")
    monkeypatch.setattr(gather, "STRETCH", stretch)
    found, made = gather_all(files, Gathering(shuffle=7, held_out=0.1), tmp_path / "out")
    assert found == whole
    assert (len(made.texts["train"]) > 9) == (stretch < 10_000)
    plain = [t for t in texts if split_of(hash_of(t), 0.1) == "train"]
    assert sorted(found["train"]) == sorted(plain)
    other, _ = gather_all(files, Gathering(shuffle=8, held_out=0.1), tmp_path / "other")
    assert other["train"] != found["train"]
    # Of a random permutation the rank correlation with the old order has deviation 1 / sqrt(n - 1).
    places = [plain.index(text) for text in found["train"]]
    rank = np.corrcoef(places, np.arange(len(places)))[0, 1]
    assert abs(rank) < 4 / np.sqrt(len(places) - 1)


@pytest.mark.parametrize("sizes", [(10**6, 10**6), (7, 5)])
def test_only_the_first_of_copies_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
) -> None:
    monkeypatch.setattr(gather, "HASHES", sizes[0])
    monkeypatch.setattr(gather, "SORTED", sizes[1])
    rng = random.Random(1)
    texts = [f"Text {rng.randrange(40)}\nend" for _ in range(200)]
    written = [t.upper().replace(" ", " \t") if rng.random() < 0.5 else t for t in texts]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in [*written, "", " "]))
    found, made = gather_all([path], Gathering(deduplicate=True, held_out=0.2), tmp_path / "out")
    firsts = list({normalised(t): t for t in reversed(written)}.values())[::-1]
    kept = sorted(t for documents in found.values() for t in documents)
    assert kept == sorted(firsts)
    assert made.duplicates == 200 - len(firsts)
    assert made.empty == 2


def test_what_is_in_valid_or_test_is_left_out_of_train(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, lines in [
        ("train-0.jsonl", ["a a", "b b", "c c"]),
        ("train-1.jsonl", ["d d", "B b"]),
        ("valid.jsonl", ["b B", "e e"]),
        ("test.jsonl", ["A a", "e e"]),
    ]:
        text = "".join(json.dumps({"body": line}) + "\n" for line in lines)
        (tmp_path / "in" / name).write_text(text)
    config = DataConfig(path=tmp_path / "in", field="body", deduplicate=True)
    corpus = load(config)
    decoded = {s: corpus.tokenizer.decode(v.tokens).split("\n") for s, v in corpus.splits.items()}
    assert {s: [line for line in lines if line] for s, lines in decoded.items()} == {
        "train": ["c c", "d d"],
        "valid": ["<unk> <unk>"],
        "test": ["<unk> <unk>"] * 2,
    }
    said = own_text.described(config, corpus)
    assert "documents of 4 files (2 train, 1 valid, 2 test, 4 duplicates left out)" in said


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "STRETCH", 2**18)
    monkeypatch.setattr(gather, "HASHES", 2**9)
    monkeypatch.setattr(gather, "SORTED", 2**10)

    def peak(size: int) -> int:
        """The least of three: a thread of another test may allocate meanwhile."""
        return min(once(size, turn) for turn in range(3))

    def once(size: int, turn: int) -> int:
        path = tmp_path / f"{size}.txt"
        path.write_text("".join(f"{i} {'word ' * 40}\n" for i in range(size)))
        wanted = Gathering(unit="line", deduplicate=True, shuffle=3, held_out=0.05)
        tracemalloc.start()
        try:
            gathered([File(path)], wanted, None, tmp_path / f"out-{size}-{turn}", silent)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak(2_500), peak(10_000)  # 0.5 and 2 MB of text, in stretches of 256 kB
    assert large < 1.3 * small
    assert large < 2**20 * 1.5


@pytest.mark.parametrize("kind", ["word", "char", "bpe"])
def test_a_corpus_in_shards_has_the_tokens_of_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    corpus_of(tmp_path / "in")
    settings = {"path": tmp_path / "in", "tokens": kind, "held_out": 0.05}
    config = DataConfig(**settings, vocabulary=300 if kind == "bpe" else None)
    whole = load(config)
    monkeypatch.setenv("INFOLM_CACHE", str(tmp_path / "cache-of-shards"))
    monkeypatch.setattr(ingest, "SHARD", 1000)
    monkeypatch.setattr(ingest, "_CHUNK", dict.fromkeys(ingest._CHUNK, 200))
    cut = load(config)
    folder = tmp_path / "cache-of-shards" / cut.fingerprint
    assert len(list(folder.glob("train-*.tokens"))) > 10
    assert not (folder / "train.tokens").exists()
    assert cut.fingerprint == whole.fingerprint
    if kind != "bpe":  # which learns from a sample of pieces
        assert cut.tokenizer.to_json() == whole.tokenizer.to_json()
        for split in cut.splits:
            tokens = np.asarray(cut.splits[split].tokens)
            assert tokens.tolist() == whole.splits[split].tokens.tolist()
            assert cut.splits[split].words == whole.splits[split].words
    text = "".join(p.read_text() for p in sorted((folder.parent / "texts").rglob("train-*.txt")))
    assert np.asarray(cut.splits["train"].tokens).tolist() == cut.tokenizer.encode(text).tolist()


def test_a_damaged_shard_is_made_again(
    tmp_path: Path,
    folders: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ingest, "SHARD", 1000)
    monkeypatch.setattr(ingest, "_CHUNK", dict.fromkeys(ingest._CHUNK, 200))
    corpus_of(tmp_path / "in")
    config = DataConfig(path=tmp_path / "in", held_out=0.05)
    corpus = load(config)
    tokens = np.asarray(corpus.splits["train"].tokens)
    shard = folders / "cache" / corpus.fingerprint / "train-00002.tokens"
    sound = shard.read_bytes()
    shard.write_bytes(sound[:-2] + b"\x07\x07")
    assert np.asarray(load(config).splits["train"].tokens).tolist() == tokens.tolist()
    assert "train-00002.tokens does not match its checksum" in capsys.readouterr().err
    assert shard.read_bytes() == sound


def test_what_is_damaged_of_gathered_documents_is_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus_of(tmp_path / "in")
    files = [File(path) for path in sorted((tmp_path / "in").iterdir())]
    wanted = Gathering(field="text", deduplicate=True, shuffle=7, held_out=0.05)
    folder = tmp_path / "out"
    sound = gathered(files, wanted, None, folder, silent)
    written = {path: path.read_bytes() for path in folder.iterdir()}
    for damage in (b"", b"{}", b'{"texts": 1, "documents": {}, "files": 1}', b"\xff", b"[" * 9999):
        (folder / "gathered.json").write_bytes(damage)
        assert gather.finished(folder) is None
        assert gathered(files, wanted, None, folder, silent) == sound
        assert "gathered.json is damaged: the documents are gathered again" in (
            capsys.readouterr().err
        )
        assert {path: path.read_bytes() for path in folder.iterdir()} == written


@pytest.mark.parametrize("name", ["00000.json", "00000.npy"])
def test_damaged_hashes_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of a reading that was killed when it had looked for duplicates."""
    corpus_of(tmp_path / "in")
    files = [File(path) for path in sorted((tmp_path / "in").iterdir())]
    wanted = Gathering(field="text", deduplicate=True, held_out=0.05)
    sound = gathered(files, wanted, None, tmp_path / "sound", silent)

    class Killed(Exception):
        pass

    def killed(self: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(gather._Plain, "write", killed)
        with pytest.raises(Killed):
            gathered(files, wanted, None, tmp_path / "out", silent)
    (tmp_path / "out" / "hashes" / name).write_bytes(b"damaged")
    assert gathered(files, wanted, None, tmp_path / "out", silent) == sound
    for split in sound.texts.values():
        for each in split:
            made = (tmp_path / "out" / each).read_bytes()
            assert made == (tmp_path / "sound" / each).read_bytes()


PROGRAM = """
import os, signal, sys
from pathlib import Path
from infolm.data import gather, ingest
from infolm.data.corpora import DataConfig, load

gather.STRETCH, gather.HASHES = 40_000, 300
ingest.SHARD = ingest._RANGE = 10_000
ingest._CHUNK = dict.fromkeys(ingest._CHUNK, 2000)
os.fsync = lambda descriptor: None  # a kill is no power cut
config = DataConfig(
    path=Path(sys.argv[1]), tokens=sys.argv[2], deduplicate=True, shuffle=1, held_out=0.05
)


def doomed(function, lives, early):
    def call(*arguments, **options):
        if early and lives[0] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **options)
        lives[0] -= 1
        if not lives[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call


for early in (False, True):
    os.environ["INFOLM_CACHE"] = f"{sys.argv[3]}/{early}"
    status = kills = 1
    while status and kills < 99:
        child = os.fork()
        if not child:
            # It is killed when so many files were given a name or taken away.
            lives = [int(sys.argv[4]) + kills % 5]
            os.replace = doomed(os.replace, lives, early)
            os.unlink = doomed(os.unlink, lives, early)
            load(config, workers=1)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        kills += bool(status)
    print(kills - 1)
os.environ["INFOLM_CACHE"] = f"{sys.argv[3]}/alone"
load(config, workers=1)
"""


def made_by(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "digests" not in path.parts and path.suffix != ".lock"
    }


@pytest.mark.parametrize(("kind", "lives"), [("word", 25), ("char", 9)])
def test_killed_at_any_moment_it_ends_with_the_same_bytes(
    tmp_path: Path, kind: str, lives: int
) -> None:
    """By SIGKILL, just before or after a file gets its name or is taken away, again and again."""
    corpus_of(tmp_path / "in", 1000)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "in"), kind, str(tmp_path), str(lives)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert all(5 <= int(kills) < 98 for kills in told.split())
    alone = made_by(tmp_path / "alone")
    assert sum(name.endswith(".tokens") for name in alone) > 5
    assert made_by(tmp_path / "False") == alone
    assert made_by(tmp_path / "True") == alone


def named(folder: Path, names: list[str]) -> dict[str, str | None]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text\n")
    return {f.path.relative_to(folder).as_posix(): f.split for f in sources._documents_of(folder)}


def test_names_tell_the_splits(tmp_path: Path) -> None:
    assert named(tmp_path / "a", ["train-0.txt", "train_1.txt", "dev/x.txt", "test.jsonl.gz"]) == {
        "train-0.txt": "train",
        "train_1.txt": "train",
        "dev/x.txt": "valid",
        "test.jsonl.gz": "test",
    }
    books = {"a-test-of-time.txt": None, "emma.txt": None, "x/validation.txt": None}
    assert named(tmp_path / "b", list(books)) == books
    with pytest.raises(InfolmError, match="named train and none named valid"):
        named(tmp_path / "c", ["train.txt", "test.txt"])
    with pytest.raises(InfolmError, match=r"notes\.txt is named neither train, valid nor test"):
        named(tmp_path / "d", ["train-0.txt", "valid.txt", "test.txt", "notes.txt"])
    with pytest.raises(InfolmError, match=r"has no file to read"):
        named(tmp_path / "e", ["a.pdf"])


def test_what_is_plain_is_read_as_before(tmp_path: Path) -> None:
    for name in ("train.txt", "valid.txt", "test.txt", "README.pdf"):
        (tmp_path / name).write_text("a\n" * 100)
    assert gathering(DataConfig(path=tmp_path)) is None
    assert gathering(DataConfig(path=tmp_path / "train.txt")) is None
    assert gathering(DataConfig(path=tmp_path / "none.jsonl")) is None
    (tmp_path / "a.jsonl").write_text("a\n" * 100)
    assert gathering(DataConfig(path=tmp_path / "a.jsonl", field=None)) is None  # an older run's
    assert DataConfig(path=tmp_path / "a.txt", field=None).field == "text"  # where it says nothing
    assert gathering(DataConfig(path=tmp_path / "a.jsonl")) == Gathering(unit="line")
    assert gathering(DataConfig(path=tmp_path / "train.txt", shuffle=0)) == Gathering(
        unit="line", shuffle=0
    )


def test_a_compressed_text_is_split_as_a_plain_one(tmp_path: Path) -> None:
    text = "".join(f"line {i} of the text\n" for i in range(300))
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    plain, packed = (load(DataConfig(path=tmp_path / name)) for name in ("a.txt", "b.txt.gz"))
    assert packed.source == plain.source
    assert packed.splits["test"].tokens.tolist() == plain.splits["test"].tokens.tolist()


def test_documents_are_cut_into_sentences(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(30):
        (tmp_path / "in" / f"{i}.txt").write_text(f"One {i}. Two\n{i}. Three.\n\nFour {i}.\n")
    corpus = load(DataConfig(path=tmp_path / "in", lines="wrapped", held_out=0.1))
    assert {split.lines % 4 for split in corpus.splits.values()} == {0}
    assert sum(split.lines for split in corpus.splits.values()) == 30 * 4


def refused(match: str, **settings: object) -> None:
    with pytest.raises((InfolmError, ValueError), match=match):
        load(DataConfig(**settings))  # type: ignore[arg-type]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    refused("deduplicate: is for your own documents", corpus="ptb", deduplicate=True)
    refused("shuffle: is for your own documents", corpus="ptb", shuffle=0)
    jsonl = tmp_path / "a.jsonl"
    refused("documents: needs data.field", path=jsonl, documents="line", field=None)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    refused("split has no document: raise data.held_out", path=tmp_path / "a.jsonl")
    refused("no-such does not exist", path=tmp_path / "no-such", shuffle=1)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"a": 1}\n')
    refused(r"a\.jsonl, line 2, has no field 'text'", path=tmp_path / "a.jsonl")
    assert not list((tmp_path / "cache" / "texts" / "gathered").iterdir())  # nothing half made


def test_the_first_lines_may_reach_over_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "STRETCH", 1000)
    corpus_of(tmp_path / "in")
    corpus = load(DataConfig(path=tmp_path / "in", train_lines=33, held_out=0.05))
    assert corpus.splits["train"].lines == 33
    with pytest.raises(InfolmError, match=r"train_lines is 9,999, .* has \d\d\d lines"):
        load(DataConfig(path=tmp_path / "in", train_lines=9_999, held_out=0.05))
