"""Bad input: one clear sentence, exit code 2, nothing written."""

import pytest
import torch
from one_sentence import one_sentence
from training_tiny import tiny_file


@pytest.fixture
def refused(infolm, tmp_path, small_text):
    """Train with overrides that must be refused, and see that no run's folder is there."""

    def run(*overrides, recipe=None):
        recipe = recipe or tiny_file(tmp_path, small_text, max_steps=2)
        done = infolm("train", recipe, *overrides, "--out", tmp_path / "run")
        assert not (tmp_path / "run").exists()
        assert not list(tmp_path.glob(".run*"))
        return done

    return run


def test_missing_corpus(refused, tmp_path):
    one_sentence(refused(f"data.path={tmp_path / 'nowhere.txt'}"), "nowhere.txt")


def test_empty_corpus(refused, tmp_path):
    (tmp_path / "empty.txt").touch()
    one_sentence(refused(f"data.path={tmp_path / 'empty.txt'}"), "empty.txt", "empty")


def test_corpus_that_is_not_utf8(refused, tmp_path):
    (tmp_path / "latin.txt").write_bytes("schön\n".encode("latin-1") * 50)
    one_sentence(refused(f"data.path={tmp_path / 'latin.txt'}"), "latin.txt", "UTF-8")


def test_a_split_with_no_token(refused, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train.txt").write_text("a b c\n" * 50)
    (folder / "valid.txt").write_text("a b\n")
    (folder / "test.txt").write_text("")
    one_sentence(refused(f"data.path={folder}"), "test.txt")


def test_a_text_too_short_for_the_columns(refused, tmp_path):
    (tmp_path / "short.txt").write_text("a b\n" * 60)
    one_sentence(refused(f"data.path={tmp_path / 'short.txt'}", "feed.batch=100"), "feed.batch")


def test_vocabulary_of_zero(refused):
    one_sentence(refused("data.vocabulary=0"), "data.vocabulary", "not 0")


def test_unknown_corpus(refused):
    one_sentence(refused("data.path=null", "data.corpus=ptbb"), "ptbb", "did you mean 'ptb'?")


def test_no_corpus_at_all(refused):
    one_sentence(refused("data.path=null"), "corpus")


def test_unknown_recipe(refused):
    one_sentence(refused(recipe="awd-lstm/pbt"), "no recipe 'awd-lstm/pbt'", "awd-lstm/ptb")


@pytest.mark.parametrize(
    "override", ["model.hidden=-1", "feed.batch=0", "train.max_steps=-5", "model.layers=0"]
)
def test_negative_sizes(refused, override):
    one_sentence(refused(override), override.split("=")[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_an_accelerator_that_is_not_there(refused):
    one_sentence(refused("train.accelerator=cuda"), "PyTorch sees none")


def test_a_folder_that_exists(infolm, tmp_path, small_text):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("precious")
    recipe = tiny_file(tmp_path, small_text, max_steps=2)
    done = infolm("train", recipe, "--out", tmp_path / "run")
    one_sentence(done, "exists already")
    assert (tmp_path / "run" / "mine.txt").read_text() == "precious"


def test_something_that_is_no_run(infolm, tmp_path):
    for command in ("evaluate", "generate", "report"):
        one_sentence(infolm(command, tmp_path), "not a run's folder")


def test_a_run_without_a_model(infolm, tmp_path, trained):
    (tmp_path / "recipe.yaml").write_text((trained / "recipe.yaml").read_text())
    one_sentence(infolm("evaluate", tmp_path), "no model yet", "--resume")


def test_a_model_of_another_size(infolm, tmp_path, trained):
    recipe = (trained / "recipe.yaml").read_text().replace("hidden: 12", "hidden: 13")
    (tmp_path / "recipe.yaml").write_text(recipe)
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    one_sentence(infolm("evaluate", tmp_path), "belongs to another model")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["evaluate", "--split", "train"], "valid or test"),
        (["evaluate", "--cache", "1,2,x"], "WINDOW,LAMBDA,THETA"),
        (["evaluate", "--cache", "100,1.5,1"], "lambda"),
        (["evaluate", "--words", "3"], "--cache"),
        (["evaluate", "--cache", "--streams", "4"], "--streams"),
        (["evaluate", "--temperature", "2", "--streams", "4"], "--streams"),
        (["evaluate", "--cache", "lots"], "WINDOW,LAMBDA,THETA"),
        (["evaluate", "--temperature", "0"], "a number above 0, not '0'"),
        (["evaluate", "--temperature", "warm"], "a number above 0, not 'warm'"),
        (["evaluate", "--temperature", "-1"], "a number above 0, not '-1'"),
        (["evaluate", "--dynamic", "fast"], "'fast' is not RATE,DECAY"),
        (["evaluate", "--dynamic", "1e-4"], "'1e-4' is not RATE,DECAY"),
        (["evaluate", "--dynamic", "1,2,3,4"], "'1,2,3,4' is not RATE,DECAY"),
        (["evaluate", "--dynamic", "-1,0"], "a rate and a decay of 0 or more"),
        (["evaluate", "--dynamic", "1,0,0"], "an epsilon above 0"),
        (["evaluate", "--segment", "5"], "add --dynamic"),
        (["evaluate", "--dynamic-rule", "sgd"], "add --dynamic"),
        (["evaluate", "--mc-rate", "0.5"], "add --mc"),
        (["evaluate", "--mc", "3", "--mc-rate", "-1"], "a factor of 0 or more"),
        (["evaluate", "--mc", "3", "--mc-rate", "half"], "a factor of 0 or more, not 'half'"),
        (["evaluate", "--mc", "3", "--mc-adaptation", "shared"], "add --mc 200 --dynamic"),
        (["evaluate", "--tempering", "expert"], "add --temperature"),
        (["evaluate", "--dynamic-mean", "tensor"], "add --dynamic"),
        (["evaluate", "--dynamic", "--dynamic-statistics", "many"], "try all,1024"),
        (["evaluate", "--dynamic", "--dynamic-statistics", "0"], "need 1 batch or more"),
        (
            ["evaluate", "--dynamic", "--dynamic-statistics", "all", "--dynamic-rule", "sgd"],
            "are for the rule rms",
        ),
        (["evaluate", "--mc", "3", "--mc-rate", "9"], "the largest rate is 0.3"),
        (["evaluate", "--episodic", "--mc", "3"], "leave out --dynamic, --mc"),
        (["evaluate", "--episodic", "--streams", "3"], "and --streams"),
        (["evaluate", "--generated", "20000"], "add --reverse"),
        (["evaluate", "--real"], "add --reverse"),
        (["evaluate", "--reverse", "--generated", "50"], "too short a text to measure: use 10000"),
        (["evaluate", "--reverse", "--mi", "--generated", "20000"], "use 36000 at least"),
        (["evaluate", "--mi", "--real"], "of the training text, which has"),
        (["evaluate", "--mi", "--stride", "89", "--generated", "38000"], "use 62400 at least"),
        (["evaluate", "--reverse", "--stride", "5"], "add --mi"),
        (["evaluate", "--mi", "--yardstick", "200"], "add --reverse"),
        (["evaluate", "--reverse", "--yardstick", "2*650"], "'2*650' is not the size of an LSTM"),
        (["generate", "--temperature", "0"], "temperature"),
        (["generate", "--top-k", "0"], "top_k"),
        (["generate", "--top-p", "1.5"], "top_p"),
    ],
)
def test_options_that_make_no_sense(infolm, trained, options, words):
    command, *rest = options
    one_sentence(infolm(command, trained, *rest), words)


def test_what_is_written_in_single_sentences_is_no_running_text(infolm, tmp_path, small_text):
    recipe = tiny_file(tmp_path, small_text, max_steps=2)
    sentences = "feed={kind: episodes, batch: 100}"
    assert infolm("train", recipe, "--out", tmp_path / "run", sentences).code == 0
    for option in ("--reverse", "--mi"):
        one_sentence(infolm("evaluate", tmp_path / "run", option), "trained on single sentences")
