"""Ranking answers: codes whose order is known, ties, chance by enumeration, what matters not."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer
from torch import nn

from infolm.data import sentences
from infolm.data.answers import Question
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError, RunError
from infolm.evaluation import ranking as module
from infolm.evaluation.ranking import (
    chance,
    distances,
    filled_and_masked,
    overlap,
    rank,
    ranking,
    ranking_measurements,
    shortest,
)
from infolm.models.codes.gaussian import GaussianConfig, Posterior
from infolm.models.recurrent import DropoutConfig
from infolm.models.sentence import CoderConfig, SentenceConfig, SentenceModel

WORDS = ["<eos>", "<unk>", "?", "what", "why", "near", "far", "farther", "a", "b", "c"]
TOKENIZER = Tokenizer.from_words(WORDS)
EOS, UNK = TOKENIZER.eos, TOKENIZER.unk


class Additive(nn.Module):
    """q(z | x): the mean is the sum of a number for each word; ln sigma^2 that of another."""

    def __init__(self, means, log_variances=None):
        super().__init__()
        rows = [[means.get(w, 0.0), (log_variances or {}).get(w, 0.0)] for w in WORDS]
        self.embedding = torch.tensor(rows, dtype=torch.float64)
        self.config = SimpleNamespace(latent=SimpleNamespace(size=1))
        self.device = torch.device("cpu")

    def encode(self, read, sizes):
        owner = torch.cat([torch.arange(size) for size in sizes])
        sums = torch.zeros(sizes[0], 2, dtype=torch.float64)
        sums.index_add_(0, owner, self.embedding[read])
        return Posterior(sums[:, :1], sums[:, 1:])


def make():
    torch.manual_seed(0)
    coder = CoderConfig(hidden=7, dropout=DropoutConfig(embedding=0.3, input=0.3))
    config = SentenceConfig(
        embedding=5, latent=GaussianConfig(size=3), encoder=coder, decoder=coder
    )
    model = SentenceModel(config, len(WORDS)).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)
    return model


MODEL = make()

TEXT = st.lists(st.sampled_from(WORDS[1:]), min_size=1, max_size=6).map(" ".join)


@st.composite
def _question(draw):
    answers = tuple(draw(st.lists(TEXT, min_size=2, max_size=5)))
    return Question(draw(TEXT), answers, draw(st.integers(0, len(answers) - 1)))


QUESTIONS = st.lists(_question(), min_size=1, max_size=6)


@torch.no_grad()
def slow(model, question):
    """The score of each candidate by the formula, a sentence at a time."""
    scores = []
    for filled, masked in filled_and_masked(question, TOKENIZER, UNK):
        x, u = (
            model.encode(torch.tensor([EOS, *reversed(s)]), [1] * (len(s) + 1))
            for s in (filled, masked)
        )
        terms = [
            ((float(u.mean[0, d]) - float(x.mean[0, d])) / math.exp(u.log_variance[0, d] / 2)) ** 2
            for d in range(3)
        ]
        scores.append(math.sqrt(sum(terms)))
    return scores


# What is read


def test_there_is_one_question_mark_and_as_many_unknowns_as_words():
    for asked in ("what a", "what a?", "what a ?", " what\na ?? "):
        pairs = filled_and_masked(Question(asked, ("b", "far\nnever c"), 0), TOKENIZER, UNK)
        texts = [tuple(map(TOKENIZER.decode, pair)) for pair in pairs]
        assert texts == [
            ("what a ? b", "what a ? <unk>"),
            ("what a ? far <unk> c", "what a ? <unk> <unk> <unk>"),
        ]


def test_the_shortest_comes_first():
    found = shortest([Question("q", ("a b c", "a", "a b"), 2), Question("q", ("a b", "b a"), 0)])
    assert found.rank.tolist() == [2, 1.5]
    assert found.tokens == 10


def test_characters_stay_apart():
    tokenizer = Tokenizer.from_characters(["\n", "<unk>", *"abc ?"])
    ((filled, masked),) = filled_and_masked(Question("a b?", ("c c",), 0), tokenizer, tokenizer.unk)
    assert tokenizer.decode(filled) == "a b ? c c"
    assert tokenizer.decode(masked) == "a b ? <unk><unk><unk>"


def test_a_vocabulary_without_unknowns_is_refused():
    with pytest.raises(InfolmError, match=r"this vocabulary has none.*data\.tokens=word"):
        rank(MODEL, Tokenizer.from_bytes(), [Question("a", ("b", "c"), 0)])


# The score


KNOWN = [
    Question("what a", ("farther", "near", "far"), 1),
    Question("why", ("near", "farther"), 1),
    Question("a b c", ("far", "near a", "farther b"), 0),
]
MEANS = {"near": 0.1, "far": 1.0, "farther": -2.0, "a": 5.0}


def test_the_nearest_code_comes_first():
    # a adds 5 to the code of an answer: "near a" of the last question is the farthest.
    found = rank(Additive(MEANS), TOKENIZER, KNOWN)
    assert found.better.tolist() == [0, 1, 0]
    assert found.tied.tolist() == [1, 1, 1]
    assert found.candidates.tolist() == [3, 2, 3]
    assert found.rank.tolist() == [1, 2, 1]


def test_distances_are_in_deviations_of_the_masked_sentence():
    # An <unk> adds 1 to ln sigma^2: the distances are 0.9 / e^(1/2) = 0.55 and 1 / e = 0.37.
    model = Additive({"near": 0.9, "far": 1.0}, {"<unk>": 1.0})
    question = Question("what", ("near", "far b"), 1)
    assert rank(model, TOKENIZER, [question]).rank.tolist() == [1]
    assert rank(model, TOKENIZER, [question], unit=True).rank.tolist() == [2]


@settings(deadline=None, max_examples=25)
@given(questions=QUESTIONS, area=st.integers(1, 60), portion=st.integers(1, 4))
def test_equals_a_loop_whatever_the_batches(questions, area, portion):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "AREA", area)
        patch.setattr(module, "PORTION", portion)
        found = rank(MODEL, TOKENIZER, questions)
    for i, question in enumerate(questions):
        scores = np.array(slow(MODEL, question))
        own = scores[question.right]
        assert found.better[i] == (scores < own - 1e-9).sum()
        assert found.tied[i] == (abs(scores - own) <= 1e-9).sum()
    assert found.candidates.tolist() == [len(question.answers) for question in questions]


def test_the_square_is_minus_twice_the_log_density_without_its_constants():
    torch.manual_seed(1)
    filled, masked = (Posterior(*torch.randn(2, 9, 4).double()) for _ in range(2))
    masked.log_variance[:5] = -10.0  # the floor, where MIM's end up
    constants = (masked.log_variance + math.log(2 * math.pi)).sum(1)
    expected = -2 * masked.log_density(filled.mean) - constants
    np.testing.assert_allclose(distances(filled, masked, None, False) ** 2, expected, rtol=1e-12)
    plain = distances(filled, masked, None, True)
    np.testing.assert_allclose(plain, (masked.mean - filled.mean).norm(dim=1))


def test_sampled_codes_vary_as_they_should():
    # E S^2 = sum_d ((m_u - m_x)^2 + sigma_x^2) / sigma_u^2 + 1
    filled = Posterior(*(torch.tensor(rows).double() for rows in ([[0.3, -1]], [[-1.0, 0.5]])))
    masked = Posterior(*(torch.tensor(rows).double() for rows in ([[0.0, 1]], [[0.2, -0.7]])))
    gap = (filled.mean - masked.mean).square() + filled.log_variance.exp()
    expected = float((gap / masked.log_variance.exp() + 1).sum())
    many = [Posterior(*(t.expand(40_000, 2) for t in q)) for q in (filled, masked)]
    squares = distances(*many, torch.Generator().manual_seed(0), False) ** 2
    stderr = squares.std() / math.sqrt(len(squares))
    assert abs(squares.mean() - expected) < 4 * stderr


def test_a_seed_gives_the_same_codes_again():
    questions = [*KNOWN, Question("c", tuple("ab" * 8), 3)]
    one = rank(MODEL, TOKENIZER, questions, sampled=1)
    assert (rank(MODEL, TOKENIZER, questions, sampled=1).better == one.better).all()
    drawn = [rank(MODEL, TOKENIZER, questions, sampled=seed).better[3] for seed in range(8)]
    assert len(set(drawn)) > 1
    assert (one.tied == 1).all()  # equal answers have codes of their own
    assert rank(MODEL, TOKENIZER, questions).tied[3] == 8


def test_codes_that_are_not_finite_are_refused():
    with pytest.raises(RunError, match="codes that are not finite"):
        rank(Additive({"far": math.nan}), TOKENIZER, KNOWN)


def test_the_mode_of_the_model_is_put_back_and_progress_is_told(monkeypatch):
    monkeypatch.setattr(module, "PORTION", 2)
    model, told = make().train(), []
    found = rank(model, TOKENIZER, KNOWN, report=lambda *done: told.append(done))
    assert model.training
    assert found.better.tolist() == rank(MODEL, TOKENIZER, KNOWN).better.tolist()
    assert told == [(2, 3), (3, 3)]
    lengths = [4, 4, 4, 3, 3, 5, 6, 6]  # with "?", without <eos>; each is read with and without
    assert found.tokens == 2 * sum(n + 1 for n in lengths)
    assert "0.0% of the words are unknown" in found.score


# Ranks


def permuted(scores, right):
    """What is true of the right one's rank on the average over all orders that the scores allow."""
    allowed = [
        order
        for order in itertools.permutations(range(len(scores)))
        if all(scores[a] <= scores[b] for a, b in itertools.pairwise(order))
    ]
    ranks = np.array([order.index(right) + 1 for order in allowed])
    return ranks.mean(), (ranks == 1).mean(), (1 / ranks).mean()


