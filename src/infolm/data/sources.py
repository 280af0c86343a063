"""Finding, downloading or generating the text of each split.

A registered corpus is searched in `$INFOLM_DATA/<folder>`, then in the user's data folder, and
otherwise downloaded, with its SHA-256 checked. A person's own text is a file, split 90 : 5 : 5 at
line ends, a folder with a train, a valid and a test file, or many documents, which `data.gather`
puts together.
"""

import hashlib
import json
import mmap
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Literal

from infolm import files
from infolm.data import (
    documents,
    gather,
    ingest,
    python_docs,
    questions,
    sentence_splitter,
    store,
    synthetic,
)
from infolm.data.gather import SPLITS as SPLITS
from infolm.data.gather import File, Gathered, Gathering
from infolm.data.ingest import Report, Text
from infolm.data.registry import CorpusInfo, Download, registry
from infolm.data.tokens import Kind
from infolm.errors import InfolmError, RunError
from infolm.section import nearest

Lines = Literal["sentences", "paragraphs", "wrapped"]
SPLITTER = 1
"""Version; raised when the rules of `sentence_splitter` change."""

_LARGE = 2**24  # bytes of a file whose SHA-256 is worth remembering


def cache_folder() -> Path:
    """The folder of tokens: `$INFOLM_CACHE`, or the user's cache folder."""
    return Path(os.environ.get("INFOLM_CACHE") or _user_folder() / "tokenised")


def data_folders() -> list[Path]:
    """The folders of corpora: `$INFOLM_DATA` if set, and the user's data folder."""
    given = os.environ.get("INFOLM_DATA")
    return [*([Path(given)] if given else []), _user_folder()]


def _user_folder() -> Path:
    import pooch  # type: ignore[import-untyped]

    return Path(pooch.os_cache("infolm"))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(path: Path) -> str:
    """The file's SHA-256; that of a large file is cached until the file changes."""
    state = path.stat()
    if state.st_size < _LARGE:
        return sha256(path)
    key = [str(path.resolve()), state.st_size, state.st_mtime_ns, state.st_ctime_ns]
    return _remembered(json.dumps(key), lambda: sha256(path))


def _remembered(key: str, digest: Callable[[], str]) -> str:
    """The result of `digest`, cached under `key`."""
    memory = cache_folder() / "digests" / hashlib.sha256(key.encode()).hexdigest()
    if memory.exists():
        return memory.read_text()
    value = digest()
    memory.parent.mkdir(parents=True, exist_ok=True)
    with store.atomic(memory) as file:
        file.write(value.encode())
    return value


def find(name: str | None) -> CorpusInfo:
    known = registry()
    if name in known:
        return known[name]
    names = ", ".join(known)
    if name is None:
        raise InfolmError(
            f"No text is given: set data.path to your own text, or data.corpus to {names}."
        )
    hint = nearest(name, known)
    raise InfolmError(
        f"There is no corpus '{name}'{hint} (there are {names}; or set data.path to your own text)."
    )


def own_texts(path: Path, lines: Lines = "sentences") -> dict[str, Text]:
    """The splits of a person's own plain text, with its lines processed as set."""
    if path.is_dir():
        texts = {split: Text.whole(_named(path, split)) for split in SPLITS}
        for text in texts.values():
            _refuse_empty(text.path)
        if lines != "sentences":
            return {split: Text.whole(_in_sentences(t.path, lines)) for split, t in texts.items()}
        return texts
    if not path.is_file():
        raise InfolmError(f"{path} does not exist: data.path is a text file or a folder of texts.")
    _refuse_empty(path)
    return _split_file(path if lines == "sentences" else _in_sentences(path, lines))


def is_plain(path: Path) -> bool:
    """Whether `own_texts` can read it: one plain text, or a folder with one for each split."""
    if not path.is_dir():
        return documents.is_plain(path)
    found = [_candidates(path, split) for split in SPLITS]
    return all(len(each) == 1 and documents.is_plain(each[0]) for each in found)


def unpacked(path: Path) -> Path:
    """A compressed text decompressed, created once and kept in a readable place."""
    _refuse_empty(path)
    made = cache_folder() / "texts" / "own" / f"{path.stem}-{digest(path)[:16]}.txt"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with store.atomic(made) as file:
            file.writelines(line.encode() for line in documents.read(path, "", "line"))
    return made


