"""A description of the processing of a person's own text."""

from pathlib import Path

from infolm.data.corpora import Corpus, DataConfig, gathered, own_file, splits_contractions
from infolm.data.sentence_splitter import sentences_per_line, wrapped_at
from infolm.data.sources import read_lines, taken
from infolm.errors import InfolmError

MANY = 1.5
"""Mean sentences per line from which lines count as paragraphs."""
LINES = {
    "sentences": "lines taken as sentences",
    "paragraphs": "lines split into sentences",
    "wrapped": "lines joined into paragraphs and those split into sentences",
}


def described(config: DataConfig, corpus: Corpus) -> str:
    """Case, vocabulary limit, the share of unknown tokens, the meaning of a line; and if the lines
    look different, which key to set. Empty for a named corpus."""
    if config.path is None:
        return ""
    parts = [] if (found := gathered(config)) is None else [found.described()]
    if found and config.path.is_dir() and (others := taken(config.path)[1]):
        more = f" and {len(others) - 1:,} others" if len(others) > 1 else ""
        parts.append(f"{others[0].name}{more} not read (another kind of file)")
    parts.append("lower-cased" if config.lowercase else "case kept")
    tokenizer = corpus.tokenizer
    if tokenizer.kind == "word":
        parts.append(_words(config, corpus))
        if splits_contractions(config):
            parts.append("contractions cut (wo n't)")
    parts.append(LINES[config.lines] + _hint(config, own_file(config)))
    return f"{config.path}: {', '.join(parts)}"


def _words(config: DataConfig, corpus: Corpus) -> str:
    types = len(corpus.tokenizer)
    tokens, unknown = (
        sum(numbers)
        for numbers in zip(
            *((len(s.tokens), s.unknown) for s in corpus.splits.values()),
            strict=True,
        )
    )
    cut = config.vocabulary is not None and types >= config.vocabulary
    kept = f"cut to the {types:,} most frequent words" if cut else f"all {types:,} words kept"
    return f"{kept} ({unknown / max(tokens, 1):.1%} of the tokens are <unk>)"


def _hint(config: DataConfig, file: Path) -> str:
    """A hint if the lines do not look like what they are taken for."""
    if config.lines != "sentences":
        return ""
    try:
        if width := wrapped_at(read_lines(file)):
            return f" (they look hard-wrapped at {width} characters: data.lines=wrapped joins them)"
        if (number := sentences_per_line(read_lines(file))) >= MANY:
            return f" (they have {number:.1f} each: data.lines=paragraphs splits them)"
    except InfolmError:  # bytes need not be text
        pass
    return ""
