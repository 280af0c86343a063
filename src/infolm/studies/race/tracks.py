"""The tracks of the race and its rules.

Each rule is checked by the program, before a minute is spent: the text of a track, byte for byte;
its training split alone; no weights from elsewhere; one process on processors.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from infolm.config import Recipe
from infolm.data.corpora import DataConfig, registry, texts
from infolm.data.sources import SPLITS
from infolm.errors import InfolmError
from infolm.training import processes

MINUTES = 60.0
"""From the start of the process to the last test number, on the reference machine."""

Digests = Mapping[str, str]
"""The SHA-256 of the text of each split."""


@dataclass(frozen=True)
class Track:
    """A text and what its tokens are.

    data: the section that a recipe must have, but for keys in `free`. digests: of the three splits;
    empty where any text will do.
    """

    name: str
    title: str
    data: DataConfig
    digests: Digests
    free: frozenset[str] = frozenset()

    def fault(self, data: DataConfig) -> str | None:
        """What a recipe's section has otherwise than the track, in words."""
        wanted, found = self.data.model_dump(mode="json"), data.model_dump(mode="json")
        for key, value in wanted.items():
            if key not in self.free and found[key] != value:
                now, then = (
                    str(each).lower() if each is None else each for each in (found[key], value)
                )
                return f"data.{key} is {now}, and in the track {self.name} it is {then}"
        return None

    def check_text(self, data: DataConfig) -> Digests:
        """The SHA-256 of each split; refused where it is not the track's text."""
        found = {}
        for split, parts in texts(data).items():
            whole = hashlib.sha256()
            for part in parts:
                whole.update(part.read())
            found[split] = whole.hexdigest()
        for split, digest in found.items():
            if self.digests and self.digests[split] != digest:
                raise InfolmError(
                    f"the {split} split of {self.name} is another text than the track's (SHA-256 "
                    f"{digest[:12]}..., not {self.digests[split][:12]}...): use the standard "
                    "files back"
                )
        if len(set(found.values())) < len(found):
            raise InfolmError(
                f"two splits of {data.path or self.name} are the same text: test on text that is "
                "not "
                "in training"
            )
        return found


def _of_registry(name: str) -> Digests:
    """Where the files of a corpus are downloaded one by one."""
    downloads = registry()[name].downloads
    return {split: each.sha256 for split, each in zip(SPLITS, downloads, strict=True)}


_WIKITEXT_2 = {  # of the files in the archive that the registry names
    "train": "728c77e87e176af4730f9a80fc6008bcaff421a7202c1c048877c0eec3685f89",
    "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
    "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
}

TRACKS = {
    track.name: track
    for track in (
        Track("ptb", "Penn Treebank, words", DataConfig(corpus="ptb"), _of_registry("ptb")),
        Track("wikitext-2", "WikiText-2, words", DataConfig(corpus="wikitext-2"), _WIKITEXT_2),
        Track(
            "bytes",
            "any text, bytes",
            DataConfig(tokens="byte"),
            {},
            frozenset({"path"}),
        ),
    )
}


def track_of(recipe: Recipe) -> Track:
    """The track whose text the recipe reads, or why there is none."""
    data = recipe.data
    track = TRACKS.get("bytes" if data.path is not None else str(data.corpus))
    if track is None or (fault := track.fault(_without_corpus(data))):
        why = f"data.corpus is {data.corpus}" if track is None else fault
        raise InfolmError(
            f"this is not a text of the race ({why}): use data.corpus=ptb or wikitext-2 unchanged, "
            "or data.path=FILE data.tokens=byte"
        )
    return track


def _without_corpus(data: DataConfig) -> DataConfig:
    """One's own text is read in place of a corpus that the recipe names."""
    return data if data.path is None else data.model_copy(update={"corpus": None})


def check_recipe(recipe: Recipe) -> Track:
    """The track of a recipe; refused with the first rule that it breaks."""
    track = track_of(recipe)
    checkpoint = getattr(recipe.model, "checkpoint", None)
    broken = {
        f"start_from is {recipe.start_from}, and a race starts from new weights: leave it out": (
            recipe.start_from is not None
        ),
        f"model.checkpoint is {checkpoint}, and a race starts from new weights: leave it out": (
            checkpoint is not None
        ),
        f"model.kind {recipe.model.kind} has no next-token probabilities: choose a language "
        "model": recipe.model.capability != "language",
        f"feed.kind {recipe.feed.kind} reads sentences by themselves, and the race measures a "
        "running text: set feed.kind=stream": recipe.feed.episodic,
        "the race is only run on CPUs: set train.accelerator=cpu": (
            recipe.train.accelerator == "cuda"
        ),
        "the race is run by one process: start it without torchrun": processes.launched(),
    }
    for sentence, applies in broken.items():
        if applies:
            raise InfolmError(sentence)
    return track
