"""Codes and sentences: decoding against the model's own distribution, and what is done with it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from infolm.data.sentences import Lines, SentencesConfig
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation.latent import posteriors
from infolm.generation import latent
from infolm.generation.latent import (
    GREEDY,
    MEAN,
    PERTURBED,
    SAMPLE,
    SentenceWriter,
    between,
    decode,
    distinct,
    drawn,
    nearest,
    read_sentences,
    reconstruct,
)
from infolm.generation.sampling import SamplingSettings
from infolm.models.codes.gaussian import Posterior
from infolm.models.sentence import SentenceConfig, SentenceModel

EOS, UNK, MARK = 0, 1, 2
WORDS = ["<eos>", "<unk>", "?", "the", "a", "cat", "dog", "sees", "hears", "who", "."]
PLAIN = SamplingSettings()
CELLS = ["gru", "lstm", "rewired"]


def small(cell="gru", vocabulary=7, spread=4.0) -> SentenceModel:
    """Weights large enough that codes matter and sentences differ in length."""
    torch.manual_seed(0)
    coder = {"cell": cell, "hidden": 6, "layers": 2}
    config = SentenceConfig(embedding=5, latent={"size": 3}, encoder=coder, decoder=coder)
    model = SentenceModel(config, vocabulary).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight *= spread
        model.softmax.bias[EOS] += 1.5
    return model


def some_codes(num: int, size: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num, size, generator=generator, dtype=torch.float64)


def written(model, z, chosen=PLAIN, longest=12, seed=0, skip=0):
    """decode, as lists; `skip`: the seeds of so many sentences have been taken before."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(skip):
        torch.randint(2**62, (1,), generator=generator)
    found = decode(model, z, chosen, longest, EOS, generator)
    assert all(sentence.dtype == np.int64 for sentence in found)
    return [sentence.tolist() for sentence in found]


def next_log_probs(model, z, prefix):
    """ln p of the word after `prefix` given one code (Z,), by a pass over all of it."""
    inputs = torch.tensor([EOS, *prefix])
    with torch.no_grad():
        return model.log_probs(model.decode(z[None], inputs, [1] * len(inputs))[-1])


# -- decoding -------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("forbid", [(), (UNK, 3)])
def test_greedy_decoding_takes_the_likeliest_word_after_each_prefix(cell, forbid):
    model, z, longest = small(cell), some_codes(20), 9
    expected = []
    for code in z:
        sentence: list[int] = []
        while len(sentence) < longest:
            log_probs = next_log_probs(model, code, sentence)
            log_probs[list(forbid)] = -torch.inf
            word = int(log_probs.argmax())
            if word == EOS:
                break
            sentence.append(word)
        expected.append(sentence)
    assert written(model, z, replace(GREEDY, forbid=forbid), longest) == expected
    assert len({len(sentence) for sentence in expected}) > 2  # they end at different steps


def test_greedy_is_the_limit_of_a_low_temperature():
    model, z = small(), some_codes(20)
    assert written(model, z, GREEDY) == written(model, z, SamplingSettings(temperature=1e-9))


@pytest.mark.parametrize("cell", CELLS)
def test_sampled_sentences_have_the_models_probabilities(cell):
    model, num = small(cell, vocabulary=4, spread=2.0), 3000
    z = some_codes(1)
    probabilities = {}
    for n in range(3):
        for sentence in itertools.product(range(1, 4), repeat=n):
            steps = [*sentence, EOS][:2]  # two words at most: then no <eos> is asked for
            log_p = sum(
                float(next_log_probs(model, z[0], sentence[:t])[word])
                for t, word in enumerate(steps)
            )
            probabilities[sentence] = np.exp(log_p)
    assert sum(probabilities.values()) == pytest.approx(1)
    found = [tuple(sentence) for sentence in written(model, z.expand(num, -1), longest=2)]
    statistic = sum(
        (found.count(sentence) - num * p) ** 2 / (num * p) for sentence, p in probabilities.items()
    )
    assert chi2.sf(statistic, len(probabilities) - 1) > 1e-3


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 100), st.lists(st.integers(0, 11), min_size=1, max_size=4, unique=True))
def test_a_sentence_does_not_depend_on_those_beside_it(seed, chosen):
    model, z = small(), some_codes(12)
    whole = written(model, z, seed=seed)
    for number in chosen:
        alone = written(model, z[number : number + 1], seed=seed, skip=number)
        assert alone == whole[number : number + 1]
    assert written(model, z[:5], seed=seed) == whole[:5]


