"""Runs of every family, a real server on a free port of this machine, and a browser."""

import pytest
from browsers import browser
from commands import infolm, trained
from encoder_runs import recipe
from serving import MARKUP, served
from training_tiny import Silent, quiet, tiny_sentences, tiny_tree

from infolm.config import Recipe
from infolm.families.train import train

__all__ = ["browser", "infolm", "trained"]


@pytest.fixture(scope="session")
def sentences(tmp_path_factory):
    """A run of a sentence model, one of an encoder, and a language model; of a text with markup."""
    folder = tmp_path_factory.mktemp("sentences")
    text = folder / "text.txt"
    words = ["sun", "moon", MARKUP, MARKUP, "sea", "rain", "wind", MARKUP]
    text.write_text("".join(f"the {words[i % 8]} is {words[i % 3]}\n" for i in range(400)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        trees = {"mim": tiny_sentences(text, max_steps=10), "markup": tiny_tree(text, max_steps=10)}
        for name, tree in trees.items():
            tree["data"]["pretokenised"] = True  # so that the markup is a word
            train(Recipe.model_validate(tree), folder / name, False, Silent(), quiet)
        train(recipe(text, "mlm"), folder / "mlm", False, Silent(), quiet)
    return folder


@pytest.fixture(scope="session")
def server(trained, sentences):
    runs = [trained, *(sentences / name for name in ("mim", "mlm", "markup"))]
    with served(runs, watched=sentences) as running:
        yield running
