"""The position of a trained point: the NLL of sentences, and the information of their codes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from infolm.data.sentences import SentencesConfig
from infolm.evaluation.latent import Array, some
from infolm.evaluation.latent_suite import per_sentence, per_token
from infolm.evaluation.usage import usage, weigh
from infolm.families.base import open_run
from infolm.families.recorded import corpus_of
from infolm.models.latent import LatentModel
from infolm.training import checkpoint

SEED = 1
"""Of the sentences drawn and of their codes: the same for every point."""
CONVENTION = {
    "nll": "IWAE's bound on -ln p(x) with `samples` codes of each sentence, nats",
    "information": "the mean of U - ln p^(x) with the same codes, which estimates the mutual "
    "information of sentence and code, nats",
    "per_sentence": "the mean over the sentences",
    "per_token": "the sum over the sentences, divided by their tokens; <eos> is one where the "
    "model predicts it, and not in the synthetic task",
    "stderr": "the standard error over the sentences",
}


def measure(
    path: Path,
    splits: Sequence[str],
    sentences: int | None,
    samples: int,
    report: Callable[[str, float], None],
) -> dict[str, Any]:
    """The best weights of the run in `path` on some splits; see `CONVENTION`.

    report: called with the split and the share of it that is done.
    """
    run = open_run(path)
    model, feed = cast(LatentModel, run.model), cast(SentencesConfig, run.recipe.feed)
    corpus = corpus_of(run.folder, run.recipe)
    found: dict[str, Any] = {}
    for split in splits:
        lines = feed.lines(corpus, split)
        if sentences is not None:
            lines = some(lines, sentences, SEED)

        def told(done: int, total: int, split: str = split) -> None:
            report(split, done / total)

        measured = usage(weigh(model, lines, samples, SEED, told))
        tokens = (lines.lengths + model.ends).astype(np.float64)
        found[split] = {
            "sentences": len(lines),
            "tokens": int(tokens.sum()),
            "nll": _means(measured.nll, tokens),
            "information": _means(measured.information, tokens),
        }
    return {"weights": checkpoint.mark(run.folder.model), "splits": found}


def _means(nats: Array, tokens: Array) -> dict[str, float]:
    sentence, error = per_sentence(nats)
    token, token_error = per_token(nats, tokens)
    return {
        "per_sentence": sentence,
        "per_sentence_stderr": error,
        "per_token": token,
        "per_token_stderr": token_error,
    }
