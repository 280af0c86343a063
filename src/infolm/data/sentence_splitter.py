"""Rules that split paragraphs into sentences, and join hard-wrapped lines into paragraphs.

    split("Mr. Fox came at 5 p.m. He left.")     # ["Mr. Fox came at 5 p.m.", "He left."]
    unwrap(["It was", "a night.", "", "Then."])  # "It was a night.", "Then."

A sentence ends at . ! ? or ... and the closing marks after it, if no lower case follows. A
full stop does not end one after a title (Dr.), an initial (J.), or an abbreviation that something
must follow (Fig. 3, No. 5, e.g.). After one that may be the last word (U.S., p.m., etc., Inc.) it
ends a sentence only before a word that begins many sentences (The, He, But ...). Marks of Chinese,
Japanese and Hindi always end a sentence.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

TITLES = frozenset(
    "mr mrs ms mx dr prof st rev hon gen col lt capt cmdr maj sgt cpl pvt adm gov sen rep pres "
    "supt messrs mme mlle mgr".split()
)
"""Titles: a name follows."""
FOLLOWED = frozenset("e.g i.e cf viz vs v ca approx dept univ assn mt z.b d.h bzw resp".split())
"""Abbreviations that are never the last word."""
NUMBERED = frozenset(
    "no nos nr vol vols fig figs eq eqs sec secs ch chap pp p par art op jan feb mar apr jun jul "
    "aug sept sep oct nov dec".split()
)
"""Abbreviations before a number; without one they are the last word."""
LAST = frozenset(
    "etc al inc ltd co corp bros llc plc a.m p.m am pm u.s u.k u.n e.u u.s.a b.c a.d d.c ph.d m.d "
    "b.a m.a esq jr sr est ave blvd rd ft ed eds".split()
)
"""Abbreviations that may end a sentence or not."""
BEGINNINGS = frozenset(
    "the a an he she it we they i you this that these those there here his her its my our their "
    "your in on at by for from with after before when while as if but and so yet or nor not no "
    "what who why how where then now some many most all each every one two however although though "
    "because since once is are was were do does did".split()
)
"""Words that begin a sentence if they have a capital, and are not names."""

CLOSERS = "\"'”’»›)\\]}"
OPENERS = "\"'“‘«‹„(\\[{¿¡—–-"
_END = re.compile(f"([.!?…]+)([{CLOSERS}]*)(\\s+)|([。！？।॥]+[{CLOSERS}」』）]*)\\s*")
_NUMBER = re.compile(r"\d|[IVXLCDM]+\b|[A-Z]\b")
_WIDE = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


def split(paragraph: str) -> list[str]:
    """The sentences of a paragraph, in their order; joined by blanks they are the paragraph, up to
    white space."""
    text = " ".join(paragraph.split())
    found, start = [], 0
    for match in _END.finditer(text):
        if match[4] is None and not _ends(text, start, match):
            continue
        found.append(text[start : match.end()].strip())
        start = match.end()
    if text[start:]:
        found.append(text[start:])
    return found


def _ends(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether a sentence that began at `start` ends at the mark that `match` found."""
    marks, following = match[1], text[match.end() :]
    begins = following.lstrip(OPENERS.replace("\\", ""))
    if not begins:
        return True
    first = begins[0]
    if first.islower():
        return False
    if marks != "." or match[2]:
        # A question inside a sentence continues in lower case, which was checked above.
        return True
    word = _last_word(text[start : match.start()])
    plain = word.casefold()
    if plain in TITLES or plain in FOLLOWED:
        return False
    if plain in NUMBERED:
        return not _NUMBER.match(begins)
    if len(word) == 1 and word.isalpha() and word.isupper():
        return word == "I" and _is_beginning(begins)
    if plain in LAST or re.fullmatch(r"(?:[^\W\d_]\.)+[^\W\d_]", word):
        return _is_beginning(begins)
    # "1. First" at the start of a list
    return not (word.isdigit() and start + len(word) == match.start())


def _last_word(text: str) -> str:
    word = text.split(" ")[-1] if text else ""
    return word.lstrip(OPENERS.replace("\\", ""))


def _is_beginning(text: str) -> bool:
    word = _WIDE.match(text)
    return word is not None and word[0].casefold() in BEGINNINGS


def unwrap(lines: Iterable[str]) -> Iterator[str]:
    """Paragraphs: lines joined up to a blank one; a word that a hyphen cut stays cut."""
    paragraph: list[str] = []
    for line in lines:
        if line.strip():
            paragraph.append(line.strip())
        elif paragraph:
            yield " ".join(paragraph)
            paragraph = []
    if paragraph:
        yield " ".join(paragraph)


LOOKED_AT = 5000
"""Lines inspected to see whether a text is wrapped."""
FEWEST, WIDEST = 30, 140
"""Least consecutive lines, and the greatest width of wrapped text."""


def wrapped_at(lines: Iterable[str]) -> int | None:
    """The width at which a text is hard-wrapped; None if it is not.

    Lines are filled: nine in ten lines with a successor have no room for its first word. Lines that
    are sentences, verses or paragraphs have no such width.
    """
    looked = [line.rstrip() for line in islice(lines, LOOKED_AT)]
    lengths = sorted(len(line) for line in looked if line)
    if len(lengths) < FEWEST:
        return None
    width = lengths[int(0.98 * (len(lengths) - 1))]
    if width > WIDEST:
        return None
    pairs = [(a, b) for a, b in pairwise(looked) if a and b.strip()]
    full = sum(len(a) + 1 + len(b.split()[0]) > 0.97 * width for a, b in pairs)
    return width if len(pairs) >= FEWEST and full >= 0.8 * len(pairs) else None


def sentences_per_line(lines: Iterable[str]) -> float:
    """The mean over lines that are not blank."""
    looked = [line for line in islice(lines, LOOKED_AT) if line.strip()]
    return sum(len(split(line)) for line in looked) / max(1, len(looked))