def test_many_sentences_are_written_in_parts(monkeypatch):
    model, z = small(), some_codes(11)
    whole = written(model, z)
    monkeypatch.setattr(latent, "ENTRIES", 3 * model.vocabulary)
    assert written(model, z) == whole


def test_a_longer_limit_only_goes_on_where_the_shorter_one_stopped():
    model, z = small(), some_codes(30)
    long = written(model, z, longest=10)
    assert written(model, z, longest=3) == [sentence[:3] for sentence in long]
    assert max(map(len, long)) == 10
    assert min(map(len, long)) < 3
    assert not any(EOS in sentence for sentence in long)


def test_forbidden_words_are_never_written():
    found = written(small(), some_codes(50), SamplingSettings(forbid=(UNK, 4)))
    assert not {UNK, 4} & set(itertools.chain.from_iterable(found))


def test_no_codes_give_no_sentences():
    assert written(small(), some_codes(0)) == []


# -- codes ----------------------------------------------------------------------------------


def lines_of(*lengths, seed=0) -> Lines:
    rng = np.random.default_rng(seed)
    return Lines.of([rng.integers(1, 7, n) for n in lengths], EOS)


def test_codes_are_drawn_with_the_scaled_deviation():
    posterior = Posterior(
        torch.tensor([[1.0, -2.0]] * 4000).double(), torch.tensor([[-10.0, 0.0]] * 4000).double()
    )
    generator = torch.Generator().manual_seed(0)
    z = drawn(posterior, 10.0, generator)
    deviation = 10 * torch.tensor([np.exp(-5), 1.0])
    standard = (z - posterior.mean) / deviation
    # Standard errors of the mean and of the deviation of 4,000 draws: 0.016 and 0.011.
    assert standard.mean(0).abs().max() < 5 * 0.016
    assert (standard.std(0) - 1).abs().max() < 5 * 0.011
    assert torch.equal(drawn(posterior, MEAN, generator), posterior.mean)


def test_the_first_codes_are_the_same_for_any_number():
    few, many = (
        drawn(Posterior(*torch.zeros(2, num, 5)), SAMPLE, torch.Generator().manual_seed(3))
        for num in (4, 9)
    )
    assert torch.equal(few, many[:4])


def test_codes_between_two_are_at_equal_distances_and_include_both():
    a, b = some_codes(2, 8)
    z = between(a, b, 9)
    assert torch.equal(z[0], a)
    assert torch.equal(z[-1], b)
    torch.testing.assert_close(z.diff(dim=0), ((b - a) / 8).expand(8, -1))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000), st.integers(1, 12), st.integers(1, 5))
def test_the_nearest_are_those_of_all_distances(seed, num, queries):
    rng = np.random.default_rng(seed)
    means, asked = rng.normal(size=(10, 4)), rng.normal(size=(queries, 4))
    distances, numbers = nearest(torch.from_numpy(asked), torch.from_numpy(means), num)
    slow = np.sqrt(((asked[:, None] - means) ** 2).sum(-1))
    assert np.array_equal(numbers, slow.argsort(1)[:, :num])
    np.testing.assert_allclose(distances, np.sort(slow, 1)[:, :num])


def test_codes_that_nearly_agree_are_told_apart():
    means = 1 + 1e-9 * torch.arange(50, dtype=torch.float64)[:, None].expand(-1, 100)
    distances, numbers = nearest(means[20:21], means, 3)
    assert numbers[0, 0] == 20
    assert set(numbers[0].tolist()) == {19, 20, 21}
    assert distances[0, 0] == 0


def test_the_nearest_are_found_by_blocks(monkeypatch):
    asked, means = some_codes(7), some_codes(30).flip(0)
    whole = nearest(asked, means, 4)
    monkeypatch.setattr(latent, "ENTRIES", 60)
    for a, b in zip(whole, nearest(asked, means, 4), strict=True):
        assert torch.equal(a, b)


