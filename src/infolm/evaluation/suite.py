"""All requested measurements of a model on splits of its corpus."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from lightning_fabric import Fabric

from infolm.data.corpora import Corpus, Split, Truth
from infolm.data.episodes import sentence_bounds
from infolm.data.ingest import Report
from infolm.data.pairs import HeldOutPairs
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation.dynamic import Statistics
from infolm.evaluation.episodic import episodes, episodic_log_probs
from infolm.evaluation.generated import TokenText, information_measurements
from infolm.evaluation.kneser_ney import KneserNey
from infolm.evaluation.likelihood import Progress, parallel_log_probs
from infolm.evaluation.measurement import (
    EPISODIC,
    OF_TEXT,
    Measurement,
    TextSize,
    language_measurements,
    likelihood_measurements,
)
from infolm.evaluation.method import STATIC, Method, Reading, diverged, measure, walk
from infolm.evaluation.monte_carlo import MonteCarloSettings
from infolm.evaluation.neural_cache import CacheSettings, WordChange, tune, word_table
from infolm.evaluation.reverse import SMALL, Rows, Yardstick, reverse_measurements, yardstick
from infolm.evaluation.temperature import GRID, best_temperature, interpolated
from infolm.metrics import Described, describe, described
from infolm.models.language import LanguageModel
from infolm.nn.softmax import Tempering
from infolm.objectives.bmi import Bmi

WARM_UP = 200
"""Tokens that each of several parallel streams reads before it counts."""
TUNING_TOKENS = 250_000
"""Most tokens for tuning the cache; their outputs are held in memory."""
TEMPERATURE_TOKENS = 50_000
"""Most tokens for tuning the temperature, which determine it to a few thousandths."""
DEAR_TOKENS = 5_000
"""Most tokens for both with dynamic evaluation or many dropout samples."""
FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
"""Factors of the dropout rates in Monte Carlo dropout that are tried first."""
NGRAM_ORDER = 5
BASELINE = f"Kneser-Ney {NGRAM_ORDER}-gram"
LANGUAGE = "the language itself"
CRITIC = "critic_"
OF_CRITIC = ("accuracy", "jensen_shannon", "mine")
"""Metrics of BMI's critic; each name begins with `CRITIC`."""
for _quantity in (described(f"bmi/{name}") for name in OF_CRITIC):
    _unit = ", nats" if _quantity.unit == "nats" else ""
    _metric = f"{CRITIC}{_quantity.name}"
    describe("language", replace(_quantity, name=_metric, heading=f"{_quantity.label}{_unit}"))
describe("language", Described("unknown_share", unit="share of tokens", better="down"))
CRITIC_CONVENTION = (
    "each sentence read by itself without dropout, compared with the next one and with random ones "
    "of the split; accuracy: both kinds of pairs weigh alike, a score of 0 counts a half; "
    "jensen_shannon: eq. 6 of BMI, -1.386 where the critic knows nothing; mine: eq. 4, a lower "
    "bound on the mutual information of neighbouring sentences, one mean of e^D over all random "
    "pairs; the error is from the spread over groups of pairs"
)

TrueLogProbs = Mapping[str, npt.NDArray[np.float64]]
"""For each split, ln p of its tokens but the first under the language they were drawn from."""


