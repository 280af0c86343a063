"""The mutual information of segments of a text, real or generated (BMI, section 5.2).

    text = read_text("sample.txt")
    text_information(text, length=40, gap=10).estimates[0].value     # nats

A model whose text keeps to its subject has about as much of it as its training text.
"""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from infolm.data import corpora, ingest
from infolm.data.corpora import DataConfig
from infolm.data.ingest import Report, Text
from infolm.data.tokens import Kind, Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation.measurement import Measurement
from infolm.information.estimate import Estimate, Unit
from infolm.information.languages import Language
from infolm.information.neural import Kind as Bound
from infolm.information.neural import fewest_rows
from infolm.information.registry import ESTIMATORS, entry
from infolm.information.segments import Segments, Tokens, check_segments, segment_pairs
from infolm.metrics import Described, describe
from infolm.section import nearest

BOUNDS = tuple(name for name, each in ESTIMATORS.items() if each.neural and name != "club")
"""The estimators that work on tokens."""
BMI_BOUND, LENGTH, GAP, FOLDS = "js-dv", 40, 10, 10
NATS: dict[Unit, float] = {"nats": 1.0, "bits": math.log(2)}
METRIC = "mutual_information"
describe(
    "language",
    Described(METRIC, unit="nats", heading="mutual information, nats"),
    Described(f"{METRIC}_shuffled", "the same of shuffled pairs", "nats"),
)
CONVENTION = (
    f"segments of {LENGTH} tokens with {GAP} between, a pair every {{stride}} tokens to learn from"
    "; a lower bound read on pairs that share no token with each other or with those its critic "
    f"learnt from, the mean of {FOLDS} folds; shuffled: of segments paired at random, one fold"
)
OVERLAPPING = 6
"""About how many pairs span a token, unless a stride is given: BMI's 90 tokens every 15. Of short
segments far apart there are more: a pair begins at least every segment's length."""
MOST_PAIRS, MOST_READ = 100_000, 20_000
"""Training and test pairs of a long text, unless a stride is given."""


@dataclass(frozen=True, eq=False)
class TokenText:
    """A text as tokens.

    split: of a corpus; None for a file. tokens: 0 to types - 1, (T,), or (S, T) with a separate
    text in each row. language: the language it was drawn from, if known and its symbols are the
    tokens.
    """

    name: str
    split: str | None
    kind: Kind
    tokens: npt.NDArray[np.integer[Any]]
    types: int
    language: Language | None = None


def read_text(
    source: str,
    split: str | None = None,
    tokens: Kind | None = None,
    vocabulary: int | None = None,
    pretokenised: bool | None = None,
    report: Report | None = None,
) -> TokenText:
    """A split of a registered corpus, `train` by default, or a whole file with its own vocabulary.

    tokens: the kind of token; by default that of the corpus's published results, and words for a
    file. vocabulary: the maximum number of types, `<unk>` and `<eos>` included. pretokenised: words
    are separated by blanks; by default as the corpus needs it, and false for a file.
    """
    info, path = corpora.registry().get(source), Path(source)
    try:
        config = DataConfig(
            corpus=source if info else None,
            path=None if info else path,
            tokens=tokens or (info.tokens if info else "word"),
            vocabulary=vocabulary,
            pretokenised=pretokenised,
        )
    except ValidationError as error:
        raise InfolmError(_faults(error)) from None
    if info is None:
        return _read_file(path, split, config, report or _silent)
    corpus = corpora.load(config, report)
    split = split or "train"
    if split not in corpus.splits:
        raise InfolmError(f"the splits of {source} are {', '.join(corpus.splits)}, not '{split}'")
    truth = corpora.truth(config, corpus.tokenizer)
    return TokenText(
        source,
        split,
        config.tokens,
        corpus.splits[split].tokens,
        len(corpus.tokenizer),
        truth.language if truth else None,
    )


def _faults(error: ValidationError) -> str:
    def told(key: str, message: str) -> str:
        message = message.removeprefix("Value error, ")
        return f"{key}: {message[0].lower()}{message[1:]}" if key else message

    return "; ".join(told(".".join(map(str, e["loc"])), e["msg"]) for e in error.errors())


def _silent(stage: str, done: int, total: int) -> None:
    pass


def _read_file(path: Path, split: str | None, config: DataConfig, report: Report) -> TokenText:
    if not path.is_file():
        known = corpora.registry()
        what = f"{path} is a folder" if path.is_dir() else f"there is no file or corpus '{path}'"
        raise InfolmError(
            f"{what}{nearest(path, known)} (give a text file or one of {', '.join(known)})"
        )
    if split is not None:
        raise InfolmError(
            f"{path} is a file and read whole, and only a corpus has splits: leave the split out"
        )
    text = Text.whole(path)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        tokenizer = ingest.make_tokenizer(
            [text],
            config.tokens,
            config.vocabulary,
            lowercase=False,
            pretokenised=bool(config.pretokenised),
            scratch=scratch,
            workers=None,
            report=report,
        )
        return TokenText(
            str(path),
            None,
            config.tokens,
            _encoded(text, tokenizer, scratch, report),
            len(tokenizer),
        )