def test_repeated_sentences_are_kept_once():
    lines = Lines.of([[1, 2], [3], [1, 2], [1, 2, 3], [3], []], EOS)
    assert [sentence.tolist() for sentence in distinct(lines)] == [[1, 2], [3], [1, 2, 3], []]


@pytest.mark.parametrize("cell", CELLS)
def test_reconstructions_are_decoded_codes(cell):
    model, lines = small(cell), lines_of(3, 1, 6, 2, 6)
    posterior = posteriors(model, lines)
    found = reconstruct(model, lines, MEAN, GREEDY, 8, seed=1)
    assert [sentence.tolist() for sentence in found] == written(model, posterior.mean, GREEDY, 8)


# -- text -----------------------------------------------------------------------------------

SENTENCES = [
    "the cat sees a dog .",
    "the dog hears a cat .",
    "a cat hears the cat .",
    "a dog sees .",
    "the cat hears .",
    "who sees the dog ? the cat .",
    "who hears the cat ? a dog .",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_words(WORDS)


@pytest.fixture(scope="module")
def learnt(tokenizer) -> SentenceModel:
    """A model that has learnt `SENTENCES` by heart, with and without <unk> for what follows "?"."""
    torch.manual_seed(0)
    coder = {"hidden": 24}
    config = SentenceConfig(embedding=10, latent={"size": 6}, encoder=coder, decoder=coder)
    model = SentenceModel(config, len(tokenizer))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    whole = Lines.of([tokenizer.encode(sentence) for sentence in SENTENCES], EOS)
    blank = Lines.of([hidden_answer(sentence) for sentence in whole], EOS)
    order = np.argsort(-whole.lengths, kind="stable")
    batch, read = whole.packed(order), torch.from_numpy(blank.packed(order).read)
    rows = torch.from_numpy(batch.read)
    targets = torch.from_numpy(batch.targets)
    for step in range(250):
        posterior = model.encode(read if step % 2 else rows, batch.sizes)
        z = posterior.at(torch.randn_like(posterior.mean))
        hidden = model.decode(z, torch.from_numpy(batch.inputs), batch.sizes)
        loss = model.nll_sum(hidden, targets) + 0.1 * posterior.kl().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def hidden_answer(sentence):
    place = np.flatnonzero(sentence == MARK)
    return [UNK if len(place) and i > place[0] else word for i, word in enumerate(sentence)]


@pytest.fixture
def writer(learnt, tokenizer) -> SentenceWriter:
    return SentenceWriter(learnt, tokenizer, SentencesConfig(), longest=20)


def test_sentences_come_back_from_their_codes(writer):
    found = writer.reconstruct(writer.read(SENTENCES))
    assert [one.sentence for one in found] == SENTENCES
    assert [one.written[0] for one in found] == SENTENCES
    assert all(len(one.written) == 3 for one in found)
    (only,) = writer.reconstruct(writer.read(SENTENCES[2:3]), [MEAN])
    assert only.written == (SENTENCES[2],)


def test_an_interpolation_goes_from_one_sentence_to_the_other(writer):
    found = writer.interpolate(SENTENCES[0], SENTENCES[4], 9)
    assert len(found) == 9
    assert (found[0], found[-1]) == (SENTENCES[0], SENTENCES[4])


def test_perturbed_sentences_leave_the_sentence_as_the_scale_grows(writer):
    sentence = SENTENCES[0]
    kept = [writer.perturb(sentence, 40, scale).count(sentence) for scale in (0, 1, PERTURBED)]
    assert kept[0] == 40
    assert kept[0] >= kept[1] > kept[2]
    assert writer.perturb(sentence, 3, PERTURBED) == writer.perturb(sentence, 40, PERTURBED)[:3]


@pytest.mark.parametrize("chosen", [GREEDY, PLAIN])
def test_the_seed_decides_samples_and_the_first_are_the_same_for_any_number(writer, chosen):
    writer = replace(writer, settings=chosen)
    lines = writer.read(SENTENCES)
    for sample in (lambda n: writer.sample(n, 1.0), lambda n: writer.sample_aggregated(lines, n)):
        assert sample(3) == sample(12)[:3]
        assert len(set(sample(12))) > 2
    other = replace(writer, seed=2)
    assert other.sample(12, 1.0) != writer.sample(12, 1.0)


def test_samples_without_deviation_are_all_of_the_code_zero(writer):
    (zero,) = written(writer.model, torch.zeros(1, 6), GREEDY, 20)
    assert writer.sample(4, 0.0) == [writer.tokenizer.decode(zero)] * 4


def test_samples_of_the_aggregated_posterior_are_mostly_sentences_of_the_text(writer):
    found = writer.sample_aggregated(writer.read(SENTENCES), 60)
    assert set(found) >= set(SENTENCES[:5])
    assert sum(sentence in SENTENCES for sentence in found) > 30


def test_a_sentence_of_the_text_is_its_own_nearest_neighbour(writer):
    lines = writer.read([*SENTENCES, *SENTENCES])
    found = writer.neighbours(SENTENCES, lines, 3)
    for sentence, near in zip(SENTENCES, found, strict=True):
        assert near[0].sentence == sentence
        assert near[0].distance == pytest.approx(0, abs=1e-5)
        assert len({one.sentence for one in near}) == 3
        assert near[0].distance < near[1].distance <= near[2].distance


@pytest.mark.parametrize(
    "question", ["who sees the dog ?", "who sees the dog?", "who sees the dog"]
)
def test_an_answer_is_what_follows_the_question_mark(writer, question):
    short, long = writer.answer(question, (3, 5))
    assert (short.words, long.words) == (3, 5)
    assert short.written == "who sees the dog ? the cat ."
    assert short.text == "the cat ."
    assert "<unk>" not in short.written + long.written


def test_without_a_question_mark_there_is_no_answer(writer):
    forbidding = replace(writer, settings=SamplingSettings(forbid=(MARK,)))
    assert [one.text for one in forbidding.answer("who sees the dog ?")] == [""] * 3


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (["the cat", "the zebra sees the gnu"], "sentence 2.*'zebra', 'gnu'"),
        (["the cat", " "], "sentence 2 is empty"),
        (["the cat\nthe dog"], "sentence 1 has more than one line"),
        (["the cat <eos> the dog"], "sentence 1 has more than one line"),
        (["the cat", "the " * 101], "sentence 2 has 101 tokens.*at most 100: shorten it"),
    ],
)
def test_what_cannot_be_read_is_refused(writer, sentences, message):
    with pytest.raises(InfolmError, match=message):
        writer.read(sentences)


