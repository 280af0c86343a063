"""Runs of every family, and a real server on a free port of this machine."""

import socket
import threading
from contextlib import contextmanager

import pytest
import uvicorn
from commands import trained
from encoder_runs import recipe
from training_tiny import Silent, quiet, tiny_sentences

from infolm.config import Recipe
from infolm.families.train import train
from infolm.server.app import create_app
from infolm.server.limits import Doors, Limits
from infolm.server.services import open_services

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


@contextmanager
def served(runs, limits=None, doors=None):
    """A server of these runs in a thread: its address and its services, by name."""
    limits = limits or Limits()
    services = open_services(runs, limits)
    app = create_app(services, limits, doors or Doors())
    config = uvicorn.Config(
        app, log_level="critical", limit_concurrency=limits.connections, ws="none"
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
            yield f"http://127.0.0.1:{port}", services
        finally:
            server.should_exit = True
            thread.join(30)


@pytest.fixture(scope="session")
def server(trained, sentences):
    with served([trained, sentences / "mim", sentences / "mlm"]) as running:
        yield running
