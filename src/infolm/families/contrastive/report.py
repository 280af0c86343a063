"""An encoder's part of a report: its measurements and curves."""

from collections.abc import Sequence
from html import escape
from typing import cast

import numpy as np
import numpy.typing as npt

from infolm.data.corpora import unigram_counts
from infolm.evaluation.measurement import Measurement
from infolm.families.sections import SPLITS, Parts, Sections, perplexity, perplexity_shown
from infolm.metrics import described
from infolm.objectives.encoding import EncoderObjectiveConfig
from infolm.reports.page import number, paragraph, strong

NOTHING = 0.1
"""Nats per hidden word or pair below which nothing was learnt."""


class EncoderSections(Sections):
    """An encoder's sections; it generates no text."""

    @property
    def objective(self) -> EncoderObjectiveConfig:
        return cast(EncoderObjectiveConfig, self.recipe.objective)

    def verdict(self, loss: float) -> str:
        """Compared with the words' frequencies, or by the bound on the information."""
        corpus, contrasts = self.found.corpus, self.found.history.contrasts
        if self.objective.of_all_words and corpus is not None:
            entropy = frequencies(
                unigram_counts(corpus.splits["train"].tokens, len(corpus.tokenizer))
            )
            numbers = (
                f"(perplexity {number(perplexity(loss), 1)}; by frequency alone "
                f"{number(perplexity(entropy), 1)})"
            )
            if loss > entropy - NOTHING:
                told = "hidden words are guessed no better than by their frequency"
                return f"{strong('Nothing learnt yet')}: {told} {numbers}; {self.longer}."
            return (
                f"{strong('It has learnt')}: hidden words are guessed better than by frequency "
                f"{numbers}."
            )
        if contrasts is None or not len(contrasts.information):
            return f"The best validation loss is {strong(number(loss, 3))} nats."
        nats = float(contrasts.information.values.max())
        numbers = f"(InfoNCE is {number(nats, 2)} nats, a lower bound)"
        if nats < NOTHING:
            told = "true pairs are not distinguished from random ones"
            return f"{strong('Nothing learnt yet')}: {told} {numbers}; {self.longer}."
        told = "true pairs are distinguished from random ones"
        return f"{strong('It has learnt')}: {told} {numbers}."

    def best(self, loss: float) -> str:
        if self.objective.of_all_words:
            return f"perplexity of hidden words is {perplexity_shown(loss)}"
        return f"loss is {strong(number(loss, 3))} nats"

    def measured(self) -> Parts:
        measurements = self.found.measurements
        return encoder_table(measurements) if measurements else self.not_measured()

    def panels(self) -> str:
        said = "The first panel shows the cross entropy of distinguishing true from random ones"
        if self.objective.ngrams:
            said += "; the second the validation loss, which includes the weighted loss of n-grams"
        return (
            f"{said}. Information is InfoNCE, a lower bound that is at most ln of the number "
            "of candidates; thin lines show training. Validation reads its split in batches as "
            "in training, the same each time."
        )

    def commands(self) -> list[tuple[str, str]]:
        measure = ("Measure", f"infolm evaluate {self.path}")
        if self.objective.kind == "skip-gram":
            return [
                measure,
                ("Save the vectors", f"infolm export {self.path} --out FILE --as word2vec"),
            ]
        return [
            measure,
            ("Fine-tune", f"infolm finetune {self.path} --task cola --data FOLDER"),
            ("Save for other libraries", f"infolm export {self.path} --out FOLDER"),
        ]


def frequencies(counts: npt.NDArray[np.int64]) -> float:
    """The entropy of the unigram distribution with these counts, in nats."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def encoder_table(measurements: Sequence[Measurement]) -> list[str]:
    """Every measurement by split, with its convention."""
    groups = []
    for split in dict.fromkeys(m.split for m in measurements):
        rows = [
            f'<tr><th scope="rowgroup" colspan="4">{SPLITS.get(split, escape(split))}</th></tr>'
        ]
        for m in (m for m in measurements if m.split == split):
            about = described(m.metric, "encoder")
            name, decimals = about.label, about.decimals
            error = "" if m.stderr is None else f"± {number(m.stderr, decimals)}"
            rows.append(
                f'<tr><th scope="row">{name} ({escape(m.method)})</th>'
                f'<td>{number(m.value, decimals)}</td><td class="error">{error}</td>'
                f"<td>{escape(m.unit)}</td></tr>"
            )
        groups.append(f"<tbody>{''.join(rows)}</tbody>")
    header = (
        '<tr><th scope="col">measure</th><th scope="col" colspan="2">value</th>'
        '<th scope="col">unit</th></tr>'
    )
    counted = dict.fromkeys(m.convention for m in measurements)
    return [
        f'<div class="wide"><table><thead>{header}</thead>{"".join(groups)}</table></div>',
        paragraph(f"Counted: {escape('; '.join(counted))}.", "note"),
    ]
