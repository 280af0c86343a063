"""`infolm score`: sentences in, surprisals out, in every form; minimal pairs; what is refused."""

import csv
import gzip
import io
import json
import math
import sys
from types import SimpleNamespace

import pytest
from one_sentence import one_sentence

import infolm as library
from infolm.errors import InfolmError

TEXTS = ["the cat sees a dog", "a Bird hears the bird and then sleeps"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


def test_json_has_the_names_that_programs_read(infolm, trained, file):
    done = infolm("score", trained, file, "--json", "--top", "2")
    assert done.code == 0, done.err
    first, second = json.loads(done.out)
    assert set(first) == {
        "text", "log_prob", "surprisal", "unit", "convention", "tokens", "words",
    }  # fmt: skip
    assert first["text"] == TEXTS[0]
    assert first["unit"] == "bits"
    assert first["surprisal"] == pytest.approx(-first["log_prob"] / math.log(2))
    assert first["surprisal"] == pytest.approx(sum(t["surprisal"] for t in first["tokens"]))
    for token in second["tokens"]:
        assert {"token", "start", "end", "surprisal", "unknown", "rank"} <= set(token)
        assert len(token["top"]) == 2
    unknown = [t for t in second["tokens"] if t["unknown"]]
    assert [(second["text"][t["start"] : t["end"]], t["token"]) for t in unknown] == [
        ("Bird", "<unk>")
    ]
    assert "each sentence by itself" in first["convention"]


def test_all_forms_tell_the_same(infolm, trained, file, tmp_path, monkeypatch):
    from pyarrow import parquet

    done = infolm("score", trained, file, "--csv", "--parquet", tmp_path / "rows.parquet")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    tabs = infolm("score", trained, file, "--tsv").out
    assert list(csv.DictReader(io.StringIO(tabs), delimiter="\t")) == rows
    table = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [row["surprisal"] for row in table] == [float(row["surprisal"]) for row in rows]
    assert [row["token"] for row in rows][:6] == ["the", "cat", "sees", "a", "dog", "<eos>"]
    assert [int(row["sentence"]) for row in rows] == [1] * 6 + [2] * 9
    words = infolm("score", trained, file, "--csv", "--by", "word").out
    assert len(words.splitlines()) == 16
    (of_first, _) = list(
        csv.DictReader(io.StringIO(infolm("score", trained, file, "--csv", "--by", "sentence").out))
    )
    assert float(of_first["surprisal"]) == pytest.approx(
        sum(float(row["surprisal"]) for row in rows[:6])
    )
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(file.read_bytes())))
    assert infolm("score", trained, "-", "--csv").out == done.out
    given = infolm("score", trained, "--text", TEXTS[0], "--text", TEXTS[1], "--csv")
    assert given.out == done.out


def test_the_terminal_shows_words_or_tokens(infolm, trained, file):
    words = infolm("score", trained, file)
    assert "[Bird]" in words.out
    assert "not in the vocabulary" in words.out
    assert "convention: static; each sentence by itself behind an <eos>" in words.out
    tokens = infolm("score", trained, file, "--tokens", "--unit", "nats", "--no-eos")
    assert "rank" in tokens.out
    assert "nats" in tokens.out
    assert "the <eos> at the end does not count" in tokens.out


@pytest.mark.parametrize("suffix", ["png", "svg", "html"])
def test_pictures(infolm, trained, file, tmp_path, suffix):
    path = tmp_path / f"words.{suffix}"
    done = infolm("score", trained, file, "--plot", path)
    assert done.code == 0, done.err
    data = path.read_bytes()
    assert data.startswith({"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!DOCTYPE"}[suffix])
    if suffix != "png":
        assert b"sleeps" in data


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cache", "20,0.1,1"], "neural cache (window 20, lambda 0.1, theta 1); one text"),
        (["--dynamic", "0.001,0.01"], "dynamic evaluation (rms, rate 0.001, decay 0.01"),
        (["--temperature", "1.5"], "temperature 1.5; each sentence by itself"),
        (["--mc", "2"], "Monte Carlo dropout (2 masks"),
        (["--context", "carried"], "static; one text behind an <eos>"),
        (["--cache", "20,0.1,1", "--context", "fresh"], "theta 1); each sentence by itself"),
    ],
)
def test_methods_of_evaluate(infolm, trained, file, options, words):
    done = infolm("score", trained, file, "--json", *options)
    assert done.code == 0, done.err
    sentences = json.loads(done.out)
    assert words in sentences[0]["convention"]
    assert (sentences[0]["tokens"][0]["rank"] is None) == ("--mc" in options)