@dataclass(frozen=True)
class Subject:
    """The model to measure, and how a text is walked through.

    chunk: tokens read at a time. statistics: for dynamic evaluation by the rms rule.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    chunk: int
    report: Report
    statistics: Statistics | None = None

    def progress(self, stage: str) -> Progress:
        return lambda done, total: self.report(stage, done, total)


def text_size(split: Split, tokenizer: Tokenizer, whole: bool = False) -> TextSize | None:
    """The raw text's length behind the predicted tokens: all but the first, or the `whole` split.

    None if tokens do not spell it out. Words are counted if they are separated by blanks: not in
    a text that has a line for every word, or another character for the blank, as `ptb-char`.
    """
    if tokenizer.kind == "word" or split.unknown:
        return None
    first = "" if whole else tokenizer.decode(split.tokens[:1])
    first_bytes = 1 if tokenizer.kind == "byte" and not whole else len(first.encode())
    words = split.words + split.lines if split.words > split.lines else None
    return TextSize(split.characters - len(first), split.bytes - first_bytes, words)


def tuned_temperature(
    subject: Subject,
    tokens: npt.NDArray[np.integer],
    method: Method,
    tempering: Tempering = "mixture",
) -> float:
    """The best softmax temperature for the walk of `method` on `tokens`, of validation.

    Exact for a static walk; for others from the losses at a few temperatures, in one walk.
    """
    progress = subject.progress(f"tuning the temperature on the validation split ({method})")
    static = method == STATIC
    tokens = tokens[: (TEMPERATURE_TOKENS if static else DEAR_TOKENS) + 1]
    chunks = walk(
        subject.model,
        tokens,
        method,
        subject.chunk,
        (1.0,) if static else GRID,
        subject.statistics,
        report=progress,
        tempering=tempering,
    )
    if static:
        parts = [(hidden, targets) for _, hidden, targets in chunks]
        hidden, targets = (torch.cat(column) for column in zip(*parts, strict=True))
        return best_temperature(subject.model, hidden, targets, tempering=tempering)
    total = torch.stack([log_probs.double().sum(1) for log_probs, *_ in chunks]).sum(0)
    if total.isfinite().sum() < 2:
        raise diverged(method)
    return interpolated(GRID, (-total).tolist())


def tuned_episodic_temperature(
    subject: Subject,
    tokens: npt.NDArray[np.integer],
    after: int | None,
    tempering: Tempering = "mixture",
) -> float:
    """The same for sentences read one by one, as many as are whole within the limit."""
    progress = subject.progress("tuning the temperature on the validation split")
    bounds = sentence_bounds(tokens, subject.tokenizer.eos)
    tokens = tokens[: max(bounds[1], bounds[bounds <= TEMPERATURE_TOKENS][-1])]
    read = list(episodes(subject.model, tokens, subject.tokenizer.eos, after, progress))
    hidden = torch.cat([each.hidden for each in read])
    targets = torch.cat([each.targets for each in read])
    return best_temperature(subject.model, hidden, targets, tempering=tempering)


def tuned_dropout_factor(
    subject: Subject, tokens: npt.NDArray[np.integer], samples: MonteCarloSettings
) -> float:
    """The best factor of the dropout rates in Monte Carlo dropout, by the loss on `tokens`, of
    validation (Melis et al. 2018), with as many masks.

    Of FACTORS, and then of those half a step to either side of the best. 0 is the model itself. A
    factor that would raise a rate to 1 is not tried. All are measured with the same seed. The walk
    is without dynamic evaluation, the temperature 1.
    """
    tokens, losses = tokens[: DEAR_TOKENS + 1], dict[float, float]()
    highest = max(vars(subject.model.rates).values())
    half = (FACTORS[1] - FACTORS[0]) / 2
    progress = subject.progress("tuning the factor of the dropout rates on the validation split")

    def measure(factor: float) -> None:
        if factor >= 0 and factor * highest < 1:
            method = Method(monte_carlo=replace(samples, rate=factor))
            chunks = walk(subject.model, tokens, method, subject.chunk)
            losses[factor] = -sum(float(chunk.log_probs.double().sum()) for chunk in chunks)
        progress(len(losses), len(FACTORS) + 2)

    for factor in FACTORS:
        measure(factor)
    best = min(losses, key=lambda factor: losses[factor])
    measure(best - half)
    measure(best + half)
    progress(len(FACTORS) + 2, len(FACTORS) + 2)
    return min(losses, key=lambda factor: losses[factor])


def tuned_cache(subject: Subject, tokens: npt.NDArray[np.integer], method: Method) -> CacheSettings:
    """The best cache for `method`, which has none, on `tokens`, of validation."""
    dear = method.dynamic or method.monte_carlo
    tokens = tokens[: (DEAR_TOKENS if dear else TUNING_TOKENS) + 1]
    chunks = walk(
        subject.model,
        tokens,
        method,
        subject.chunk,
        (method.temperature,),
        subject.statistics,
        tempering=method.tempering,
        report=subject.progress(f"tuning the cache on the validation split ({method})"),
    )
    parts = [(log_probs[0], hidden, targets) for log_probs, hidden, targets in chunks]
    log_model, hidden, targets = (torch.cat(column) for column in zip(*parts, strict=True))
    settings, _ = tune(log_model, hidden, targets)
    return settings


def true_log_probs(truth: Truth | None, corpus: Corpus, names: Sequence[str]) -> TrueLogProbs:
    """For the splits named; empty where the language is not known."""
    return {name: truth.log_probs(corpus.splits[name].tokens) for name in names} if truth else {}


def language(truth: Truth | None, true: TrueLogProbs) -> list[Measurement]:
    """The result of a perfect model on each split; empty if the language is not known."""
    return [
        measured
        for name, log_p in true.items()
        if truth
        for measured in language_measurements(log_p, truth.entropy, name, LANGUAGE)
    ]


def baseline(
    corpus: Corpus, names: Sequence[str], true: TrueLogProbs, report: Report | None = None
) -> list[Measurement]:
    """A Kneser-Ney model of the training split, measured on the splits named."""
    if report:
        report(BASELINE, 0, 1)
    ngrams = KneserNey.fit(corpus.splits["train"].tokens, len(corpus.tokenizer), NGRAM_ORDER)
    results = []
    for name in names:
        split = corpus.splits[name]
        log_p, size = ngrams.log_probs(split.tokens), text_size(split, corpus.tokenizer)
        results += likelihood_measurements(log_p, name, BASELINE, size, true.get(name))
    if report:
        report(BASELINE, 1, 1)
    return results


def evaluate(
    subject: Subject,
    split: Split,
    name: str,
    methods: Sequence[Method],
    true: npt.NDArray[np.float64] | None = None,
) -> tuple[list[Measurement], list[WordChange]]:
    """Measurements of one split by each of `methods`, in their order, and the cache's effect on
    each word of it: the static model with a cache against without, if both are among them.

    Methods whose walks are the same share one. true: see `likelihood_measurements`.
    """
    check(split, name)
    readings = read_by(subject, split.tokens, f"the {name} split", methods)
    size, results = text_size(split, subject.tokenizer), []
    for method in methods:
        reading = readings[method]
        results += likelihood_measurements(reading.log_probs, name, str(method), size, true)
        if reading.sampling_error is not None:
            error = replace(results[-1], metric="sampling_error", unit="nats per token")
            results.append(replace(error, value=reading.sampling_error, stderr=None))
    return results, word_changes(readings, split)


def evaluate_text(
    subject: Subject,
    text: Split,
    name: str,
    methods: Sequence[Method],
    streams: int = 1,
    ngrams: KneserNey | None = None,
) -> tuple[list[Measurement], list[str]]:
    """Measurements of a text outside the model's corpus, by each of `methods`, and warnings on
    comparability. streams, ngrams: see `evaluate_parallel`, `baseline`.

    Bits per character and byte are given whatever the tokens are, with a warning where these do
    not spell out the text.
    """
    tokens = np.append(subject.tokenizer.eos, text.tokens)
    words = text.words + text.lines if text.words > text.lines else None
    size = TextSize(text.characters, text.bytes, words)
    found: dict[str, npt.NDArray[np.float64]] = {}
    if ngrams:
        found[BASELINE] = ngrams.log_probs(tokens)
    if streams > 1:
        progress = subject.progress(f"reading {name}")
        found[f"static, {streams} parallel streams, warm-up of {WARM_UP} tokens"] = (
            parallel_log_probs(subject.model, tokens, streams, WARM_UP, subject.chunk, progress)
        )
    else:
        readings = read_by(subject, tokens, name, methods)
        found |= {str(method): readings[method].log_probs for method in methods}
    results = [
        measured
        for method, log_probs in found.items()
        for measured in likelihood_measurements(log_probs, name, method, size, None, OF_TEXT)
    ]
    share = text.unknown / len(text.tokens)
    unknown = "tokens that the vocabulary lacks, over all tokens"
    tail = (None, len(text.tokens), name, "vocabulary", unknown)
    results.append(Measurement("unknown_share", share, "share of tokens", *tail))
    return results, text_warnings(subject.tokenizer, text, name)


def text_warnings(tokenizer: Tokenizer, text: Split, name: str) -> list[str]:
    """Warnings that a text's measurements are not comparable with others."""
    warnings = []
    if text.unknown:
        share = text.unknown / len(text.tokens)
        warnings.append(
            f"{share:.1%} of the tokens of {name} are not in the vocabulary and count as <unk>, "
            "which is likelier than the word itself: compare these numbers only with those of "
            "models that have the same vocabulary, or train on bytes or byte pairs"
        )
    elif tokenizer.kind == "word":
        warnings.append(
            "words do not tell the white space between them, which the bits per character and byte "
            "leave out"
        )
    if tokenizer.lowercase:
        warnings.append("the text was lower-cased, so the cost of capitals is left out")
    return warnings