def gathered_texts(
    path: Path, wanted: Gathering, lines: Lines, report: Report
) -> tuple[dict[str, list[Text]], Gathered]:
    """The splits of many documents, gathered once and kept in a readable place."""
    found = _documents_of(path)
    described = {
        "version": gather.VERSION,
        "wanted": asdict(wanted),
        "lines": [lines, SPLITTER] if lines != "sentences" else None,
        "files": _digest_of_files(path, found),
    }
    key = hashlib.sha256(json.dumps(described).encode()).hexdigest()
    folder = cache_folder() / "texts" / "gathered" / key
    folder.parent.mkdir(parents=True, exist_ok=True)

    def in_sentences(text: str) -> Iterator[str]:
        split: Iterator[str] = iter(text.splitlines())
        for paragraph in sentence_splitter.unwrap(split) if lines == "wrapped" else split:
            yield from sentence_splitter.split(paragraph)

    prepare = None if lines == "sentences" else in_sentences
    result = gather.finished(folder)
    if result is None:
        with files.alone(folder):
            files.sweep(folder)
            try:
                result = gather.gathered(found, wanted, prepare, folder, report)
            except InfolmError:  # a corrected file makes another text
                shutil.rmtree(folder, ignore_errors=True)
                raise
    texts = {s: [Text.whole(folder / name) for name in names] for s, names in result.texts.items()}
    return texts, result


def _documents_of(path: Path) -> list[File]:
    """The files, each with its split if the names show it."""
    if not path.is_dir():
        if not path.is_file():
            raise InfolmError(
                f"{path} does not exist: data.path is a text file or a folder of texts."
            )
        return [File(path)]
    found = taken(path)[0]
    if not found:
        raise InfolmError(
            f"{path} has no file to read: file names must end in .txt, .jsonl or .parquet, "
            "compressed (.gz, .zst) or not"
        )
    splits = {file: _split_named(file.relative_to(path)) for file in found}
    if "train" not in splits.values():
        return [File(file) for file in found]
    for split in SPLITS:
        if split not in splits.values():
            raise InfolmError(
                f"{path} has files named train and none named {split}: name one, or rename "
                "the others, for documents to be split by their hash"
            )
    unnamed = [file for file, split in splits.items() if split is None]
    if unnamed:
        raise InfolmError(
            f"{unnamed[0]} is named neither train, valid nor test, and other files of {path} are: "
            "rename it, or move it away"
        )
    return [File(file, split) for file, split in splits.items()]


def taken(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files under a folder that are read, and those of other kinds. One that is named after a
    split is read as plain text whatever its name ends in."""
    known, others = documents.in_folder(folder)
    named = {path for path in others if _split_named(path.relative_to(folder))}
    return sorted([*known, *named]), [path for path in others if path not in named]


def _split_named(path: Path) -> str | None:
    """The split in the words of a file's name and folders: `valid/part-3.jsonl.gz`."""
    words = set(re.split(r"[^a-z0-9]+", str(path).lower()))
    named = [split for split, names in _NAMES.items() if names & words]
    return named[0] if len(named) == 1 else None


def _digest_of_files(root: Path, found: Sequence[File]) -> str:
    """The SHA-256 of all files, cached until they change."""
    states = [(file.path, file.path.stat()) for file in found]
    key = json.dumps(
        [(str(p.resolve()), s.st_size, s.st_mtime_ns, s.st_ctime_ns) for p, s in states]
    )

    def digests() -> str:
        whole = hashlib.sha256()
        for file in found:
            name = file.path.relative_to(root).as_posix() if root.is_dir() else ""
            whole.update(json.dumps([name, file.split, sha256(file.path)]).encode())
        return whole.hexdigest()

    return _remembered(key, digests)


def _in_sentences(path: Path, lines: Lines) -> Path:
    """The text with one sentence per line, created once and kept in a readable place."""
    name = f"{path.stem}-{digest(path)[:16]}-{lines}-v{SPLITTER}.txt"
    made = cache_folder() / "texts" / "own" / name
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with store.atomic(made) as file:
            found: Iterator[str] = read_lines(path)
            for paragraph in sentence_splitter.unwrap(found) if lines == "wrapped" else found:
                sentences = sentence_splitter.split(paragraph)
                file.writelines(f"{sentence}\n".encode() for sentence in sentences)
    return made


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text; an error sentence on the first unreadable one."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield line.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise InfolmError(
                    f"{path}, line {number}, is not UTF-8 text ({error.reason}): convert the file, "
                    "for instance with iconv -f LATIN1 -t UTF-8"
                ) from error


def _refuse_empty(path: Path) -> None:
    if not path.stat().st_size:
        raise InfolmError(f"{path} is empty: give a text with at least some lines.")


_NAMES = {"train": {"train"}, "valid": {"valid", "validation", "dev"}, "test": {"test"}}