def test_an_option_that_stands_alone_is_not_given_the_file(infolm, trained, file):
    done = infolm("score", trained, "--temperature", file, "--json")
    assert done.code == 0, done.err
    assert "temperature" in json.loads(done.out)[0]["convention"]


def test_ngrams_of_the_runs_text(infolm, trained, file):
    done = infolm("score", f"kneser-ney:{trained}", file, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)[0]["convention"].startswith("Kneser-Ney 5-gram; each sentence")
    refused = infolm("score", f"kneser-ney:{trained}", file, "--cache", "20,0.1,1")
    one_sentence(refused, "--cache", "n-gram")


def test_the_library_scores_the_same(infolm, trained, file):
    done = json.loads(infolm("score", trained, file, "--json", "--unit", "nats").out)
    run = library.load(trained)
    for found in (library.score(str(trained), TEXTS, unit="nats"), run.score(TEXTS, unit="nats")):
        assert [json.loads(json.dumps(sentence.to_dict())) for sentence in found] == done
    (one,) = library.score(run, "the cat", top=1)
    assert one.words[0].surprisal == one.tokens[0].surprisal
    assert library.score(f"kneser-ney:{trained}", "the cat")[0].log_prob < 0
    with pytest.raises(InfolmError, match="did you mean 'context'"):
        run.score("the cat", contxt="fresh")
    with pytest.raises(InfolmError, match="sentence 2 is empty"):
        run.score(["the cat", " "])


# -- another text ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [[], ["--cache", "20,0.1,1"], ["--dynamic", "0.001,0.01"], ["--temperature", "1.5"]],
    ids=str,
)
def test_evaluate_gives_the_likelihood_that_score_gives(infolm, trained, file, options):
    done = infolm("evaluate", trained, "--text", file, "--json", *options)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    scored = infolm("score", trained, file, "--context", "carried", "--json", *options).out
    log_prob = sum(sentence["log_prob"] for sentence in json.loads(scored))
    nll = [m for m in found if m["metric"] == "nll"][-1]
    assert nll["split"] == "sentences.txt"
    assert nll["tokens"] == 15
    assert nll["value"] * 15 == pytest.approx(-log_prob, rel=1e-5)
    bits = [m for m in found if m["metric"] == "bits_per_byte"][-1]
    size = len(file.read_bytes())
    assert bits["value"] == pytest.approx(-log_prob / math.log(2) / size, rel=1e-5)
    (unknown,) = [m for m in found if m["metric"] == "unknown_share"]
    assert unknown["value"] == pytest.approx(1 / 15)
    assert "6.7% of the tokens of sentences.txt are not in the vocabulary" in done.err


def test_another_text_may_be_compressed_json_lines(infolm, trained, file, tmp_path):
    lines = [json.dumps({"body": line}) for line in file.read_text().splitlines()]
    packed = tmp_path / "sentences.jsonl.gz"
    packed.write_bytes(gzip.compress("\n".join(lines).encode()))
    plain = json.loads(infolm("evaluate", trained, "--text", file, "--json").out)
    done = infolm("evaluate", trained, "--text", packed, "--field", "body", "--json")
    assert [m["value"] for m in json.loads(done.out)] == [m["value"] for m in plain]
    one_sentence(infolm("evaluate", trained, "--text", packed), "line 1, has no field 'text'")


def test_another_text_is_not_kept_with_the_run(infolm, trained, file):
    kept = trained / "measurements.json"
    before = kept.read_bytes() if kept.exists() else None
    done = infolm("evaluate", trained, "--text", file, "--baseline", "--streams", 2)
    assert done.code == 0, done.err
    assert "Kneser-Ney 5-gram" in done.out
    assert "2 parallel streams" in done.out
    assert (kept.read_bytes() if kept.exists() else None) == before


def test_another_corpus_by_its_name(infolm, trained):
    done = infolm("evaluate", trained, "--text", "grammar", "--split", "test", "--streams", 20)
    assert done.code == 0, done.err
    assert "grammar test" in done.out
    assert "of the tokens of grammar test are not in the vocabulary" in done.err


