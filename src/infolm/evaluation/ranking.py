"""Ranking of candidate answers to a question, without training for it (SentenceMIM, section 4.6).

For a question Q with candidates A_1 ... A_K,

    x_k = Q ? A_k        u_k = Q ? <unk> ... <unk>, as many as A_k has tokens
    S_k = || (z_{u_k} - z_{x_k}) / sigma_{u_k} ||        the least is ranked first

with codes z from q(z | x), and sigma, of each dimension, from q(z | u_k). With z_{u_k} the mean of
that, S_k^2 is -2 ln q(z_{x_k} | u_k) but for the term of ln sigma. For an auto-encoder sigma = 1.
An answer of only unknown words is u_k itself, so its score is 0: a candidate may come first because
the model knows none of its words.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from infolm.data.answers import Question, one_line
from infolm.data.questions import asked
from infolm.data.sentences import Lines
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError, RunError
from infolm.evaluation.latent import posteriors
from infolm.evaluation.likelihood import Progress
from infolm.evaluation.measurement import Measurement
from infolm.information import ties
from infolm.metrics import Described, describe
from infolm.models.codes.gaussian import Posterior
from infolm.models.sentence import SentenceModel

describe(
    "latent",
    Described("precision_at_1", unit="share of questions", decimals=3, better="up"),
    Described("mean_reciprocal_rank", unit="1 / rank", decimals=3, better="up"),
)

PORTION = 1000
"""Questions whose codes are held at once."""

Array = npt.NDArray[np.float64]
Tokens = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Ranking:
    """The rank of the right answer of each of Q questions, (Q,) each.

    better: candidates before it. tied: those with its score, itself among them. candidates: all.
    group: its number; questions with the same candidates are one group. tokens: what was read.
    score: the ranking score in words.

    Metrics are means over all orders of tied candidates, so a score that is the same for all
    candidates gives exactly the result of chance.
    """

    better: npt.NDArray[np.int64]
    tied: npt.NDArray[np.int64]
    candidates: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    tokens: int
    score: str

    @property
    def rank(self) -> Array:
        """b + (t + 1) / 2, from 1 on."""
        return self.better + (self.tied + 1) / 2

    @property
    def first(self) -> Array:
        """Whether the rank is 1: 1 / t where b = 0, else 0. Its mean is the precision at 1."""
        return np.asarray(ties.first(self.better, self.tied))

    @property
    def reciprocal(self) -> Array:
        """1 / rank: (H_{b + t} - H_b) / t with H_n = 1 + 1/2 + ... + 1/n."""
        terms = 1 / np.arange(1, self.candidates.max() + 1)
        harmonic = np.concatenate([[0.0], np.cumsum(terms)])
        return (harmonic[self.better + self.tied] - harmonic[self.better]) / self.tied


def ranking(
    scores: Sequence[Array], questions: Sequence[Question], tokens: int, score: str
) -> Ranking:
    """From the scores (K,) of each question's candidates, the least first."""
    right = [float(row[each.right]) for row, each in zip(scores, questions, strict=True)]
    pairs = zip(scores, right, strict=True)
    better, tied = np.array([ties.standing(-row, np.array(-own)) for row, own in pairs]).T
    groups: dict[tuple[str, ...], int] = {}
    group = [groups.setdefault(each.answers, len(groups)) for each in questions]
    candidates = np.array([len(row) for row in scores])
    return Ranking(better, tied, candidates, np.array(group), tokens, score)


def rank(
    model: SentenceModel,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    *,
    sampled: int | None = None,
    unit: bool = False,
    report: Progress | None = None,
) -> Ranking:
    """Rank the candidates of all questions by S_k.

    sampled: a seed; codes are then drawn from q as in the paper, and else are its means. unit:
    sigma = 1, as for an auto-encoder, whose codes are not to be sampled. report: called with the
    questions done and in all.
    """
    if tokenizer.unk is None:
        raise InfolmError(
            "ranking replaces an answer by <unk>, and this vocabulary has none: choose a run "
            "with data.tokens=word"
        )
    generator = None if sampled is None else torch.Generator().manual_seed(sampled)
    scores, words, unknown = list[Array](), 0, 0
    for start in range(0, len(questions), PORTION):
        portion = questions[start : start + PORTION]
        pairs = [
            pair for each in portion for pair in filled_and_masked(each, tokenizer, tokenizer.unk)
        ]
        found = _scores(model, tokenizer.eos, pairs, generator, unit)
        scores += np.split(found, np.cumsum([len(each.answers) for each in portion])[:-1])
        words += sum(len(filled) for filled, _ in pairs)
        unknown += sum(filled.count(tokenizer.unk) for filled, _ in pairs)
        if report:
            report(start + len(portion), len(questions))
    codes = "means" if sampled is None else f"drawn with seed {sampled}"
    sigma = "sigma = 1" if unit else "sigma that of the latter"
    told = (
        "by the distance, over sigma, of the codes of the question with the answer and with as "
        f"many <unk> ({sigma}; codes are {codes}; {unknown / words:.1%} of the words are unknown)"
    )
    tokens = 2 * (words + sum(len(row) for row in scores))  # with an <eos> each, and both read
    return ranking(scores, questions, tokens, told)