def _encoded(
    text: Text, tokenizer: Tokenizer, scratch: Path, report: Report
) -> npt.NDArray[np.integer[Any]]:
    saved = scratch / "tokenizer.json"
    tokenizer.save(saved)
    chunks = [piece for shard in ingest.shards([text], tokenizer.kind) for piece in shard]
    parts = [part for part, _ in ingest.encode(chunks, saved, "encoding", None, report)]
    return np.concatenate([np.empty(0, np.uint16), *parts])


@dataclass(frozen=True)
class TextInformation:
    """I(X; Y) of segments X and Y of a text, `length` tokens each with `gap` tokens between.

    stride: tokens from one pair to the next. pairs: the number of training pairs; the estimates'
    `samples` are the test pairs, which share no token. exact: the truth, if known.
    """

    length: int
    gap: int
    stride: int
    pairs: int
    exact: float | None
    estimates: list[Estimate]
    unit: Unit = "nats"

    def to(self, unit: Unit) -> "TextInformation":
        scale = NATS[self.unit] / NATS[unit]
        return replace(
            self,
            exact=None if self.exact is None else scale * self.exact,
            estimates=[estimate.to(unit) for estimate in self.estimates],
            unit=unit,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_text(
    bounds: Sequence[str] = (BMI_BOUND,),
    length: int = LENGTH,
    gap: int = GAP,
    stride: int | None = None,
) -> None:
    """Check the arguments of `text_information` before a text is read."""
    for bound in bounds:
        entry(bound)
        if bound not in BOUNDS:
            raise InfolmError(
                f"{bound} needs rows of numbers, not tokens: for text choose among "
                f"{', '.join(BOUNDS)}"
            )
    check_segments(length, gap, stride)


def text_information(
    text: TokenText,
    bounds: Sequence[str] = (BMI_BOUND,),
    length: int = LENGTH,
    gap: int = GAP,
    stride: int | None = None,
    report: Report | None = None,
    **settings: Any,
) -> TextInformation:
    """Estimate it by each of the bounds; the defaults are BMI's.

    By default the pairs overlap as `OVERLAPPING` says, and a long text gives `MOST_PAIRS` training
    pairs and `MOST_READ` test pairs, evenly spread. Test pairs share no token with each other or
    with training pairs. With a stride of 2 length + gap or more no pairs overlap at all.
    settings: of `Segments`: folds, steps, seed, critic.
    """
    check_text(bounds, length, gap, stride)
    span = 2 * length + gap
    read = text.tokens.size if stride else MOST_READ
    stride = stride or max(1, min(span // OVERLAPPING, length), text.tokens.size // MOST_PAIRS)
    overlap = (span - 1) // stride
    x, y, apart = _pairs(text, length, gap, stride, overlap, read)
    estimates = [
        Segments(
            text.types,
            cast(Bound, bound),
            overlap=overlap,
            progress=partial(report, bound) if report else None,
            **settings,
        ).estimate(x, y, apart)
        for bound in bounds
    ]
    truth = exact(text.language, length, gap)
    return TextInformation(length, gap, stride, len(x), truth, estimates)


def least_tokens(rows: int, stride: int | None = None) -> int:
    """The least tokens of a text with this many rows for `information_measurements`."""
    span = 2 * LENGTH + GAP
    stride = stride or span // OVERLAPPING
    step = stride * math.ceil(span / stride)  # between test pairs
    return rows * (step * (math.ceil(fewest_rows(FOLDS) / rows) - 1) + span)


def information_measurements(
    text: TokenText,
    split: str,
    source: str,
    seed: int,
    report: Report | None = None,
    stride: int | None = None,
) -> tuple[list[Measurement], str | None]:
    """The mutual information of a text's segments as BMI measures it, and the control, which is 0
    but for the estimator's error: shuffled pairs, by one fold; also the estimator's warning.

    source: the text, as in the method's name.
    """
    result = text_information(text, stride=stride, report=report, folds=FOLDS, seed=seed)
    (found,) = result.estimates
    method = f"{found.estimator}, {found.samples:,} pairs of segments of {source}"
    told = (text.tokens.size, split, method, CONVENTION.format(stride=result.stride))
    return [
        Measurement(METRIC, found.value, found.unit, found.stderr, *told),
        Measurement(f"{METRIC}_shuffled", found.permuted, found.unit, None, *told),
    ], found.warning


def _pairs(
    text: TokenText, length: int, gap: int, stride: int, overlap: int, read: int
) -> tuple[Tokens, Tokens, npt.NDArray[np.intp]]:
    """`segment_pairs` of every row of the text: no pair has its segments in two of them.

    Also the indices of pairs of which no two share a token, one in overlap + 1 of each row, or
    fewer where that would be more than about `read` in all.
    """
    rows = np.atleast_2d(text.tokens)
    x, y = zip(*(segment_pairs(row, length, gap, stride) for row in rows), strict=True)
    places = np.arange(len(rows) * len(x[0])).reshape(len(rows), -1)
    every = max(overlap + 1, math.ceil(places.size / read))
    return np.concatenate(x), np.concatenate(y), places[:, ::every].flatten()


def exact(language: Language | None, length: int, gap: int) -> float | None:
    """The mutual information of two segments of a language, in nats.

    None if it is not known: for real text, for the grammar, and for a hidden Markov model whose
    segments are too long to enumerate.
    """
    known = getattr(language, "segment_information", None)
    try:
        return None if known is None else float(known(length, gap, length))
    except InfolmError:
        return None
