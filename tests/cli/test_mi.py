"""`infolm mi`: of samples in files, and of text."""

import json
import math

import numpy as np
import pytest
from one_sentence import one_sentence

from infolm.data import synthetic
from infolm.information.registry import ESTIMATORS

KEYS = {
    *("estimator", "value", "stderr", "interval", "permuted", "unit", "warning"),
    *("samples", "bound", "folds"),
}
QUICK = ("--folds", 2, "--steps", 2)


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    """x.npy (300, 2) and y.npy (300,), correlated; people.csv with them, ages and towns."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    x = rng.standard_normal((300, 2))
    y = x[:, 0] + rng.standard_normal(300)
    town = rng.integers(0, 3, 300)
    np.save("x.npy", x)
    np.save("y.npy", y)
    rows = [
        f"{a},{b},{20 * t + 10 * rng.random()},{('Bonn', 'Köln', 'Ulm')[t]}"
        for a, b, t in zip(x[:, 0], y, town, strict=True)
    ]
    (tmp_path / "people.csv").write_text("height,weight,age,town\n" + "\n".join(rows))


def test_several_estimators_at_once_as_json(infolm):
    done = infolm("mi", "x.npy", "y.npy", "-e", "ksg,gaussian", "-e", "mine", *QUICK, "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert set(result) == {"estimates"}
    names = [estimate["estimator"] for estimate in result["estimates"]]
    assert names == ["ksg", "gaussian", "mine"]
    for estimate in result["estimates"]:
        assert set(estimate) == KEYS
        assert estimate["unit"] == "nats"
        assert estimate["samples"] == 300
        low, high = estimate["interval"]
        assert low <= math.log(2) / 2 <= high
    assert len(result["estimates"][2]["folds"]) == 2


def test_without_an_estimator_a_panel_gives_one_answer(infolm):
    done = infolm("mi", "x.npy", "y.npy", *QUICK, "--json")
    result = json.loads(done.out)
    names = [each["estimator"] for each in result["estimates"]]
    assert names == ["ksg-scores", "copula", "mine"]
    answer = result["answer"]
    assert {"value", "interval", "p_value", "verdict", "warning"} <= set(answer)
    low, high = answer["interval"]
    assert 0 < low <= math.log(2) / 2 <= high
    assert answer["p_value"] <= 0.01
    assert answer["warning"] is None


def test_fast_is_the_panel_without_its_critic(infolm):
    done = infolm("mi", "people.csv:height", "people.csv:age", "--fast")
    assert done.code == 0, done.err
    assert "Not distinguishable from 0 (p = " in done.out
    assert "mine" not in done.out
    one_sentence(infolm("mi", "x.npy", "y.npy", "--neighbours", 3), "--neighbours", "the panel")
    for names in ([], ["-e", "ksg"]):
        one_sentence(infolm("mi", "x.npy", "y.npy", "--plot", "xy.png", *names), "--matrix")


def test_the_answer_in_bits(infolm):
    nats, bits = (
        json.loads(infolm("mi", "x.npy", "y.npy", "--fast", *unit, "--json").out)["answer"]
        for unit in ([], ["--bits"])
    )
    assert bits["value"] == pytest.approx(nats["value"] / math.log(2))
    assert "bits" in bits["verdict"]


def test_given_and_transfer(infolm):
    rng = np.random.default_rng(21)
    z = rng.standard_normal(300)
    for name in "ab":
        np.save(f"{name}.npy", z + 0.6 * rng.standard_normal(300))
    np.save("z.npy", z)
    plain, given = (
        json.loads(infolm("mi", "a.npy", "b.npy", *more, "--json").out)["answer"]
        for more in (["--fast"], ["--given", "z.npy"])
    )
    assert plain["interval"][0] > 0.2
    assert given["verdict"].startswith("not distinguishable from 0")
    late = np.roll(z, 1) + 0.3 * rng.standard_normal(300)
    np.save("late.npy", late)
    forth, back = (
        infolm("mi", *pair, "--transfer", "--history", 1).out
        for pair in (["z.npy", "late.npy"], ["late.npy", "z.npy"])
    )
    assert "transfer entropy from x to y, history 1 in nats from 300 pairs" in forth
    assert "About" in forth
    assert "Not distinguishable from 0" in back
    one_sentence(infolm("mi", "x.npy", "y.npy", "--history", 2), "--history is for --transfer")
    one_sentence(
        infolm("mi", "x.npy", "y.npy", "--given", "z.npy", "--fast"), "--fast does nothing"
    )


def test_a_matrix_of_all_pairs(infolm):
    done = infolm("mi", "people.csv", "--matrix", "--plot", "people.png", "--json")
    assert done.code == 0, done.err
    pairs = {(each["x"], each["y"]): each for each in json.loads(done.out)["pairs"]}
    assert len(pairs) == 6
    assert pairs["height", "weight"]["corrected_p"] <= 0.05
    assert pairs["age", "town"]["value"] == pytest.approx(math.log(3), abs=0.15)
    assert pairs["height", "town"]["interval"][0] == 0
    with open("people.png", "rb") as file:
        assert file.read(4) == b"\x89PNG"
    one_sentence(infolm("mi", "people.csv", "x.npy", "--matrix"), "--matrix takes one file")


def test_a_proof_plants_known_amounts(infolm):
    done = infolm("mi", "x.npy", "y.npy", "--prove", "-e", "copula", "--plot", "p.png", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert [each["planted"] for each in result["planted"]] == [0, 0.1, 0.5, 1, 2]
    for each in result["planted"]:
        low, high = each["interval"]
        assert low <= each["planted"] <= high or each["warning"]
    assert "of 0, 0.1, 0.5, 1, 2 nats planted" in result["sentences"][0]


def test_rows_that_miss_a_value(infolm, tmp_path):
    rng = np.random.default_rng(9)
    lines = [f"{a},{a + b},{'u' if a > 0 else 'v'}" for a, b in rng.standard_normal((200, 2))]
    lines[3], lines[7], lines[9] = "NA,1,u", "1,,v", "1,2,"
    (tmp_path / "holes.csv").write_text("a,b,c\n" + "\n".join(lines))
    one_sentence(infolm("mi", "holes.csv:a", "holes.csv:b", "--fast"), "mixes numbers and words")
    done = infolm("mi", "holes.csv:a,c", "holes.csv:b", "--fast", "--missing", "drop")
    assert done.code == 0, done.err
    assert "3 rows with a missing value are left out" in done.out
    assert "197 pairs" in done.out
    one_sentence(infolm("mi", "x.npy", "y.npy", "--missing", "keep"), "refuse or drop")
    (tmp_path / "void.csv").write_text("a,b\n" + "\n".join(f"{a},NA" for a in range(60)))
    done = infolm("mi", "void.csv:a", "void.csv:b", "--missing", "drop")
    one_sentence(done, "'b'", "no value in any row")


def test_the_table_says_what_it_shows(infolm):
    done = infolm("mi", "people.csv:height,age", "people.csv:weight", "-e", "club,ksg", *QUICK)
    assert done.code == 0, done.err
    first, _, header, *rest = done.out.splitlines()
    assert first == "mutual information in nats from 300 pairs (x: height, age; y: weight)"
    for title in ("estimator", "value", "± stderr", "95% interval", "shuffled"):
        assert title in header
    club, ksg = (line for line in rest if " to " in line)
    assert club.split()[0] == "club"
    assert club.rstrip().endswith("upper bound")
    assert ksg.split()[0] == "ksg"
    assert ksg.rstrip().endswith("estimate")


def test_warnings_are_full_lines_under_the_table(infolm):
    np.save("x.npy", np.arange(300) % 7)
    np.save("y.npy", np.arange(300) % 7 // 2)
    done = infolm("mi", "x.npy", "y.npy", "-e", "ksg")
    assert done.out.splitlines()[-1].startswith("ksg: 100% of the pairs are tied")
    assert done.out.rstrip().endswith(".")


def test_many_columns_are_counted_not_named(infolm):
    np.save("x.npy", np.random.default_rng(0).standard_normal((300, 40)))
    done = infolm("mi", "x.npy", "y.npy", "-e", "gaussian")
    assert "300 pairs (x has 40 columns, y 1)" in done.out


def test_bits(infolm):
    nats, bits = (
        json.loads(infolm("mi", "x.npy", "y.npy", "-e", "ksg", *unit, "--json").out)["estimates"][0]
        for unit in ([], ["--bits"])
    )
    assert bits["unit"] == "bits"
    assert bits["value"] == pytest.approx(nats["value"] / math.log(2))
    assert "in bits" in infolm("mi", "x.npy", "y.npy", "-e", "ksg", "--bits").out


def test_options_go_to_the_estimators_that_take_them(infolm):
    def values(*options):
        done = infolm("mi", "x.npy", "y.npy", "-e", "ksg,mine,gaussian", *options, *QUICK, "--json")
        return [each["value"] for each in json.loads(done.out)["estimates"]]

    plain = values()
    ksg, mine, gaussian = values("--neighbours", 8)
    assert ksg != plain[0]
    assert [mine, gaussian] == plain[1:]
    assert values("--sequence")[1] != plain[1]
    assert values("--seed", 1)[1] != plain[1]
    assert values("--seed", 0) == plain


def test_a_column_of_words(infolm):
    done = infolm("mi", "people.csv:town", "people.csv:age", "-e", "mixture", "--json")
    (estimate,) = json.loads(done.out)["estimates"]
    low, high = estimate["interval"]
    assert low <= math.log(3) <= high
    done = infolm("mi", "people.csv:town", "people.csv:age", "-e", "mine")
    one_sentence(done, "'town'", "mine", "mixture")
    one_sentence(infolm("mi", "x.npy", "people.csv:town", "-e", "ksg"), "'town' holds words", "ksg")


def test_the_list_names_every_estimator(infolm):
    done = infolm("mi", "--list")
    assert done.code == 0
    for name in ESTIMATORS:
        assert f" {name} " in done.out


def test_a_text_by_distance(infolm, tmp_path):
    words = np.random.default_rng(3).choice(["a", "b", "c"], 3_000)
    (tmp_path / "words.txt").write_text(" ".join(words))
    quick = ("--length", 2, "--distances", "0,8", "--plot", "by.png", *QUICK)
    (tmp_path / "repeated.txt").write_text(" ".join(np.repeat(words[:1_500], 2)))
    done = infolm("mi", "words.txt", "--beside", "repeated.txt", *quick, "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    (other,) = result["beside"]
    for each in (result, other):
        assert [gap["gap"] for gap in each["distances"]] == [0, 8]
    assert (result["text"], other["text"]) == ("words.txt", "repeated.txt")
    assert (tmp_path / "by.png").stat().st_size > 1_000
    for text in ("words.txt", "repeated.txt"):  # what takes so long
        for gap in (0, 8):
            assert f"{text}, {gap} tokens between" in done.err
    done = infolm("mi", "words.txt", "--distances", "0,8", "--gap", 1)
    one_sentence(done, "--gap is one distance")
    one_sentence(infolm("mi", "words.txt", "--distances", "0,x"), "whole numbers")
    one_sentence(infolm("mi", "words.txt", "--beside", "words.txt"), "--beside is for --distances")
    one_sentence(infolm("mi", "words.txt", "--plot", "by.png"), "give --distances too")


def test_help_shows_both_forms(infolm):
    done = infolm("mi", "--help")
    assert "infolm mi x.npy y.npy" in done.out
    assert "infolm mi ptb --length 40 --gap 10" in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x.npy", "z.npy"], ["no file z.npy"]),
        (["x.npy"], ["x.npy holds samples", "infolm mi x.npy y.npy"]),
        (["people.csv:height"], ["holds samples"]),
        (["nowhere.csv:height"], ["holds samples"]),
        (["x.npy", "people.csv:wieght"], ["'wieght'", "did you mean 'weight'?"]),
        (["x.npy", "y.npy", "-e", "kgs"], ["no estimator 'kgs'", "did you mean 'ksg'?"]),
        (["x.npy", "y.npy", "-e", "ksg", "--folds", "3"], ["--folds does nothing for ksg"]),
        (["x.npy", "y.npy", "-e", "gaussian", "--sequence"], ["--sequence does nothing"]),
        (["x.npy", "y.npy", "--length", "3"], ["--length is for a text"]),
        (["x.npy", "y.npy", "--gap", "0"], ["--gap is for a text"]),
        (["x.npy", "y.npy", "--tokens", "char"], ["--tokens is for a text"]),
        (["x.npy", "y.npy", "-e", "ksg", "--neighbours", "0"], ["at least 1, not 0"]),
        (["x.npy", "y.npy", "--folds", "1"], ["1 folds are too few"]),
        (["x.npy", "y.npy", "-e", "ksg", "--neighbours", "299"], ["too few"]),
        (["x.npy", "y.npy", "-e", "ksg,plug-in"], ["plug-in: 300", "looks continuous"]),
        (["x.npy", "short.npy", "-e", "ksg"], ["x has 300 rows and y has 3"]),
    ],
)
def test_bad_input(infolm, arguments, words):
    np.save("short.npy", [1.0, 2.0, 4.0])
    one_sentence(infolm("mi", *arguments), *words)


@pytest.fixture
def drawn(monkeypatch):
    """The corpora drawn from known languages, made short."""
    monkeypatch.setattr(synthetic, "SIZES", {"train": 3000, "valid": 1500, "test": 1500})
    monkeypatch.setattr(synthetic, "VERSION", "short")


TEXT_KEYS = {
    *("text", "split", "kind", "tokens", "types", "length", "gap", "stride"),
    *("pairs", "exact", "unit", "estimates"),
}


def test_a_corpus_whose_information_is_known(infolm, drawn):
    options = ("--length", 3, "--gap", 1, *QUICK)
    result = json.loads(infolm("mi", "markov", *options, "--json").out)
    assert set(result) == TEXT_KEYS
    truth = synthetic.markov().segment_information(3, 1, 3)
    assert result["exact"] == pytest.approx(truth)
    expected = ("markov", "train", "word", 3000, 3, 1, 1, 2994)
    keys = ("text", "split", "kind", "tokens", "length", "gap", "stride", "pairs")
    assert tuple(result[key] for key in keys) == expected
    (estimate,) = result["estimates"]
    assert set(estimate) == KEYS
    assert estimate["estimator"] == "js-dv"
    assert estimate["samples"] == 3000 // 7
    done = infolm("mi", "markov", *options, "--split", "valid", "--bits", "-e", "mine,nwj")
    assert "214 pairs of segments of the valid split of markov (1,500 word tokens" in done.out
    assert "trained on 1,494 pairs, one every 1 tokens" in done.out
    assert done.out.splitlines()[-1] == f"exact: {truth / math.log(2):.4f} bits"
    assert [line.split()[0] for line in done.out.splitlines() if " to " in line] == ["mine", "nwj"]


def test_a_file_is_measured_as_a_whole(infolm, small_text):
    options = ("--length", 4, "--gap", 0, *QUICK, "--json")
    result = json.loads(infolm("mi", small_text, *options).out)
    assert result["split"] is None
    assert result["exact"] is None
    assert result["tokens"] == len(small_text.read_text().replace("\n", " <eos> ").split())
    result = json.loads(infolm("mi", small_text, *options, "--tokens", "char").out)
    assert result["tokens"] == len(small_text.read_text())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--length", 0], ["at least one token, not 0"]),
        (["--gap", -1], ["0 tokens or more, not -1"]),
        (["--stride", 0], ["1 token or more, not 0"]),
        (["--length", 4000], ["too few for two segments of 4000"]),
        (["--length", 200], ["at least 400"]),
        (["--folds", 1], ["1 folds"]),
        (["-e", "ksg"], ["ksg needs rows of numbers", "js-dv"]),
        (["-e", "club"], ["club needs rows of numbers"]),
        (["-e", "jsdv"], ["did you mean 'js-dv'?"]),
        (["--neighbours", 3], ["--neighbours is for samples"]),
        (["--sequence"], ["--sequence is for samples"]),
        (["--split", "train"], ["is a file and read whole"]),
        (["--vocabulary", 1], ["vocabulary", "3"]),
        (["--tokens", "byte", "--vocabulary", 100], ["byte always has 256 types"]),
        (["--tokens", "syllable"], ["tokens", "'word'"]),
    ],
)
def test_bad_input_of_text(infolm, small_text, options, words):
    one_sentence(infolm("mi", small_text, *options), *words)


def test_texts_that_are_not_there(infolm, tmp_path, drawn):
    one_sentence(infolm("mi", "ptbb"), "no file or corpus 'ptbb'", "did you mean 'ptb'?")
    one_sentence(infolm("mi", tmp_path), "is a folder")
    one_sentence(infolm("mi", "markov", "--split", "dev"), "train, valid, test", "'dev'")
    (tmp_path / "empty.txt").touch()
    one_sentence(infolm("mi", "empty.txt"), "0 tokens, too few")
    (tmp_path / "latin.txt").write_bytes("schön\n".encode("latin-1") * 50)
    one_sentence(infolm("mi", "latin.txt"), "UTF-8")
