"""Seconds and perplexity of the Kneser-Ney 5-gram on the corpora that lie in $INFOLM_DATA.

    INFOLM_DATA=... python benchmarks/kneser_ney.py

Whitespace words, one <eos> a line, every token but the first predicted.
"""

import os
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from infolm.evaluation.kneser_ney import KneserNey

CORPORA = {"ptb": "ptb.{}.txt", "wikitext-2": "wiki.{}.tokens"}


def read(path: Path, ids: dict[str, int]) -> npt.NDArray[np.int64]:
    """The ids of the words of a file; words new to `ids` are added to it."""
    with path.open(encoding="utf-8") as lines:
        words = (word for line in lines for word in [*line.split(), "<eos>"])
        return np.array([ids.setdefault(word, len(ids)) for word in words])


def main() -> None:
    folder = Path(os.environ.get("INFOLM_DATA", "."))
    for corpus, pattern in CORPORA.items():
        if not (folder / corpus).is_dir():
            print(f"{corpus}: not in {folder}, skipped")
            continue
        ids: dict[str, int] = {}
        train, valid, test = (
            read(folder / corpus / pattern.format(split), ids)
            for split in ("train", "valid", "test")
        )
        start = time.perf_counter()
        model = KneserNey.fit(train, len(ids))
        fitted = time.perf_counter()
        perplexities = [np.exp(-model.log_probs(split).mean()) for split in (valid, test)]
        scored = time.perf_counter()
        print(
            f"{corpus}: {len(train):,} tokens, {len(ids):,} types; "
            f"fit {fitted - start:.1f} s, evaluate {scored - fitted:.1f} s; "
            "perplexity valid {:.1f}, test {:.1f}".format(*perplexities)
        )


if __name__ == "__main__":
    main()
