"""Skip-gram: what its scores converge to, its value by hand, and what it leaves alone."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from training_tiny import Silent, quiet

from infolm.config import Recipe
from infolm.data.windows import WindowBatch
from infolm.families.train import train
from infolm.models.encoder import Encoder, EncoderConfig
from infolm.nn.nce import Noise
from infolm.objectives.skip_gram import SkipGram, SkipGramConfig
from infolm.training import checkpoint
from infolm.training.run import RunFolder
from infolm.word_vectors import WordVectors

TYPES = 6


class Lookups(nn.Module):
    """The two tables that skip-gram uses of an encoder, with columns enough for any scores."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Parameter(torch.randn(TYPES, TYPES).double())
        self.context = nn.Parameter(torch.randn(TYPES, TYPES).double())

    def scores(self) -> torch.Tensor:
        return (self.embedding @ self.context.T).detach()


class Every(Noise):
    """Each word exactly as often as q says, of k draws: the expectation, without chance."""

    def draw(self, k: int) -> torch.Tensor:
        times = (self.log_q.exp() * k).round().long()
        assert times.sum() == k
        return torch.arange(TYPES).repeat_interleave(times)


def joint() -> torch.Tensor:
    """Counts n(a, b) of pairs, (V, V), all above 0, in twelfths of the whole."""
    generator = torch.Generator().manual_seed(3)
    return torch.randint(1, 9, (TYPES, TYPES), generator=generator)


def pairs(counts: torch.Tensor) -> WindowBatch:
    """A batch with each pair as often as it is counted: the exact expectation."""
    a, b = torch.meshgrid(torch.arange(TYPES), torch.arange(TYPES), indexing="ij")
    each = counts.ravel()
    return WindowBatch(a.ravel().repeat_interleave(each), b.ravel().repeat_interleave(each))


def trained(objective: SkipGram, batch: WindowBatch) -> Lookups:
    model = Lookups()
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=2000, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = objective(model, batch, None).loss
        value.backward()
        return value

    optimiser.step(loss)
    return model


def centred(scores: torch.Tensor) -> torch.Tensor:
    return scores - scores.mean(1, keepdim=True)


def pointwise(counts: torch.Tensor) -> torch.Tensor:
    """ln p(a, b) / p(a) p(b)."""
    p = counts.double() / counts.sum()
    return (p / (p.sum(1, keepdim=True) * p.sum(0))).log()


def test_among_all_words_the_scores_become_conditional_log_probabilities():
    counts = joint()
    model = trained(SkipGram(SkipGramConfig(negatives="vocabulary"), None), pairs(counts))
    conditional = (counts / counts.sum(1, keepdim=True)).double().log()
    torch.testing.assert_close(centred(model.scores()), centred(conditional), atol=1e-3, rtol=0)


def test_the_local_form_finds_pointwise_mutual_information_less_ln_k():
    """Levy & Goldberg (2014), in their own setting: all words drawn as they are frequent."""
    counts = joint()
    total = int(counts.sum())
    noise = Every(counts.sum(0) - 1)  # which adds one
    config = SkipGramConfig(form="local", noise=total, power=1, per_pair=3)
    model = trained(SkipGram(config, noise), pairs(counts))
    wanted = pointwise(counts) - math.log(3)
    torch.testing.assert_close(model.scores(), wanted, atol=1e-3, rtol=0)


def test_among_drawn_words_the_scores_tend_to_pointwise_mutual_information():
    """B is the true word and n times the noise without chance; the true one's own share in B is
    1/(n + 1) of it, and is what is left of the difference."""
    counts = joint()
    total, times = int(counts.sum()), 100
    noise = Every(counts.sum(0) - 1)
    model = trained(SkipGram(SkipGramConfig(noise=times * total, power=1), noise), pairs(counts))
    torch.testing.assert_close(
        centred(model.scores()), centred(pointwise(counts)), atol=1e-3, rtol=0
    )


def batch() -> WindowBatch:
    torch.manual_seed(4)
    return WindowBatch(torch.randint(0, TYPES, (40,)), torch.randint(0, TYPES, (40,)))