def test_texts_that_cannot_be_measured(infolm, trained, file, tmp_path):
    one_sentence(infolm("evaluate", trained, "--text", "ptbb"), "did you mean 'ptb'?")
    one_sentence(infolm("evaluate", trained, "--field", "body"), "--field is for --text")
    one_sentence(infolm("evaluate", trained, "--text", file, "--split", "test"), "--split")
    one_sentence(infolm("evaluate", trained, "--text", file, "--episodic"), "--episodic")
    (tmp_path / "empty.txt").touch()
    one_sentence(infolm("evaluate", trained, "--text", tmp_path / "empty.txt"), "is empty")


# -- minimal pairs ---------------------------------------------------------------------------


@pytest.fixture
def pairs(tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    blimp = [
        ("the cat sees a dog", "the cat the sees dog", "order"),
        ("the bird sleeps", "the zebra sleeps", "lexicon"),
        ("a quagga hears", "a zebra hears", "lexicon"),
    ]
    (folder / "blimp.jsonl").write_text(
        "".join(
            json.dumps({"sentence_good": g, "sentence_bad": b, "linguistics_term": t}) + "\n"
            for g, b, t in blimp
        )
    )
    (folder / "own.tsv").write_text("the cat sees a bird\tsees the cat bird a\n")
    return folder


def test_minimal_pairs(infolm, trained, pairs):
    done = infolm("score", trained, "--pairs", pairs, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    names = {"accuracy", "stderr", "pairs", "ties", "unknown"}
    assert names <= set(found)
    assert set(found["files"]) == {"blimp", "own"}
    assert set(found["files"]["blimp"]) == names
    assert (found["pairs"], found["ties"], found["unknown"]) == (4, 1, 0.5)
    assert set(found["phenomena"]) == {"order", "lexicon", "own"}
    for name in ("blimp", "own"):
        assert found["results"][name]["acc,none"] == found["files"][name]["accuracy"]
    scores = {
        text: library.score(trained, text)[0].log_prob
        for text in ("the cat sees a bird", "sees the cat bird a")
    }
    good, bad = scores.values()
    assert found["files"]["own"] == {
        "accuracy": float(good > bad), "stderr": None, "pairs": 1, "ties": 0, "unknown": 0.0,
    }  # fmt: skip
    table = infolm("score", trained, "--pairs", pairs).out
    assert "all pairs" in table
    assert "lexicon" in table
    assert "counts as half" in table


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"sentence_good": "the cat"}\n', ["a.jsonl, line 1", "sentence_bad"]),
        ("a.jsonl", '\n{"sentence_good"\n', ["a.jsonl, line 2", "JSON"]),
        ("a.jsonl", "[1]\n", ["a.jsonl, line 1"]),
        ("a.tsv", "the cat\tthe\tcat\n", ["a.tsv, line 1", "3 columns"]),
        ("a.tsv", "good\tbad\nthe cat\t \n", ["a.tsv, line 2", "the bad sentence is empty"]),
        ("a.tsv", "", ["a.tsv", "no pair"]),
        ("a.txt", "", ["no .jsonl or .tsv"]),
    ],
)
def test_pairs_that_are_none(infolm, trained, tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    path = tmp_path if name == "a.txt" else tmp_path / name
    one_sentence(infolm("score", trained, "--pairs", path), *words)


# -- bad input -------------------------------------------------------------------------------


def test_sentences_that_cannot_be_scored(infolm, trained, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the cat\n\nthe dog\n")
    one_sentence(infolm("score", trained, path), f"{path}, line 2 is empty")
    path.write_text("the cat\nthe cat sees the dog\n")
    done = infolm("score", trained, path, "--longest", "4")
    one_sentence(done, f"{path}, line 2 has 5 tokens, more than 4")
    path.write_bytes("schön\n".encode("latin-1"))
    one_sentence(infolm("score", trained, path), "not UTF-8")
    path.write_text("")
    one_sentence(infolm("score", trained, path), "is empty")


def test_what_contradicts_itself(infolm, trained, file, tmp_path):
    one_sentence(infolm("score", trained), "--text")
    one_sentence(infolm("score", trained, file, "--text", "a"), "one of them")
    one_sentence(infolm("score", trained, file, "--csv", "--json"), "--json")
    one_sentence(infolm("score", trained, file, "--plot", tmp_path / "a.gif"), ".png")
    one_sentence(infolm("score", trained, file, "--plot", tmp_path / "no" / "a.png"), "folder")
    one_sentence(infolm("score", trained, file, "--pairs", file), "FILE", "--pairs")
    one_sentence(infolm("score", trained, tmp_path / "nowhere.txt"), "nowhere.txt")
    one_sentence(infolm("score", tmp_path / "nowhere", file), "nowhere")
