"""What was done to a person's own text, in words."""

from infolm.data.corpora import Corpus, DataConfig, splits_contractions
from infolm.data.sentence_splitter import sentences_per_line, wrapped_at
from infolm.data.sources import SPLITS, own_file, read_lines
from infolm.errors import InfolmError

MANY = 1.5
"""Sentences of a line from which it is called a paragraph."""
LINES = {
    "sentences": "lines taken as sentences",
    "paragraphs": "lines split into sentences",
    "wrapped": "lines joined into paragraphs and those split into sentences",
}


def described(config: DataConfig, corpus: Corpus) -> str:
    """Case, words that were cut off, the share of unknown tokens, what a line is; and, where the
    lines look like something else, which key to set. Empty for a corpus by name."""
    if config.path is None:
        return ""
    parts = ["lower-cased" if config.lowercase else "case kept"]
    tokenizer = corpus.tokenizer
    if tokenizer.kind == "word":
        parts.append(_words(config, corpus))
        if splits_contractions(config):
            parts.append("contractions cut (wo n't)")
    parts.append(LINES[config.lines] + _hint(config))
    return f"{config.path}: {', '.join(parts)}"


def _words(config: DataConfig, corpus: Corpus) -> str:
    types = len(corpus.tokenizer)
    tokens, unknown = (
        sum(numbers)
        for numbers in zip(
            *((len(s.tokens), s.unknown) for s in map(corpus.splits.__getitem__, SPLITS)),
            strict=True,
        )
    )
    cut = config.vocabulary is not None and types >= config.vocabulary
    kept = f"cut to the {types:,} most frequent words" if cut else f"all {types:,} words kept"
    return f"{kept} ({unknown / max(tokens, 1):.1%} of the tokens are <unk>)"


def _hint(config: DataConfig) -> str:
    """What the lines look like, where that is not what they are taken for."""
    if config.lines != "sentences" or config.path is None:
        return ""
    file = own_file(config.path)
    try:
        if width := wrapped_at(read_lines(file)):
            return f" (they look hard-wrapped at {width} characters: data.lines=wrapped joins them)"
        if (number := sentences_per_line(read_lines(file))) >= MANY:
            return f" (they have {number:.1f} each: data.lines=paragraphs splits them)"
    except InfolmError:  # bytes need not be text
        pass
    return ""