def test_unknown_words_and_long_sentences_are_read_where_that_is_allowed(writer):
    willing = replace(writer, unknown=True, feed=SentencesConfig(longest=3, beyond="cut"))
    lines = willing.read(["the zebra sees the gnu"])
    assert [sentence.tolist() for sentence in lines] == [[3, UNK, 7]]


def test_questions_need_an_unknown_word_and_a_question_mark(writer):
    without_mark = Tokenizer.from_words(["<eos>", "<unk>", "who", "sees"])
    with pytest.raises(InfolmError, match="lacks '\\?'"):
        replace(writer, tokenizer=without_mark).answer("who sees ?")
    with pytest.raises(InfolmError, match="this vocabulary has none"):
        replace(writer, tokenizer=Tokenizer.from_bytes()).answer("who sees ?")


def test_a_file_has_a_sentence_a_line(tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_text("the cat\na dog sees\n", encoding="utf-8")
    assert read_sentences(path) == ["the cat", "a dog sees"]
    path.write_text("the cat\r\na dog", encoding="utf-8", newline="")
    assert read_sentences(path) == ["the cat", "a dog"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"the cat\n\na dog\n", "line 2 of .* is empty"),
        (b"", "line 1 of .* is empty"),
        (b"the cat\n  \n", "line 2 of .* is empty"),
        (b"\xff\xfe", "not UTF-8"),
        (None, "cannot be read: No such file"),
    ],
)
def test_bad_files_are_refused(tmp_path, content, message):
    path = tmp_path / "sentences.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InfolmError, match=message):
        read_sentences(path)
