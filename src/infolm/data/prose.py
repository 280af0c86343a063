"""Tokenisation of prose into words, and its inverse.

`prose_pattern` cuts as the Penn Treebank does around apostrophes: "won't" is "wo n't", "Prince's"
is "Prince 's". Numbers such as 1,000.5 and abbreviations such as U.S. stay whole, and scripts
without blanks (Han, Kana, Thai ...) are cut into characters. Every other mark is a token.

`join` is its inverse on ordinary prose: single blanks, quotation marks in pairs, hyphens and
slashes inside words, dashes without blanks.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise

ENDINGS = ("s", "m", "d", "re", "ve", "ll")
"""The clitics after an apostrophe that are separate tokens; n't keeps its n."""
UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),  # Han
    (0xF900, 0xFAFF),
    (0x20000, 0x323AF),
)
"""Ranges of scripts that put no blanks between words."""

OPENING = "([{“‘«‹„‚¿¡$£€¥#@「『（【《"
CLOSING = ".,;:!?%)]}”»›…°。、！？；：」』）】》，।॥،؟؛"
BOTH = "-‐‑—―/\\"
"""Marks without a blank on their right, on their left, and on both sides."""


def character_class(characters: Iterable[str]) -> str:
    """`characters` as the inside of a regular expression's `[...]`, in ranges."""
    codes = sorted(map(ord, characters))
    breaks = [i for i, (a, b) in enumerate(pairwise(codes), 1) if b > a + 1]
    starts, stops = [0, *breaks], [*breaks, len(codes)]
    ranges = [(chr(codes[i]), chr(codes[j - 1])) for i, j in zip(starts, stops, strict=True)]

    def quote(c: str) -> str:
        return "\\" + c if c.isascii() and c.isprintable() and c != " " else c

    return "".join(quote(a) if a == b else f"{quote(a)}-{quote(b)}" for a, b in ranges)


def unspaced(character: str) -> bool:
    """Whether the character belongs to a script without blanks."""
    code = ord(character)
    return code >= 0x0E00 and any(low <= code <= high for low, high in UNSPACED)


@cache
def _of_unspaced() -> tuple[str, str]:
    """The classes of the characters of scripts without blanks, and of their combining signs."""
    every = [chr(c) for low, high in UNSPACED for c in range(low, high + 1)]
    kinds = [unicodedata.category(c)[0] for c in every]
    letters = [c for c, kind in zip(every, kinds, strict=True) if kind in "LN"]
    signs = [c for c, kind in zip(every, kinds, strict=True) if kind == "M"]
    return character_class(letters), character_class(signs)


def prose_pattern(start: str, space: str, marks: str) -> str:
    """The regular expression whose matches are the words of prose.

    start: alternatives that come first. space, marks: insides of character classes.
    """
    letters, signs = _of_unspaced()
    letter = f"[^{space}{marks}{letters}{signs}]"
    end = f"(?!{letter})"
    endings = "|".join("".join(f"[{c}{c.upper()}]" for c in each) for each in ENDINGS)
    not_t = f"[nN]['’][tT]{end}"
    return (
        f"{start}"
        f"|[{letters}][{signs}]*"
        f"|(?<!{letter})[0-9]+(?:[.,:][0-9]+)+{end}"
        f"|(?<!{letter})(?:{letter}\\.)(?:{letter}\\.)+"
        f"|{letter}+?(?={not_t})|{not_t}"
        f"|['’](?:{endings}){end}"
        f"|{letter}+(?:['’](?!(?:{endings}){end}){letter}+?(?={not_t}|{end}))*"
        f"|[{marks}]|[{signs}]+"
    )


_ENDING = re.compile(f"(?:[nN]['’][tT]|['’](?:{'|'.join(ENDINGS)}))$", re.IGNORECASE)


def join(tokens: Sequence[str]) -> str:
    """The tokens of a line joined as ordinary prose."""
    text: list[str] = []
    open_quotes: set[str] = set()
    clings = True  # whether the next token follows without a blank
    for i, token in enumerate(tokens):
        before = tokens[i - 1] if i else ""
        after = tokens[i + 1] if i + 1 < len(tokens) else ""
        left, right = _sides(token, before, after, open_quotes)
        if not (clings or left):
            text.append(" ")
        text.append(token)
        clings = right
    return "".join(text)


def _sides(token: str, before: str, after: str, open_quotes: set[str]) -> tuple[bool, bool]:
    """Whether the token has no blank on its left, and on its right."""
    if _ENDING.fullmatch(token):
        return bool(before) and _word(before), False
    if token in ('"', "'", "’", "''", "``", "*"):
        return _quote(token, before, after, open_quotes)
    if len(token) == 1:
        if _tight(token):
            return bool(before) and _tight(before[-1]), False
        if token in "–−" and before.isdigit() and after.isdigit():
            return True, True
        if token == "-" and not (_word(before) and _word(after)):
            return False, False
        if token in BOTH:
            return True, True
        return token in CLOSING, token in OPENING
    if _tight(token[0]):
        return bool(before) and _tight(before[-1]), False
    if set(token) <= {"."} or token == "--":
        return True, token == "--"
    return False, False


def _tight(character: str) -> bool:
    """Whether no blank stands between two such characters: those of `UNSPACED` and wide marks."""
    wide = 0x3000 < ord(character) <= 0x303F or 0xFF00 <= ord(character) <= 0xFF65
    return wide or unspaced(character)


def _quote(token: str, before: str, after: str, open_quotes: set[str]) -> tuple[bool, bool]:
    """A straight quotation mark opens or closes by what came before; "dogs'" closes nothing."""
    if token in open_quotes or (before and not after):  # nothing opens at the end of a line
        open_quotes.discard(token)
        return True, False
    if token == "’" or (token == "'" and _word(before) and before[-1] in "sS"):
        return True, False
    open_quotes.add(token)
    return False, True


def _word(token: str) -> bool:
    return bool(token) and (token[0].isalnum() or token[-1].isalnum())
