"""What is true of every feed in the registry: a new kind is tested here by being registered."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from infolm.data.corpora import DataConfig, load
from infolm.data.feed import FEEDS
from infolm.data.stream import PADDING

SMALL = {"batch": 4, "length": 16, "bptt": 7, "subsample": None}
"""Settings by the names that sections give them; a section takes those that it has."""
TEXT = [
    f"the {noun} sees a {other} . it follows {'the old ' * (i % 3)}{noun} !"
    for i, (noun, other) in enumerate(
        (a, b) for a in ("cat", "dog", "bird", "king") for b in ("stone", "tree", "song", "river")
    )
] * 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """With [CLS] and its like, which some feeds ask for."""
    folder = tmp_path_factory.mktemp("feeds")
    (folder / "text.txt").write_text("\n".join(TEXT) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        return load(DataConfig(path=folder / "text.txt", tokens="wordpiece", vocabulary=100))


@pytest.fixture(params=list(FEEDS))
def make(request, corpus):
    """Builds the feed of a seed."""
    fields = FEEDS[request.param].model_fields
    settings = {name: value for name, value in SMALL.items() if name in fields}
    config = FEEDS[request.param].model_validate({"kind": request.param, **settings})
    return lambda seed=1: config.build(corpus, "train", seed)


def same(one, other):
    """Whether two batches are equal in every field."""
    assert type(one) is type(other)
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def a_pass(feed):
    """The batches up to the end of the pass."""
    epoch, batches = feed.epoch, []
    while feed.epoch == epoch:
        batches.append(feed.next())
        assert len(batches) < 10_000
    return batches


def test_a_batch_is_whole_numbers_for_torch_and_a_rate(make, corpus):
    import torch

    for batch in a_pass(make()):
        arrays = [part for part in batch if isinstance(part, np.ndarray)]
        assert arrays
        for array in arrays:
            assert array.dtype in (np.int64, np.bool_), array.dtype
            assert array.size
            torch.from_numpy(array)  # takes no negative strides
        tokens = [p for p in arrays if p.dtype == np.int64 and p.ndim == arrays[0].ndim]
        assert all(part.min() >= PADDING for part in tokens)
        assert arrays[0].max() < len(corpus.tokenizer)
        assert batch.rate_scale > 0


def test_the_seed_decides_everything(make):
    one, again, other = ([*a_pass(feed), *a_pass(feed)] for feed in (make(1), make(1), make(2)))
    assert len(one) == len(again)
    assert all(same(a, b) for a, b in zip(one, again, strict=True))
    assert len(one) != len(other) or not all(map(same, one, other))


def test_each_pass_is_another(make):
    feed = make()
    first, second = a_pass(feed), a_pass(feed)
    assert feed.epoch == 2
    assert len(first) != len(second) or not all(map(same, first, second))


def test_the_fraction_rises_from_0_and_stays_below_1(make):
    feed = make()
    assert feed.epoch == 0
    assert feed.fraction() == 0
    shares = []
    while feed.epoch == 0:
        shares.append(feed.fraction())
        feed.next()
    assert shares == sorted(set(shares))
    assert shares[-1] < 1
    assert feed.fraction() < 0.5  # of the next pass, of which nothing or little is read


@pytest.mark.parametrize("share", [0, 0.3, 0.99, 1.5])
def test_saved_and_restored_it_goes_on_alike(make, share):
    feed, length = make(), len(a_pass(make()))
    for _ in range(math.ceil(share * length)):
        feed.next()
    state = json.loads(json.dumps(feed.state_dict()))  # as in a checkpoint
    restored = make()
    restored.next()  # somewhere else
    restored.load_state_dict(state)
    assert (restored.epoch, restored.fraction()) == (feed.epoch, feed.fraction())
    for _ in range(2 * length):  # over the end of a pass
        assert same(feed.next(), restored.next())
    assert restored.state_dict() == feed.state_dict()


def counted(corpus, arrays):
    words = np.concatenate([np.ravel(array) for array in arrays])
    return np.bincount(words[words >= 0], minlength=len(corpus.tokenizer))


def test_a_pass_has_every_token_as_a_target_once(make, corpus):
    """But for what fills no batch or no column; where feeds have targets."""
    feed = make()
    batches = a_pass(feed)
    if not hasattr(batches[0], "targets"):
        pytest.skip("its batches have no targets")
    text = counted(corpus, [corpus.splits["train"].tokens])
    found = counted(corpus, [batch.targets for batch in batches])
    eos = corpus.tokenizer.eos
    found[eos] = min(found[eos], text[eos])  # a sentence within a line has an end of its own
    assert (found <= text).all()
    assert found.sum() > 0.95 * text.sum()


def test_no_feed_imports_torch():
    code = (
        "import sys; from infolm.data.feed import FEEDS; list(FEEDS); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("kind", list(FEEDS))
def test_it_says_what_it_gives_and_what_its_keys_mean(kind):
    config = FEEDS[kind]
    assert config.gives
    assert config.__doc__
    fields = {name: field for name, field in config.model_fields.items() if name != "kind"}
    assert all(field.description for field in fields.values())