def _candidates(folder: Path, split: str) -> list[Path]:
    """The files of a split: `train`, `train.txt`, `ptb.train.txt`, `wiki.train.tokens` ..."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and _NAMES[split] & set(path.name.lower().split("."))
    ]


def _named(folder: Path, split: str) -> Path:
    found = _candidates(folder, split)
    if len(found) == 1:
        return found[0]
    names = "no file" if not found else ", ".join(path.name for path in found)
    raise InfolmError(
        f"{folder} must hold one file for each of train, valid and test, "
        f"but has {names} for {split}: name it for instance {split}.txt."
    )


def _one_after_the_other(parts: list[Path]) -> Path:
    """Several texts joined, created once and kept in a readable place; lines are ended."""
    source = hashlib.sha256("".join(map(digest, parts)).encode()).hexdigest()
    made = cache_folder() / "texts" / "own" / f"{parts[0].parent.name}-{source[:16]}.txt"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with store.atomic(made) as file:
            for path in parts:
                last = b"\n"
                with path.open("rb") as part:
                    while data := part.read(2**20):
                        file.write(data)
                        last = data[-1:]
                if last != b"\n":
                    file.write(b"\n")
    return made


def _split_file(path: Path) -> dict[str, Text]:
    """The lines of a file, 90 : 5 : 5, in their order."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        size = len(data)
        marks = (size * 90 // 100, size * 95 // 100)
        cuts = [0, *(data.find(b"\n", max(mark - 1, 0)) + 1 or size for mark in marks), size]
    texts = dict(zip(SPLITS, _between(path, cuts), strict=True))
    for split, text in texts.items():
        if not len(text):
            raise InfolmError(
                f"{path} has too few lines to be split: {split} would have no token. Give a longer "
                "text, or a folder with files named train, valid and test."
            )
    return texts


def first_lines(texts: Sequence[Text], lines: int) -> list[Text]:
    """The first lines of a text."""
    taken: list[Text] = []
    left = lines
    for text in texts:
        stop = text.start
        with text.path.open("rb") as file:
            file.seek(text.start)
            while left and stop < text.stop:
                stop += len(file.readline())
                left -= 1
        taken.append(Text(text.path, text.start, min(stop, text.stop)))
        if not left:
            return taken
    raise InfolmError(
        f"data.train_lines is {lines:,}, and the training split of {texts[0].path} has "
        f"{lines - left:,} lines: lower it, or leave it out for all of them."
    )


def _between(path: Path, cuts: list[int]) -> list[Text]:
    return [Text(path, a, b) for a, b in pairwise(cuts)]


def known_texts(info: CorpusInfo, tokens: Kind, report: Report) -> dict[str, Text]:
    if info.name == "python-docs":
        return _python_docs()
    if info.name in synthetic.NAMES:
        return made(f"{info.name}-v{synthetic.VERSION}", lambda: synthetic.splits(info.name))
    if info.name == "ptb-char":
        return _characters_of(known_texts(registry()["ptb"], "word", report))
    folder = fetch(info, report)
    paths = [folder / name for name in info.files]
    for path in paths:
        _refuse_empty(path)
    if info.name == "yelp":
        return _reviews(paths)
    if info.name == "xquad":
        (path,) = paths
        name = f"xquad-v{questions.VERSION}-{digest(path)[:16]}"
        return made(name, lambda: questions.splits(path))
    if len(folders := {path.parent: None for path in paths}) == len(SPLITS):
        of_splits = [[path for path in paths if path.parent == each] for each in folders]
        whole = map(_one_after_the_other, of_splits)
        return {split: Text.whole(path) for split, path in zip(SPLITS, whole, strict=True)}
    if not info.sizes:
        return {split: Text.whole(path) for split, path in zip(SPLITS, paths, strict=True)}
    train, valid, _ = info.sizes
    cuts = [0, train, train + valid, paths[0].stat().st_size]
    if tokens != "byte":
        cuts = [_character_start(paths[0], cut) for cut in cuts]
    return dict(zip(SPLITS, _between(paths[0], cuts), strict=True))


def _character_start(path: Path, at: int) -> int:
    """The first byte from `at` on that is not inside a UTF-8 character."""
    with path.open("rb") as file:
        file.seek(at)
        following = file.read(4)
    return at + next((i for i, byte in enumerate(following) if byte & 0xC0 != 0x80), 0)


def _characters_of(texts: dict[str, Text]) -> dict[str, Text]:
    """Penn Treebank as the character models' papers count it: `_` for a blank inside a line.

    5,017,482, 393,042 and 442,423 characters, one `<eos>` a line among them; 50 types.
    """
    source = hashlib.sha256("".join(digest(text.path) for text in texts.values()).encode())

    def lines(text: Text) -> str:
        content = ingest.decode(text, text.read())
        return "".join(f"{line.strip().replace(' ', '_')}\n" for line in content.splitlines())

    return made(
        f"ptb-char-{source.hexdigest()[:16]}",
        lambda: {split: lines(text) for split, text in texts.items()},
    )


def _reviews(paths: list[Path]) -> dict[str, Text]:
    """Yelp's sentences of bad (.0) and good (.1) reviews, mixed evenly and each in their order.

    Sentences of one review follow each other in a file, so the halves of the dev files are valid
    and test. One sentence in eight of those two, mostly short ones, is in train too.
    """
    source = hashlib.sha256("".join(digest(path) for path in paths).encode())

    def splits() -> dict[str, str]:
        texts = [Text.whole(path) for path in paths]
        *train, bad, good = [ingest.decode(text, text.read()).splitlines() for text in texts]
        m, n = len(bad) // 2, len(good) // 2
        parts = (train, (bad[:m], good[:n]), (bad[m:], good[n:]))
        return {
            split: "".join(f"{line}\n" for line in _mixed(*part))
            for split, part in zip(SPLITS, parts, strict=True)
        }

    return made(f"yelp-{source.hexdigest()[:16]}", splits)


def _mixed(first: list[str], second: list[str]) -> list[str]:
    """Both lists spread evenly over one: item i of n stands (i + 1/2) / n of the way along it."""
    placed = [
        ((i + 0.5) / len(lines), line) for lines in (first, second) for i, line in enumerate(lines)
    ]
    return [line for _, line in sorted(placed, key=itemgetter(0))]


def _python_docs() -> dict[str, Text]:
    version = "-".join(map(str, (*sys.version_info, f"v{python_docs.VERSION}")))
    return made(f"python-docs-{version}", python_docs.splits)


def made(name: str, make: Callable[[], Mapping[str, str | Iterator[str]]]) -> dict[str, Text]:
    """Generated texts, kept beside the tokens in a readable place.

    A split is generated whole, or in parts if it is large.
    """
    folder = cache_folder() / "texts" / name
    paths = {split: folder / f"{split}.txt" for split in SPLITS}
    if not all(path.exists() for path in paths.values()):
        folder.mkdir(parents=True, exist_ok=True)
        for split, text in make().items():
            parts = [text] if isinstance(text, str) else text
            with store.atomic(paths[split]) as file:
                file.writelines(part.encode() for part in parts)
    return {split: Text.whole(path) for split, path in paths.items()}


def fetch(info: CorpusInfo, report: Report) -> Path:
    """The folder of the corpus's files, downloaded and unpacked if necessary."""
    folders = [root / info.folder for root in data_folders()]
    for folder in folders:
        if all((folder / name).exists() for name in info.files):
            return folder
    if not info.downloads:
        raise InfolmError(
            f"{info.name} is not downloaded: unpack the archive of {info.source} so that "
            f"{folders[0] / info.files[0]} is there, and the other files of {info.name} beside it."
        )
    folder = next(filter(_can_write, folders), folders[-1])
    for download in info.downloads:
        path = _download(download, folder, report)
        if path.suffix == ".zip":
            _unpack(path, info.files)
            path.unlink()
    return folder


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


class _Bar:
    """A progress bar for `pooch` that calls `report`."""

    total = 0

    def __init__(self, name: str, report: Report) -> None:
        self.done = 0
        self.stage, self.report = f"downloading {name}", report

    def update(self, size: int) -> None:
        self.done = min(self.done + size, self.total)
        self.report(self.stage, self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _download(download: Download, folder: Path, report: Report) -> Path:
    """Download a file and check its SHA-256; three attempts."""
    import pooch
    import requests

    pooch.get_logger().setLevel("ERROR")
    name = download.name
    files = pooch.create(
        path=folder,
        base_url="",
        registry={name: f"sha256:{download.sha256}"},
        urls={name: download.url},
        retry_if_failed=2,
    )
    downloader = pooch.HTTPDownloader(
        progressbar=_Bar(name, report),
        chunk_size=2**18,
        headers={"User-Agent": "Mozilla/5.0 (compatible; infolm)"},  # some hosts refuse Python's
    )
    by_hand = f"Try again later, or put the file at {folder / name} by hand."
    try:
        return Path(files.fetch(name, downloader=downloader))
    except requests.RequestException as error:
        # A failed connection gives four nested exceptions.
        reason = "no connection" if isinstance(error, requests.ConnectionError) else str(error)
        raise RunError(f"{download.url} could not be downloaded ({reason}). {by_hand}") from error
    except ValueError as error:  # how pooch reports a wrong checksum
        raise RunError(
            f"{download.url} gave a file whose SHA-256 is not {download.sha256}; it was thrown "
            f"away. {by_hand}"
        ) from error


def _unpack(archive: Path, names: tuple[str, ...]) -> None:
    """Write the files of these names, in whatever folder of the archive, beside it."""
    with zipfile.ZipFile(archive) as members:
        inside = {Path(member).name: member for member in members.namelist()}
        for name in names:
            with members.open(inside[name]) as packed, store.atomic(archive.parent / name) as file:
                shutil.copyfileobj(packed, file, 2**20)
