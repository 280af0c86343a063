"""Runs of every family, and a real server on a free port of this machine."""

import pytest
from commands import trained
from encoder_runs import recipe
from serving import served
from training_tiny import Silent, quiet, tiny_sentences

from infolm.config import Recipe
from infolm.families.train import train

__all__ = ["trained"]


@pytest.fixture(scope="session")
def sentences(tmp_path_factory):
    """A run of a sentence model, and one of an encoder."""
    folder = tmp_path_factory.mktemp("sentences")
    text = folder / "text.txt"
    words = ["sun", "moon", "star", "sky", "sea", "rain", "wind", "snow"]
    text.write_text("".join(f"the {words[i % 8]} is {words[i % 3]}\n" for i in range(400)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        tree = tiny_sentences(text, max_steps=10)
        train(Recipe.model_validate(tree), folder / "mim", False, Silent(), quiet)
        train(recipe(text, "mlm"), folder / "mlm", False, Silent(), quiet)
    return folder


@pytest.fixture(scope="session")
def server(trained, sentences):
    with served([trained, sentences / "mim", sentences / "mlm"], watched=sentences) as running:
        yield running