def read_by(
    subject: Subject, tokens: npt.NDArray[np.integer], name: str, methods: Sequence[Method]
) -> dict[Method, Reading]:
    """The text `tokens` (N,) by each of `methods`; those whose walks are the same share one."""
    readings: dict[Method, Reading] = {}
    for each in dict.fromkeys(method.walk for method in methods):
        group = [method for method in methods if method.walk == each]
        progress = subject.progress(f"reading {name} ({Method(*each)})")
        found = measure(subject.model, tokens, group, subject.chunk, subject.statistics, progress)
        readings.update(zip(group, found, strict=True))
    return readings


def word_changes(readings: Mapping[Method, Reading], split: Split) -> list[WordChange]:
    """The cache's effect on each word, with the static model; empty if it was not measured."""
    targets = torch.from_numpy(split.tokens[1:].astype(np.int64))
    for method, reading in readings.items():
        if method.cache and method == Method(cache=method.cache):
            plain, mixed = (torch.from_numpy(r.log_probs) for r in (readings[STATIC], reading))
            return word_table(plain, mixed, targets)
    return []


def evaluate_parallel(
    subject: Subject,
    split: Split,
    name: str,
    streams: int,
    true: npt.NDArray[np.float64] | None = None,
) -> list[Measurement]:
    """The static model on one split, read as parallel streams: faster, approximate."""
    check(split, name)
    progress = subject.progress(f"reading the {name} split")
    log_p = parallel_log_probs(
        subject.model, split.tokens, streams, WARM_UP, subject.chunk, progress
    )
    method = f"static, {streams} parallel streams, warm-up of {WARM_UP} tokens"
    size = text_size(split, subject.tokenizer)
    return likelihood_measurements(log_p, name, method, size, true)


