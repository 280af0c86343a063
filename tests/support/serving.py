"""A real server on a free port of this machine, for tests."""

import threading
import time
from contextlib import contextmanager

import uvicorn

from infolm.server.app import create_app
from infolm.server.connections import bound, server_config
from infolm.server.limits import Doors, Limits
from infolm.server.runs import Runs
from infolm.server.services import open_services

MARKUP = "<img/src=x/onerror=alert(1)>"
"""A word of the text that some of the models are trained on, and so one that they write."""


@contextmanager
def served(runs, limits=None, doors=None, watched=None):
    """A server of these runs in a thread, that watches a folder: its address and its services, by
    name."""
    limits = limits or Limits()
    services = open_services(runs, limits)
    app = create_app(services, limits, doors or Doors(), watched and Runs(watched))
    server = uvicorn.Server(server_config(app, limits, log_level="critical"))
    with bound("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.001)
            yield f"http://127.0.0.1:{port}", services
        finally:
            server.should_exit = True
            thread.join(30)
