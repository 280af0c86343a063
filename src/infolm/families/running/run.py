"""A run of a language model: evaluation with tuned methods, scoring, generation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from infolm.data.corpora import Split, load, read_text, registry, truth
from infolm.data.ingest import Report
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation import measurement, suite
from infolm.evaluation.generated import least_tokens
from infolm.evaluation.kneser_ney import KneserNey
from infolm.evaluation.likelihood import Progress
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.neural_cache import WordChange
from infolm.evaluation.reverse import LEAST_TOKENS, Rows, Yardstick, stretches
from infolm.evaluation.scoring import ScoredSentence
from infolm.evaluation.suite import Subject
from infolm.families.base import Evaluation, Run, Table, Writing, family_of, settings_of
from infolm.families.running.options import (
    LanguageEvaluateOptions,
    LanguageGenerateOptions,
)
from infolm.families.running.scoring import NeuralScorer, ScoreSettings, sentences_of
from infolm.families.running.tuned import TunableRun
from infolm.generation.text import STREAMS, stream, unknown_words, write, write_long
from infolm.objectives.bmi import Bmi, BmiConfig
from infolm.section import nearest
from infolm.training import processes
from infolm.training.device import one_device

BMI = BmiConfig.kind
WRITTEN = "generated"
"""The split name of generated text."""


@dataclass(frozen=True)
class LanguageRun(TunableRun):
    """A run of a language model opened for use."""

    @classmethod
    def refusal(cls, run: Run) -> str:
        return (
            f"is {family_of(run.recipe).a}, and this needs a language model of running "
            "text: choose another run"
        )

    @property
    def _bmi_config(self) -> BmiConfig | None:
        return cast(BmiConfig | None, self.recipe.regularisers.chosen().get(BMI))

    def bmi(self) -> Bmi:
        """The run's regulariser with its trained critic."""
        config, folder = self._bmi_config, self.folder
        if config is None:
            raise InfolmError(
                f"{folder.path} was trained without BMI, and has no critic: "
                "train one with regularisers.bmi.weight=0.1"
            )
        if not folder.learner(BMI).exists():
            raise InfolmError(
                f"{folder.learner(BMI)}, the critic, is missing: restore it from a copy, or "
                "train the run "
                "anew"
            )
        bmi = Bmi(config, self.model)
        bmi.load_state_dict(folder.load_learner(BMI))
        bmi.critic.eval()
        return bmi

    def score(self, texts: str | Sequence[str], **options: Any) -> list[ScoredSentence]:
        """options: the fields of `ScoreSettings`: context, eos, unit, top, and methods."""
        settings = settings_of(ScoreSettings, options)
        return NeuralScorer(self).score(sentences_of(texts), settings)

    def measure(self, options: LanguageEvaluateOptions, report: Report) -> Evaluation:
        """Measure the static model, each method asked for, and generated text; see `suite`."""
        if options.text:
            return self._measure_text(options, report)
        splits, chunk, streams = options.splits, options.chunk, options.streams
        episodic = options.episodic or self.recipe.feed.episodic
        _check(options, episodic)
        self._check_text(options)
        known = truth(self.recipe.data, self.tokenizer)
        true = suite.true_log_probs(known, self.corpus, splits)
        results: list[Measurement] = []
        changes: list[WordChange] = []
        if options.baseline:
            results += suite.baseline(self.corpus, splits, true, report)
        after, temperatures = self._episodes(options, report) if episodic else (None, [])
        methods = [] if episodic else self.methods(options, report)
        subject = self._subject(chunk, report, *methods[-1:])
        for name in splits:
            split = self.corpus.splits[name]
            if episodic:
                results += suite.evaluate_episodic(
                    subject, split, name, after, temperatures, self._tempering(options)
                )
            elif streams > 1:
                results += suite.evaluate_parallel(subject, split, name, streams, true.get(name))
            else:
                measured, changes = suite.evaluate(subject, split, name, methods, true.get(name))
                results += measured
        results += suite.language(known, true)
        results += self._of_critic(subject, splits)
        found, warnings = self._of_texts(subject, options, true)
        results += found
        order = [*splits, WRITTEN, "train"]
        results.sort(key=lambda result: order.index(result.split))
        if processes.first():
            measurement.keep(self.folder.measurements, results)
        shown = changes and options.words
        tables = [_words(changes, self.tokenizer, options.words)] if shown else []
        return Evaluation(results, warnings, tables)

    def _measure_text(self, options: LanguageEvaluateOptions, report: Report) -> Evaluation:
        """Measure another text in the run's vocabulary; the results are not kept with the run."""
        _check(options, episodic=False)
        texts = self._other_texts(options, report)
        methods = self.methods(options, report)
        subject = self._subject(options.chunk, report, methods[-1])
        ngrams = None
        if options.baseline:
            train = self.corpus.splits["train"].tokens
            ngrams = KneserNey.fit(train, len(self.tokenizer), suite.NGRAM_ORDER)
        results: list[Measurement] = []
        warnings: list[str] = []
        for name, text in texts.items():
            found, said = suite.evaluate_text(subject, text, name, methods, options.streams, ngrams)
            results += found
            warnings += said
        return Evaluation(results, list(dict.fromkeys(warnings)))

    def _other_texts(self, options: LanguageEvaluateOptions, report: Report) -> Mapping[str, Split]:
        """A whole file, or the requested splits of a corpus, by name."""
        wanted = str(options.text)
        if Path(wanted).is_file():
            if options.split:
                raise InfolmError(
                    f"--split is for a corpus, and {wanted} is one text: leave it out"
                )
            return {Path(wanted).name: read_text(Path(wanted), self.tokenizer, options.field)}
        if wanted not in registry():
            raise InfolmError(
                f"--text {wanted} is neither a file nor a corpus{nearest(wanted, registry())}: "
                "`infolm corpora` lists the corpora"
            )
        own = {"corpus": wanted, "path": None, "reverse_copy": None, "uniform": None}
        data = self.recipe.data.model_copy(update=own)
        corpus = load(data, report, tokenizer=self.tokenizer)
        return {f"{wanted} {split}": corpus.splits[split] for split in options.splits}

    def write(self, options: LanguageGenerateOptions, report: Report) -> Writing:
        """Continuations of the prompt."""
        o, cache = options, None
        if o.cache:
            cache = self.cache_settings(o.cache, LanguageEvaluateOptions.chunk, report)
        sampling = o.settings(self.tokenizer)
        texts = write(
            self.model, self.tokenizer, o.prompt, o.tokens, o.num, o.seed, sampling, cache
        )
        echo = "" if o.no_echo else o.prompt
        shown = [(echo + text).strip("\n ") for text in texts]
        if o.num > 1:
            shown = [f"--- {i} ---\n{text}" for i, text in enumerate(shown, 1)]
        records = [{"prompt": o.prompt, "text": text} for text in texts]
        said = unknown_words(self.tokenizer, o.prompt)
        return Writing(texts, records, "\n".join(shown), [said] if said else [])

    def write_on(self, options: LanguageGenerateOptions, report: Report) -> Iterator[str]:
        """The continuation piece by piece."""
        o, cache = options, None
        if o.cache:
            cache = self.cache_settings(o.cache, LanguageEvaluateOptions.chunk, report)
        settings = o.settings(self.tokenizer)
        return stream(self.model, self.tokenizer, o.prompt, o.tokens, o.seed, settings, cache)

    def unread(self, prompt: str) -> str:
        return unknown_words(self.tokenizer, prompt)

    def _of_critic(self, subject: Subject, splits: Sequence[str]) -> list[Measurement]:
        """The measurements of a BMI run's critic on each split; empty without BMI."""
        config = self._bmi_config
        if config is None or not self.folder.learner(BMI).exists():
            return []
        bmi, results = self.bmi(), []
        for name in splits:
            if pairs := config.held_out(self.corpus, name):
                results += suite.critic(subject, bmi, pairs, name)
        return results

    def _check_text(self, options: LanguageEvaluateOptions) -> None:
        """Refuse a text that cannot be generated or is too short, before any work."""
        if not options.writes:
            return
        if self.recipe.feed.episodic:
            raise InfolmError(
                "--reverse and --mi need a running text, and this run was trained on single "
                "sentences: leave them out, or train it with feed.kind=stream"
            )
        least = least_tokens(STREAMS, options.stride) if options.mi else LEAST_TOKENS
        if options.generated < least:
            raise InfolmError(
                f"--generated {options.generated} is too short a text to measure: use {least} at "
                "least"
            )
        there = len(self.corpus.splits["train"].tokens)
        if options.real and there < STREAMS * -(-options.generated // STREAMS):
            raise InfolmError(
                f"--real compares with as many tokens of the training text, which has {there:,}: "
                f"use at most --generated {there // STREAMS * STREAMS}, or leave out --real"
            )

    def _of_texts(
        self, subject: Subject, options: LanguageEvaluateOptions, true: suite.TrueLogProbs
    ) -> tuple[list[Measurement], list[str]]:
        """The measurements of generated and of real text, and warnings."""
        results: list[Measurement] = []
        warnings: list[str] = []
        measured_on = {name: self.corpus.splits[name] for name in options.splits}
        size = Yardstick.parse(options.yardstick)
        for split, source, text in self._texts(options, subject.progress("writing")):
            if options.reverse:
                fabric = one_device("auto")
                results += suite.reverse(
                    subject, text, source, measured_on, true, options.seed, fabric, size
                )
            if options.mi:
                found, said = suite.information(
                    subject, text, split, source, options.seed, options.stride
                )
                results += found
                warnings += said
        return results, warnings

    def _texts(
        self, options: LanguageEvaluateOptions, progress: Progress
    ) -> Iterator[tuple[str, str, Rows]]:
        """The texts to measure: split name, description, tokens (STREAMS, T)."""
        if not options.writes:
            return
        seed = options.seed
        written = write_long(self.model, self.tokenizer.eos, options.generated, seed, progress)
        yield WRITTEN, f"{written.size:,} tokens that the model wrote (seed {seed})", written
        if options.real:
            source = f"{written.size:,} tokens of the training text itself (seed {seed})"
            yield "train", source, stretches(self.corpus.splits["train"].tokens, *written.shape)


def _check(options: LanguageEvaluateOptions, episodic: bool) -> None:
    streams = options.streams
    walks = bool(options.dynamic or options.mc or options.cache)
    if episodic and (walks or streams > 1):
        raise InfolmError(
            "--episodic combines only with --temperature: leave out "
            "--dynamic, --mc, --cache and --streams"
        )
    if streams > 1 and (walks or options.temperature):
        raise InfolmError(
            "--streams is for the static model alone: leave out --streams or the methods"
        )


def _words(changes: list[WordChange], tokenizer: Tokenizer, number: int) -> Table:
    """Table 3 of Merity et al. (2017): the words that the cache helps and hurts."""
    header = ["hurt most", "count", "change", "helped most", "count", "change"]

    def cells(change: WordChange) -> list[str]:
        return [tokenizer.token(change.token), f"{change.count:,}", f"{change.change:.2f}"]

    pairs = zip(changes[::-1][:number], changes[:number], strict=True)
    return Table(
        header, [[*cells(hurt), *cells(helped)] for hurt, helped in pairs], frozenset({1, 2, 4, 5})
    )