@pytest.mark.parametrize(
    "config",
    [
        SkipGramConfig(negatives="vocabulary"),
        SkipGramConfig(noise=7),
        SkipGramConfig(form="local", noise=7, per_pair=7),
    ],
)
def test_the_loss_pair_by_pair(config):
    model, given = Lookups(), batch()
    noise = None if config.negatives == "vocabulary" else Noise(torch.arange(TYPES), config.power)
    torch.manual_seed(5)
    estimate = SkipGram(config, noise)(model, given, None)
    torch.manual_seed(5)
    drawn = list(range(TYPES)) if noise is None else noise.draw(7).tolist()
    scores, losses = model.scores(), []
    for a, b in zip(given.centres.tolist(), given.contexts.tolist(), strict=True):
        f, others = scores[a, b], scores[a, drawn]
        if config.form == "local":
            losses.append(-functional.logsigmoid(f) - functional.logsigmoid(-others).sum())
        else:
            rest = [] if noise is None else [f.exp()]
            losses.append(sum([*rest, *others.exp()]).log() - f)
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(estimate.loss.detach(), expected)
    torch.testing.assert_close(estimate.terms["nll"], expected)
    assert estimate.count == 40
    if config.form == "global":
        size = TYPES if noise is None else 8
        torch.testing.assert_close(estimate.terms["information"], math.log(size) - expected)


def test_the_local_form_needs_drawn_words():
    with pytest.raises(ValueError, match="set negatives to unigram, or form to global"):
        SkipGramConfig(form="local", negatives="vocabulary")


def recipe(text, **more) -> Recipe:
    return Recipe.model_validate(
        {
            "data": {"path": str(text), "tokens": "word"},
            "feed": {"kind": "windows", "batch": 8, "length": 16, "window": 2, "subsample": None},
            "model": {
                "kind": "encoder",
                "layers": 1,
                "hidden": 8,
                "heads": 2,
                "length": 16,
                "head": "context",
            },
            "objective": {"kind": "skip-gram", "noise": 32},
            "optimiser": {
                "kind": "adamw",
                "learning_rate": 0.05,
                "weight_decay": 0.1,
                "clip": 1,
                "schedule": {"kind": "linear", "warm_up": 5},
            },
            "averaging": {"kind": "ema", "beta": 0.5},
            "train": {"epochs": 2, "validate_every": 10, "log_every": 3},
            **more,
        }
    )


class Leaving(Silent):
    """Ends the training in the middle of a step."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def step(self, progress: float, nll: float, tokens: int) -> None:
        self.left -= 1
        if not self.left:
            raise InterruptedError


def weights(run):
    return checkpoint.load(RunFolder(run).model)


def test_training_leaves_the_transformer_alone_and_resumes_exactly(small_text, tmp_path):
    """Neither weight decay nor clipping nor averaging moves a weight that gets no gradient."""
    whole = recipe(small_text)
    train(whole, tmp_path / "whole", False, Silent(), quiet)
    found = weights(tmp_path / "whole")
    torch.manual_seed(whole.seed)
    types = len(found["context"])
    assert isinstance(whole.model, EncoderConfig)
    fresh = Encoder(whole.model, types).state_dict()
    table = "transformer.embeddings.word_embeddings.weight"
    changed = {name for name in fresh if not torch.equal(fresh[name], found[name])}
    assert changed == {table, "context"}
    assert found[table].norm() > 2 * fresh[table].norm()

    often = recipe(small_text, train={**whole.train.model_dump(), "checkpoint_seconds": 0})
    with pytest.raises(InterruptedError):
        train(often, tmp_path / "cut", False, Leaving(after=13), quiet)
    resumed = Silent()
    train(whole, tmp_path / "cut", True, resumed, quiet)
    assert "resumed at step 12" in resumed.said
    for name, weight in weights(tmp_path / "cut").items():
        assert torch.equal(weight, found[name]), name


def test_words_of_one_kind_become_neighbours(small_text, tmp_path):
    """In "the cat sees a dog", nouns stand where nouns stand, and verbs where verbs do."""
    train(recipe(small_text, averaging={"kind": "none"}), tmp_path / "run", False, Silent(), quiet)
    vectors = WordVectors.open(tmp_path / "run")
    verbs = ["sees", "hears", "follows", "finds", "loses", "calls"]
    nouns = ["cat", "dog", "bird", "fish", "child", "king"]
    directions = {w: vectors.vector(w) / np.linalg.norm(vectors.vector(w)) for w in verbs + nouns}

    def mean(left, right):
        return np.mean([directions[a] @ directions[b] for a in left for b in right if a != b])

    assert mean(verbs, verbs) > mean(verbs, nouns) + 0.3
    assert mean(nouns, nouns) > mean(verbs, nouns) + 0.3
