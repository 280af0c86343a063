"""Downloads from a server that does what servers do."""

import gc
import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from infolm.data import registry as registered
from infolm.data import sources
from infolm.data.corpora import DataConfig, load
from infolm.data.registry import CorpusInfo, Download
from infolm.errors import RunError

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

FILES = {f"tiny.{split}.txt": f"the {split} text\n" * 3 for split in sources.SPLITS}


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as members:
        for name, text in FILES.items():
            members.writestr(f"some/folder/{name}", text)
    return buffer.getvalue()


class Server(ThreadingHTTPServer):
    """Serves `body`; `faults` says what happens to the next requests instead."""

    body = archive()
    faults: list[str]
    requests: int


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        fault = self.server.faults.pop(0) if self.server.faults else ""
        if fault == "unavailable":
            self.send_error(503)
            return
        body = b"something else" if fault == "altered" else self.server.body
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    server.faults, server.requests = [], 0
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
    gc.collect()  # sockets that the download library leaves open when a connection is cut


@pytest.fixture
def folder(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files are to go, with the corpus `tiny` registered at the server's address."""
    url = f"http://127.0.0.1:{server.server_port}/tiny.zip"
    download = Download(url, hashlib.sha256(Server.body).hexdigest(), len(Server.body))
    info = CorpusInfo(
        *("tiny", "", "", "", "word", 3),
        pretokenised=True,
        folder="tiny",
        files=tuple(FILES),
        downloads=(download,),
    )
    monkeypatch.setattr(registered, "_REGISTRY", (info,))
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    monkeypatch.setenv("INFOLM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("INFOLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(sources, "_user_folder", lambda: tmp_path / "user")
    return tmp_path / "data" / "tiny"


CONFIG = DataConfig(corpus="tiny")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def test_a_good_download_is_unpacked_and_used_again(folder: Path, server: Server) -> None:
    calls: list[tuple[str, int, int]] = []
    corpus = load(CONFIG, report=lambda *call: calls.append(call))
    assert corpus.tokenizer.decode(corpus.splits["valid"].tokens)[:7] == "the <un"
    assert {name: (folder / name).read_text() for name in FILES} == FILES
    assert names(folder) == set(FILES)
    size = len(Server.body)
    assert ("downloading tiny.zip", size, size) in calls
    load(CONFIG)
    assert server.requests == 1


@pytest.mark.parametrize("fault", ["unavailable", "cut", "altered"])
def test_one_failure_is_tried_again(folder: Path, server: Server, fault: str) -> None:
    server.faults = [fault]
    load(CONFIG)
    assert server.requests == 2
    assert names(folder) == set(FILES)


@pytest.mark.parametrize(
    ("fault", "what"),
    [("unavailable", "503"), ("cut", "could not be downloaded"), ("altered", "SHA-256 is not")],
)
def test_a_lasting_failure_is_a_sentence_and_leaves_nothing(
    folder: Path, server: Server, fault: str, what: str
) -> None:
    server.faults = [fault] * 9
    with pytest.raises(RunError, match=what) as caught:
        load(CONFIG)
    message = str(caught.value)
    assert f"http://127.0.0.1:{server.server_port}/tiny.zip" in message
    assert f"put the file at {folder / 'tiny.zip'} by hand" in message
    assert server.requests == 3
    assert names(folder) == set()


def test_a_server_that_is_not_there(folder: Path, server: Server) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(RunError, match="could not be downloaded"):
        load(CONFIG)


def test_a_file_put_there_by_hand_is_taken(folder: Path, server: Server) -> None:
    folder.mkdir(parents=True)
    (folder / "tiny.zip").write_bytes(Server.body)
    load(CONFIG)
    assert server.requests == 0


def test_a_data_folder_that_cannot_be_written_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("not a folder")
    load(CONFIG)
    assert names(tmp_path / "user" / "tiny") == set(FILES)
