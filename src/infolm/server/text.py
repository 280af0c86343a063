"""Tokens into text as they come, and stop strings."""

from collections.abc import Sequence

from infolm.data.tokens import Tokenizer

INCOMPLETE = "\ufffd"
"""What decoding gives for bytes that are not a whole character."""
LONGEST_CHARACTER = 4
"""Bytes of a character in UTF-8."""


class Text:
    """The text of a continuation while it is written.

    before: the last token of the prompt, so that prompt and text read as one when joined. A
    `blank` between the two is left out. The text ends before the first stop string.
    """

    def __init__(
        self, tokenizer: Tokenizer, before: int, stops: Sequence[str] = (), blank: bool = True
    ) -> None:
        self.text, self.stopped = "", False
        self._tokenizer, self._stops, self._blank = tokenizer, tuple(stops), blank
        self._longest = max(map(len, self._stops), default=1)
        self._before, self._pending = before, list[int]()
        # Words are joined by blanks, so that a token's text depends on the one before it.
        self._joins = tokenizer.kind in ("word", "wordpiece")

    def add(self, token: int) -> None:
        """One more token."""
        self._pending.append(token)
        if self._joins:
            piece = self._tokenizer.following(token, self._before)
            if not self.text and not self._blank:
                piece = piece.removeprefix(" ")
            self._before = token
        else:
            piece = self._tokenizer.decode(self._pending)
            if piece.endswith(INCOMPLETE) and len(self._pending) < LONGEST_CHARACTER:
                return
        self._pending.clear()
        self._append(piece)

    def end(self) -> None:
        """No token follows: what is left of a character is shown as such."""
        if self._pending:
            self._append(self._tokenizer.decode(self._pending))
            self._pending.clear()

    def _append(self, piece: str) -> None:
        start = max(0, len(self.text) - self._longest + 1)
        self.text += piece
        found = [at for stop in self._stops if (at := self.text.find(stop, start)) >= 0]
        if found:
            self.text, self.stopped = self.text[: min(found)], True

    @property
    def settled(self) -> int:
        """How many characters no later token can take back: the rest may begin a stop string."""
        if self.stopped:
            return len(self.text)
        for start in range(max(0, len(self.text) - self._longest + 1), len(self.text)):
            if any(stop.startswith(self.text[start:]) for stop in self._stops):
                return start
        return len(self.text)