@settings(deadline=None, max_examples=60)
@given(scores=st.lists(st.integers(0, 2), min_size=2, max_size=5), data=st.data())
def test_ties_count_as_the_mean_over_their_orders(scores, data):
    right = data.draw(st.integers(0, len(scores) - 1))
    question = Question("", tuple(map(str, range(len(scores)))), right)
    found = ranking([np.array(scores, dtype=float)], [question], 0, "")
    ours = [float(values[0]) for values in (found.rank, found.first, found.reciprocal)]
    assert ours == pytest.approx(permuted(scores, right))


def test_chance_is_the_mean_over_all_permutations():
    questions = [Question("", ("a",) * k, k // 2) for k in (2, 3, 5)]
    expected = [permuted([0] * k, k // 2) for k in (2, 3, 5)]
    found = chance(questions)
    np.testing.assert_allclose(found.first, [first for _, first, _ in expected])
    np.testing.assert_allclose(found.reciprocal, [mean for *_, mean in expected])
    assert found.first.tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 5])
    assert found.reciprocal[1] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


def test_a_model_that_ignores_the_answer_is_chance():
    found, expected = rank(Additive({}), TOKENIZER, KNOWN), chance(KNOWN)
    assert found.first.tolist() == expected.first.tolist()
    assert found.reciprocal.tolist() == expected.reciprocal.tolist()


@pytest.mark.parametrize("ranked", [lambda q: rank(MODEL, TOKENIZER, q), overlap, chance])
@settings(deadline=None, max_examples=25)
@given(questions=QUESTIONS, data=st.data())
def test_the_order_of_questions_and_candidates_does_not_matter(ranked, questions, data):
    places = data.draw(st.permutations(range(len(questions))))
    shuffled = []
    for question in [questions[place] for place in places]:
        order = data.draw(st.permutations(range(len(question.answers))))
        answers = tuple(question.answers[i] for i in order)
        shuffled.append(Question(question.question, answers, order.index(question.right)))
    one, other = ranked(questions), ranked(shuffled)
    assert other.better.tolist() == one.better[places].tolist()
    assert other.tied.tolist() == one.tied[places].tolist()


# The words in common


def test_overlap_is_the_cosine_of_tf_idf_vectors():
    questions = [
        Question("Who wrote the play?", ("Nobody knows.", "The play is old.", "She wrote it."), 2),
        Question("the the play", ("the Play, the play", "the old play is old", "it"), 0),
        Question("unheard of", ("it", "the old play is old"), 1),
    ]
    found = overlap(questions)
    candidates = sorted({answer for each in questions for answer in each.answers})
    counter = CountVectorizer(token_pattern=r"\w+").fit(candidates)
    idf = np.log(len(candidates) / (counter.transform(candidates).toarray() > 0).sum(0))
    for i, each in enumerate(questions):
        q = counter.transform([each.question]).toarray()[0] * idf
        a = counter.transform(each.answers).toarray() * idf
        cosines = (a @ q) / (np.linalg.norm(a, axis=1) * max(np.linalg.norm(q), 1e-9))
        own = cosines[each.right]
        assert found.better[i] == (cosines > own + 1e-9).sum()
        assert found.tied[i] == (abs(cosines - own) <= 1e-9).sum()
    assert found.tied.tolist() == [1, 1, 2]  # no word in common at all: tied


def test_overlap_of_candidates_without_a_rare_word_is_chance():
    same = [Question("the cat", ("the cat", "the cat"), 0)]  # every word in each: idf 0
    assert overlap(same).first.tolist() == [0.5]
    assert overlap([Question("...", ("!", "?"), 1)]).first.tolist() == [0.5]


# Measurements


def test_measurements_say_what_they_are():
    found = rank(Additive(MEANS), TOKENIZER, KNOWN)
    precision, mrr = ranking_measurements(
        found, split="test", method="ranking", notes=["2 questions without an answer"]
    )
    assert (precision.metric, precision.value) == ("precision_at_1", pytest.approx(2 / 3))
    assert (mrr.metric, mrr.value) == ("mean_reciprocal_rank", pytest.approx(2.5 / 3))
    first = [1, 0, 1]
    assert precision.stderr == pytest.approx(np.std(first, ddof=1) / math.sqrt(3))
    assert mrr.stderr == pytest.approx(np.std([1, 0.5, 1], ddof=1) / math.sqrt(3))
    for measurement in (precision, mrr):
        assert (measurement.split, measurement.method) == ("test", "ranking")
        assert measurement.tokens == found.tokens
        for told in ("3 questions, 2 to 3 candidates", "tied with others in 0", "sigma that of"):
            assert told in measurement.convention
        assert measurement.convention.endswith("left out: 2 questions without an answer")


def test_questions_on_one_paragraph_are_no_more_than_one():
    answers = [(f"{i} a", f"{i} b") for i in range(5)]
    single = [Question("", pair, i % 2) for i, pair in enumerate(answers)]
    scores = [np.array([0.0, 1.0])] * 5
    one = ranking(scores, single, 0, "")
    many = ranking(scores * 4, single * 4, 0, "")
    for a, b in zip(
        ranking_measurements(one, split="", method=""),
        ranking_measurements(many, split="", method=""),
        strict=True,
    ):
        assert b.value == pytest.approx(a.value)
        assert b.stderr == pytest.approx(a.stderr)
    (alone, _) = ranking_measurements(ranking(scores[:1], single[:1], 0, ""), split="", method="")
    assert alone.stderr is None