def evaluate_episodic(
    subject: Subject,
    split: Split,
    name: str,
    after: int | None,
    temperatures: Sequence[float],
    tempering: Tempering = "mixture",
) -> list[Measurement]:
    """One split sentence by sentence, at each temperature; see `episodic_log_probs`."""
    check(split, name)
    eos, results = subject.tokenizer.eos, []
    convention, size = EPISODIC, text_size(split, subject.tokenizer, whole=True)
    if after is not None:
        token = subject.tokenizer.token(after)
        convention, size = f"only what follows {token} in its sentence counts; {EPISODIC}", None
    for temperature in temperatures:
        progress = subject.progress(f"reading the {name} split at temperature {temperature:.4g}")
        log_p = episodic_log_probs(
            subject.model, split.tokens, eos, after, temperature, progress, tempering
        )
        method = Method(temperature=temperature, tempering=tempering).parts.get(
            "temperature", "static"
        )
        results += likelihood_measurements(
            log_p, name, f"{method}, each sentence by itself", size, None, convention
        )
    return results


def reverse(
    subject: Subject,
    text: Rows,
    source: str,
    splits: Mapping[str, Split],
    true: TrueLogProbs,
    seed: int,
    fabric: Fabric,
    size: Yardstick = SMALL,
) -> list[Measurement]:
    """Measure a new model trained on `text` (S, T) on each of `splits`."""
    for name, split in splits.items():
        check(split, name)
    types, results = len(subject.tokenizer), []
    progress = subject.progress(f"learning from {source}")
    model = yardstick(text, types, seed, fabric, progress, size)
    for name, split in splits.items():
        progress = subject.progress(f"reading the {name} split with what {source} taught")
        raw = text_size(split, subject.tokenizer)
        results += reverse_measurements(
            model, split.tokens, name, source, raw, true.get(name), progress
        )
    return results


def information(
    subject: Subject, text: Rows, split: str, source: str, seed: int, stride: int | None = None
) -> tuple[list[Measurement], list[str]]:
    """The mutual information of the segments of `text` (S, T), and warnings.

    stride: tokens from pair to pair; None: as in `text_information`.
    """
    tokenizer = subject.tokenizer
    tokens = TokenText(source, split, tokenizer.kind, text, len(tokenizer))

    def report(bound: str, done: int, total: int) -> None:
        subject.report(f"reading pairs of segments of {source} ({bound})", done, total)

    results, warning = information_measurements(tokens, split, source, seed, report, stride)
    return results, [f"the mutual information of {source}: {warning}"] if warning else []


def critic(subject: Subject, bmi: Bmi, pairs: HeldOutPairs, name: str) -> list[Measurement]:
    """Measure a run's BMI critic on neighbouring sentences of the split `name`."""
    found = bmi.read(subject.model, pairs)
    random = pairs.first.shape[1] - 1
    method = f"critic of BMI, {pairs.pairs:,} pairs of neighbours, {random} random for each"
    return [
        Measurement(
            f"{CRITIC}{metric}",
            found[metric].value,
            described(f"bmi/{metric}").unit,
            found[metric].stderr,
            pairs.tokens,
            name,
            method,
            CRITIC_CONVENTION,
        )
        for metric in OF_CRITIC
    ]


def check(split: Split, name: str) -> None:
    if len(split.tokens) < 2:
        raise InfolmError(f"the {name} split has no token to predict: it needs at least two")
