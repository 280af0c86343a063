"""Scored sentences as tables for R and pandas, and as pictures."""

import csv
import io
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal

from infolm import files
from infolm.errors import InfolmError
from infolm.evaluation.scoring import NATS, ScoredSentence, ScoredToken, ScoredWord
from infolm.reports import page

By = Literal["token", "word", "sentence"]
Row = dict[str, Any]

DARKEST = 16.0
"""Bits of surprisal from which on a word has the darkest shade."""
SHADES = ((255, 255, 255), (254, 217, 166), (244, 140, 80), (200, 50, 35), (110, 5, 15))
"""From no surprisal to the darkest, at equal steps."""
DRAWN = 12
"""Sentences of a plot."""
PER_PANEL = 16
"""Words side by side in one."""


def shade(surprisal: float, unit: str) -> tuple[int, int, int]:
    """Red, green and blue of a surprisal in bits or nats: pale where it is low, dark where high."""
    bits = surprisal * NATS[unit] / NATS["bits"]  # type: ignore[index]
    place = min(max(bits / DARKEST, 0.0), 1.0) * (len(SHADES) - 1)
    left = min(int(place), len(SHADES) - 2)
    mixed = (a + (place - left) * (b - a) for a, b in zip(*SHADES[left : left + 2], strict=True))
    red, green, blue = (round(part) for part in mixed)
    return red, green, blue


def dark(colour: tuple[int, int, int]) -> bool:
    """Whether white is easier to read on it than black."""
    red, green, blue = colour
    return 0.299 * red + 0.587 * green + 0.114 * blue < 128


# -- tables ----------------------------------------------------------------------------------


def rows(sentences: Sequence[ScoredSentence], by: By = "token") -> list[Row]:
    """One row per token, word or sentence, numbered from 1.

    Offsets are those of Python: the text[start:end] of the sentence. log_prob is in nats; every
    surprisal is in the unit that is named.
    """
    of: Callable[[int, ScoredSentence], list[Row]] = {
        "token": _of_tokens,
        "word": _of_words,
        "sentence": _of_sentence,
    }[by]
    return [row for number, s in enumerate(sentences, 1) for row in of(number, s)]


def _of_tokens(number: int, sentence: ScoredSentence) -> list[Row]:
    return [_of_token(number, i, t, sentence) for i, t in enumerate(sentence.tokens, 1)]


def _of_token(number: int, i: int, token: ScoredToken, sentence: ScoredSentence) -> Row:
    word = sentence.words[token.word] if token.word is not None else None
    row: Row = {
        "sentence": number,
        "token_number": i,
        "token": token.token,
        "start": token.start,
        "end": token.end,
        "log_prob": token.log_prob,
        "surprisal": token.surprisal,
        "unit": sentence.unit,
        "rank": token.rank,
        "unknown": token.unknown,
        "word_number": None if token.word is None else token.word + 1,
        "word": word and word.word,
        "word_surprisal": word and word.surprisal,
    }
    for place, other in enumerate(token.top, 1):
        row |= {f"top_{place}": other.token, f"top_{place}_surprisal": other.surprisal}
    return row


def _of_words(number: int, sentence: ScoredSentence) -> list[Row]:
    return [
        {
            "sentence": number,
            "word_number": i,
            "word": word.word,
            "start": word.start,
            "end": word.end,
            "surprisal": word.surprisal,
            "pieces": word.pieces,
            "unit": sentence.unit,
            "tokens": word.tokens,
            "unknown": word.unknown,
        }
        for i, word in enumerate(sentence.words, 1)
    ]


def _of_sentence(number: int, sentence: ScoredSentence) -> list[Row]:
    return [
        {
            "sentence": number,
            "text": sentence.text,
            "log_prob": sentence.log_prob,
            "surprisal": sentence.surprisal,
            "unit": sentence.unit,
            "tokens": len(sentence.tokens),
            "perplexity": sentence.perplexity,
            "unknown": sentence.unknown,
        }
    ]