def filled_and_masked(
    question: Question, tokenizer: Tokenizer, unk: int
) -> list[tuple[Tokens, Tokens]]:
    """x_k and u_k of each candidate. There is one "?" after the question, whether written or
    not."""

    def encoded(text: str) -> list[int]:
        return tokenizer.encode(tokenizer.adapted(text)).tolist()

    before = encoded(f"{asked(question.question)} ")
    answers = [encoded(one_line(answer)) for answer in question.answers]
    return [((*before, *answer), (*before, *[unk] * len(answer))) for answer in answers]


def _scores(
    model: SentenceModel,
    eos: int,
    pairs: Sequence[tuple[Tokens, Tokens]],
    generator: torch.Generator | None,
    unit: bool,
) -> Array:
    """S of each pair, (N,). Equal sentences are read once, so that equal answers are tied."""
    numbers = {sentence: i for i, sentence in enumerate(dict.fromkeys(s for p in pairs for s in p))}
    posterior = posteriors(model, Lines.of(list(numbers), eos))
    filled, masked = (
        Posterior(*(tensor[[numbers[sentence] for sentence in side]] for tensor in posterior))
        for side in zip(*pairs, strict=True)
    )
    scores = distances(filled, masked, generator, unit)
    if not np.isfinite(scores).all():
        raise RunError("the model gives codes that are not finite: use an earlier checkpoint")
    return scores


def distances(
    filled: Posterior, masked: Posterior, generator: torch.Generator | None, unit: bool
) -> Array:
    """|| (z_u - z_x) / sigma_u || of N pairs, (N,), from q(z | x) and q(z | u), (N, Z) each."""
    if generator is None:
        difference = masked.mean - filled.mean
    else:
        noise = torch.randn(2, *filled.mean.shape, generator=generator, dtype=torch.float64)
        difference = masked.at(noise[0]) - filled.at(noise[1])
    if not unit:
        difference = difference * (-0.5 * masked.log_variance).exp()
    return difference.norm(dim=1).numpy()


def chance(questions: Sequence[Question]) -> Ranking:
    """Of candidates in a random order, exactly: P@1 = mean 1 / K, MRR = mean H_K / K."""
    same = [np.zeros(len(each.answers)) for each in questions]
    return ranking(same, questions, 0, "in random order, exactly")


def shortest(questions: Sequence[Question]) -> Ranking:
    """The shortest candidate first. Longer answers move the code more, so S_k partly reflects
    length."""
    words = [np.array([float(len(a.split())) for a in each.answers]) for each in questions]
    return ranking(words, questions, int(sum(row.sum() for row in words)), "the shortest first")


def overlap(questions: Sequence[Question]) -> Ranking:
    """By the words a candidate shares with the question: a baseline without a model.

        - sum over words w of  n_Q(w) n_A(w) idf(w)^2 / || n_A idf ||,    idf(w) = ln(N / N_w)

    the cosine of tf-idf vectors, up to a factor of the question's. n(w) counts a word, in lower
    case and without punctuation; N_w of the N different candidates of all questions have it.
    """
    bags = {answer: _words(answer) for each in questions for answer in each.answers}
    found = Counter(word for bag in bags.values() for word in bag)
    idf = {word: math.log(len(bags) / count) for word, count in found.items()}
    norms = {
        answer: _norm(n * idf[word] for word, n in bag.items()) for answer, bag in bags.items()
    }

    def score(question: Counter[str], answer: str) -> float:
        shared = bags[answer].keys() & question.keys()
        # Sorted, because a sum of the same terms in another order would break ties.
        products = sorted(question[word] * bags[answer][word] * idf[word] ** 2 for word in shared)
        return -sum(products) / (norms[answer] or 1.0)

    asked = [_words(each.question) for each in questions]
    scores = [
        np.array([score(words, answer) for answer in each.answers])
        for words, each in zip(asked, questions, strict=True)
    ]
    tokens = sum(bag.total() for bag in [*asked, *bags.values()])
    told = "by the words shared with the question: the cosine of tf-idf vectors"
    return ranking(scores, questions, tokens, told)


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.lower()))


def _norm(values: Iterable[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in values))


def ranking_measurements(
    found: Ranking, *, split: str, method: str, notes: Sequence[str] = ()
) -> list[Measurement]:
    """Precision at 1 and mean reciprocal rank, with standard errors.

    Questions of one group, such as those on one paragraph, are dependent: with G groups of Q
    questions,

        stderr^2 = G / (G - 1)  sum over groups of (sum over its questions of v - mean v)^2 / Q^2

    which is that of independent questions where each is a group by itself. None for one group.
    notes: what `read_questions` left out.
    """
    least, most = found.candidates.min(), found.candidates.max()
    count, equal = len(found.better), int((found.tied > 1).sum())
    convention = (
        f"{count:,} question{'s'[: count != 1]}, {least} to {most} candidates each, one right; "
        f"ranked {found.score}; the right one tied with others in {equal:,}: then the mean over "
        "all orders counts"
    )
    if notes:
        convention += f"; left out: {', '.join(notes)}"

    def measure(metric: str, values: Array, unit: str) -> Measurement:
        told = (found.tokens, split, method, convention)
        return Measurement(metric, float(values.mean()), unit, _stderr(values, found.group), *told)

    return [
        measure("precision_at_1", found.first, "share of questions"),
        measure("mean_reciprocal_rank", found.reciprocal, "1 / rank"),
    ]


def _stderr(values: Array, group: npt.NDArray[np.int64]) -> float | None:
    sums = np.bincount(group, values - values.mean())
    groups = len(sums)
    if groups < 2:
        return None
    return float(math.sqrt(groups / (groups - 1) * (sums**2).sum()) / len(values))
