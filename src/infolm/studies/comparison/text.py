"""The log-probability of every token of a split, computed once and kept in the run's folder."""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from infolm.data.ingest import Report
from infolm.errors import InfolmError, RunError
from infolm.evaluation.episodic import episodic_log_probs
from infolm.evaluation.likelihood import parallel_log_probs
from infolm.families.running.run import LanguageRun
from infolm.training import checkpoint
from infolm.training.run import RunFolder

STREAMS, WARM_UP, CHUNK = 20, 200, 200
CONVENTION = (
    f"every token of the split but the first, <eos> included, read in {STREAMS} streams with "
    f"{WARM_UP} tokens before each"
)
ALONE = "every token of the split, <eos> included, each sentence read by itself"


def kept(path: Path, split: str, vocabulary: str, text: str) -> npt.NDArray[np.float64] | None:
    """What was computed before for the present weights, text and vocabulary."""
    folder = RunFolder(path)
    file = folder.log_probs(split)
    if not file.exists() or not folder.model.exists():
        return None
    try:
        state = checkpoint.load(file)
        if state["of"] != _of(folder, vocabulary, text):
            return None
        return np.asarray(state["log_probs"].numpy(), np.float64)
    except (InfolmError, LookupError, AttributeError):
        return None  # it is only a cache: computed again


def log_probs(
    path: Path, split: str, vocabulary: str, text: str, report: Report
) -> npt.NDArray[np.float64]:
    """ln p of the tokens of a split under the run's best weights, (N,); kept for the next time."""
    found = kept(path, split, vocabulary, text)
    if found is not None:
        return found
    run = LanguageRun.open(path)
    tokens, feed = run.corpus.splits[split].tokens, run.recipe.feed

    def progress(done: int, total: int) -> None:
        report(f"reading the {split} split with {path}", done, total)

    if feed.episodic:
        after = feed.marker(run.tokenizer)
        found = episodic_log_probs(run.model, tokens, run.tokenizer.eos, after)
    else:
        found = parallel_log_probs(run.model, tokens, STREAMS, WARM_UP, CHUNK, progress)
    state = {"log_probs": torch.from_numpy(found), "of": _of(run.folder, vocabulary, text)}
    try:
        run.folder.log_probs(split).parent.mkdir(exist_ok=True)
        checkpoint.save(run.folder.log_probs(split), state)
    except (OSError, RunError) as error:  # a folder that may only be read
        print(f"{error}.", file=sys.stderr)
    return found


def _of(folder: RunFolder, vocabulary: str, text: str) -> list[str]:
    return [checkpoint.mark(folder.model), vocabulary, text, f"{STREAMS} {WARM_UP}"]