def delimited(table: Sequence[Row], delimiter: str = ",") -> str:
    """As CSV or, with a tab, as TSV."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(table[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return file.getvalue()


def write_parquet(path: Path, table: Sequence[Row]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InfolmError(
            f"writing {path} needs PyArrow: pip install 'infolm[parquet]', or use --csv"
        ) from error
    columns = pyarrow.Table.from_pylist(list(table))
    files.replace(path, lambda temporary: parquet.write_table(columns, temporary))


# -- pictures --------------------------------------------------------------------------------


def write_plot(path: Path, sentences: Sequence[ScoredSentence]) -> None:
    """The words' surprisals: as bars in a .png or .svg, of the first DRAWN sentences, or as shaded
    text in an .html."""
    if path.suffix == ".html":
        text = as_page(sentences)
        files.replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    elif path.suffix in (".png", ".svg"):
        _draw(path, sentences[:DRAWN])
    else:
        raise InfolmError(f"--plot {path}: name a .png, .svg or .html file")


def _draw(path: Path, sentences: Sequence[ScoredSentence]) -> None:
    try:
        import matplotlib
        from matplotlib.figure import Figure

        from infolm.reports.curves import INK, MUTED, STYLE
    except ImportError as error:
        raise InfolmError(
            f"drawing {path} needs matplotlib: pip install 'infolm[report]', or name an .html file"
        ) from error
    panels = [
        (sentence, number, sentence.words[start : start + PER_PANEL])
        for number, sentence in enumerate(sentences, 1)
        for start in range(0, len(sentence.words), PER_PANEL)
    ]
    highest = max(word.surprisal for _, _, words in panels for word in words)
    widest = max(len(words) for _, _, words in panels)
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "y"}):
        figure = Figure(
            figsize=(max(4.0, 0.62 * widest + 0.9), 1.75 * len(panels)), layout="constrained"
        )
        for axes, (sentence, number, words) in zip(
            figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True
        ):
            colours = [_hex(shade(word.surprisal, sentence.unit)) for word in words]
            heights = [word.surprisal for word in words]
            axes.bar(
                range(len(words)), heights, 0.86, color=colours, edgecolor=MUTED, linewidth=0.4
            )
            for x, height in enumerate(heights):
                axes.annotate(
                    f"{height:.1f}",
                    (x, max(height, 0)),
                    (0, 2),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7,
                    color=MUTED,
                )
            long = max(len(word.word) for word in words) > 8
            axes.set_xticks(
                range(len(words)),
                [_label(word) for word in words],
                rotation=35 if long else 0,
                ha="right" if long else "center",
                rotation_mode="anchor",
                color=INK,
            )
            axes.set_xlim(-0.6, widest - 0.4)
            axes.set_ylim(min(0.0, *heights), highest * 1.15 or 1)
            axes.set_axisbelow(True)
            axes.tick_params(length=0)
            axes.set_ylabel(f"{number}: {sentence.unit}")
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        kind = path.suffix[1:]
        metadata = nothing if kind == "svg" else None
        files.replace(path, lambda to: figure.savefig(to, format=kind, dpi=160, metadata=metadata))


def _label(word: ScoredWord) -> str:
    return f"[{word.word}]" if word.unknown else word.word


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


_STYLE = """<style>
.scored { margin: 1.1rem 0; line-height: 2.6; }
.scored .word { display: inline-block; margin: 0 .12rem .35rem 0; padding: .05rem .3rem;
  border-radius: .2rem; line-height: 1.35; text-align: center; }
.scored .word small { display: block; font-size: .68rem; opacity: .8; }
.scored .unknown { text-decoration: underline wavy; }
</style>"""


def as_page(sentences: Sequence[ScoredSentence]) -> str:
    """A page of shaded text; what was likelier shows when the pointer rests on a word."""
    unit = sentences[0].unit
    html = [
        _STYLE,
        "<h1>Surprisal</h1>",
        page.paragraph(
            f"Below each word is its surprisal in {unit}. {escape(sentences[0].convention)}.",
            "note",
        ),
    ]
    for number, sentence in enumerate(sentences, 1):
        words = "".join(_marked(sentence, i, word) for i, word in enumerate(sentence.words))
        told = f"{number}: {sentence.surprisal:.1f} {unit}, {len(sentence.tokens)} tokens"
        html.append(f'<div class="scored">{words}</div>{page.paragraph(told, "note")}')
    return page.page("Surprisal", html)


def _marked(sentence: ScoredSentence, i: int, word: ScoredWord) -> str:
    colour = shade(word.surprisal, sentence.unit)
    ink = "#fff" if dark(colour) else "#1b1d20"
    lines = [
        f"{t.token}  {t.surprisal:.2f} {sentence.unit}"
        + (f", rank {t.rank:,}" if t.rank else "")
        + (f"; likelier: {', '.join(a.token for a in t.top)}" if t.top else "")
        for t in sentence.tokens
        if t.word == i
    ]
    kind = "word unknown" if word.unknown else "word"
    return (
        f'<span class="{kind}" style="background:{_hex(colour)};color:{ink}" '
        f'title="{escape(chr(10).join(lines), quote=True)}">{escape(word.word)}'
        f"<small>{word.surprisal:.1f}</small></span>"
    )
