"""What a person sees when the input is bad."""

from typing import Any


def one_sentence(done: Any, *words: str, codes: tuple[int, ...] = (2,)) -> None:
    """The command ended with one of the exit codes, a sentence with these words, and no result."""
    assert done.code in codes, (done.code, done.err)
    assert done.out == ""
    (line,) = [line for line in done.err.splitlines() if line.startswith("infolm: ")]
    assert "Traceback" not in done.err
    for word in words:
        assert word in line, line
