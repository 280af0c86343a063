"""Two-Tailed Averaging against its pseudocode, and the propositions of section 3.5."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from training_tiny import Silent, quiet, tiny_sentences, tiny_tree

from infolm.averaging.base import RAW
from infolm.averaging.two_tailed import LONG, SHORT, TwoTailed, TwoTailedConfig, stagnating
from infolm.config import Recipe
from infolm.families.train import train
from infolm.training.run import read_metrics


class Point(nn.Module):
    """A model whose weights are a point in space."""

    def __init__(self, values):
        super().__init__()
        self.place = nn.Parameter(torch.tensor(values, dtype=torch.float64))

    def move_to(self, values):
        with torch.no_grad():
            self.place.copy_(torch.as_tensor(values))


class Idle:
    """How many evaluations in a row an average has not improved."""

    def __init__(self):
        self.best, self.evaluations = float("inf"), 0

    def hear(self, loss):
        self.evaluations = 0 if loss < self.best else self.evaluations + 1
        self.best = min(self.best, loss)


def pseudocode(iterates, E, losses, extensions, patience):
    """Algorithms 1 and 2, line by line; for each evaluation what they return, and S and L.

    `losses`: for each evaluation (F1, FS, FL); FS is FL where the two averages are the same.
    """
    S, L, theta_S, theta_L = 0, 0, 0.0, 0.0
    idle_S, idle_L = Idle(), Idle()
    for t, theta in enumerate(iterates, 1):
        S, theta_S = S + 1, theta_S + (theta - theta_S) / (S + 1)
        L, theta_L = L + 1, theta_L + (theta - theta_L) / (L + 1)
        if t % E:
            continue
        F1, FS, FL = losses[t // E - 1]
        if S == L:
            FS = FL
        idle_S.hear(FS)
        idle_L.hear(FL)
        if FS <= FL or (extensions and idle_L.evaluations >= patience):
            FL = FS
            S, L, theta_L = 0, S, theta_S
            theta_S = 0.0
            idle_S, idle_L = Idle(), idle_S
        elif extensions and idle_S.evaluations >= patience:
            S, theta_S = 0, 0.0
            idle_S = Idle()
        returned = FL, theta_L, L
        if extensions and L > 1 and F1 <= FL:
            if L == E:
                S, L, theta_S, theta_L = 0, 0, 0.0, 0.0
                idle_S, idle_L = Idle(), Idle()
            returned = F1, theta, 1
        yield returned, (S, L)


@st.composite
def courses(draw):
    """A period, losses of some evaluations with many ties, and the settings."""
    loss = st.integers(0, 4).map(float) | st.floats(0, 4)
    losses = draw(st.lists(st.tuples(loss, loss, loss), min_size=1, max_size=25))
    return draw(st.integers(1, 4)), losses, draw(st.booleans()), draw(st.integers(1, 4))


@given(courses())
@settings(max_examples=100, deadline=None)
def test_it_does_what_the_pseudocode_does(course):
    period, losses, extensions, patience = course
    iterates = np.random.default_rng(0).normal(size=len(losses) * period)
    model = Point([0.0])
    averager = TwoTailed(model, TwoTailedConfig(extensions=extensions, patience=patience))
    slow = pseudocode(iterates, period, losses, extensions, patience)
    for step, iterate in enumerate(iterates, 1):
        model.move_to([iterate])
        averager.update(step)
        if step % period:
            continue
        (loss, weights, length), lengths = next(slow)
        measured = dict(zip((RAW, SHORT, LONG), losses[step // period - 1], strict=True))
        measured = {name: measured[name] for name in averager.candidates()}
        answer = averager.answer(measured)
        assert measured[answer] == loss
        assert {RAW: 1, **averager.lengths()}[answer] == length
        with averager.swapped_in(answer):
            assert model.place.item() == pytest.approx(weights, abs=1e-12)
        averager.validated(measured, 0.0)
        assert tuple(averager.lengths().values()) == lengths
        for name, number in averager.lengths().items():
            if number:
                mean = iterates[step - number : step].mean()
                assert averager.weights(name)[0].item() == pytest.approx(mean, abs=1e-12)


def run(losses_at, evaluations, period, **config):
    """Go through evaluations whose losses are a function of (n, length); gives after each
    (n, lengths before, lengths after, events)."""
    model = Point([0.0])
    averager = TwoTailed(model, TwoTailedConfig(**config))
    for n in range(period, evaluations * period + 1, period):
        for step in range(n - period + 1, n + 1):
            averager.update(step)
        before = averager.lengths()
        lengths = {RAW: 1, **before}
        losses = {name: losses_at(n, lengths[name]) for name in averager.candidates()}
        events = averager.validated(losses, 0.0)
        yield n, before, averager.lengths(), events


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.booleans())
@settings(max_examples=50, deadline=None)
def test_lengths_are_multiples_of_the_period_and_in_order(seed, period, extensions):
    """Proposition 1, (i), (ii) and (iv), whatever the losses."""
    rng = np.random.default_rng(seed)
    last_short = 0  # the length of the short average when it last became the long one
    course = run(lambda n, length: rng.random(), 30, period, extensions=extensions)
    for n, before, after, events in course:
        for lengths in (before, after):
            assert lengths[SHORT] % period == lengths[LONG] % period == 0
            assert lengths[SHORT] <= lengths[LONG] <= n
        if "switched" in events and "restarted" not in events:
            last_short = before[SHORT]
            assert after == {SHORT: 0, LONG: last_short}
        if not extensions and last_short:
            assert after[LONG] == after[SHORT] + last_short


# A quadratic in many directions, f(x) = 1/2 sum_k lambda_k x_k^2, descended with noisy gradients:
# x <- x - rate (lambda x + noise). Each coordinate is x_t = a^t + an autoregressive process, so
# that the expected loss of every average is known.

STEPS, PERIOD, RATE, NOISE = 1000, 10, 0.5, 0.05
LAMBDAS = 2.0 ** -np.arange(9)
GRID = range(PERIOD, STEPS + 1, PERIOD)


def expected_losses():
    """{n: E f(avg(n, delta)) for delta = 1 ... n}, for each n that PERIOD divides."""
    time = np.arange(1, STEPS + 1)
    losses = {n: np.zeros(n) for n in GRID}
    for curvature in LAMBDAS:
        a = 1 - RATE * curvature
        power = a ** np.arange(2 * STEPS + 1)
        signal = np.append(0, np.cumsum(power[time]))  # of x_1 ... x_t without noise
        # Cov(x_i, x_j) = (rate noise)^2 a^|i-j| (1 - a^(2 min(i, j))) / (1 - a^2), summed up.
        earlier = np.minimum(time[:, None], time)
        covariance = power[abs(time[:, None] - time)] * (1 - power[2 * earlier])
        block = np.zeros((STEPS + 1, STEPS + 1))
        block[1:, 1:] = covariance.cumsum(0).cumsum(1) * (RATE * NOISE) ** 2 / (1 - a**2)
        for n in GRID:
            start = np.arange(n - 1, -1, -1)
            bias = signal[n] - signal[start]
            variance = block[n, n] - 2 * block[n, start] + block[start, start]
            losses[n] += curvature / 2 * (bias**2 + variance) / (n - start) ** 2
    return losses


@pytest.fixture(scope="module")
def quadratic():
    return expected_losses()


def test_the_expected_losses_are_those_of_simulated_descent(quadratic):
    rng = np.random.default_rng(0)
    walks, steps = 4000, 60
    x = np.ones((walks, len(LAMBDAS)))
    path = []
    for _ in range(steps):
        x = x - RATE * (LAMBDAS * x + NOISE * rng.normal(size=x.shape))
        path.append(x)
    for length in (1, 10, 60):
        losses = np.mean(path[-length:], 0) ** 2 @ LAMBDAS / 2
        error = losses.std() / walks**0.5
        assert abs(losses.mean() - quadratic[steps][length - 1]) < 4 * error


def test_lengths_are_bounded_by_the_optimal_one(quadratic):
    """Propositions 2, 3 and 4, against the optimal length found by trying all."""
    optimal = {n: int(losses.argmin()) + 1 for n, losses in quadratic.items()}
    floor = {n: best // PERIOD * PERIOD for n, best in optimal.items()}
    ceiling = {n: -(-best // PERIOD) * PERIOD for n, best in optimal.items()}
    # The assumptions 1, 2 and 4 that the propositions rest on:
    assert all(optimal[n] <= optimal[n + PERIOD] for n in GRID[:-1])
    for n, losses in quadratic.items():
        assert (np.diff(losses[PERIOD - 1 : floor[n] : PERIOD]) < 0).all()
        assert (losses[ceiling[n] - 1] <= losses[ceiling[n] - 1 :]).all()
    course = list(run(lambda n, d: quadratic[n][d - 1], len(GRID), PERIOD, extensions=False))
    for n, _, after, _ in course:
        assert after[SHORT] < optimal[n]
        assert after[LONG] < 2 * optimal[n] + PERIOD
    switches = [i for i, (_, _, _, events) in enumerate(course) if "switched" in events]
    assert len(switches) >= 4
    for i, j in itertools.pairwise(switches):
        assert any(after[LONG] in (floor[n], ceiling[n]) for n, _, after, _ in course[i:j])


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_the_loss_falls_from_switch_to_switch_where_it_is_convex(seed, period):
    """Proposition 5, for any walk: F_N is the loss of the short average as it becomes the long."""
    rng = np.random.default_rng(seed)
    model = Point([3.0, -2.0])
    averager = TwoTailed(model, TwoTailedConfig(extensions=False))

    def f():
        x, y = model.place.tolist()
        return abs(x - 1) + (x + y) ** 2

    place, at_switch = np.array([3.0, -2.0]), []
    for step in range(1, 40 * period + 1):
        place = 0.95 * place + rng.normal(size=2)
        model.move_to(place)
        averager.update(step)
        if step % period == 0:
            losses = {}
            for name in averager.candidates():
                with averager.swapped_in(name):
                    losses[name] = f()
            if averager.validated(losses, 0.0):
                at_switch.append(losses[SHORT])
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(at_switch))


def test_the_long_average_is_a_saw_tooth(quadratic):
    """Figure 3.4: after each switch the length begins lower, and grows by E at each evaluation."""
    course = list(run(lambda n, d: quadratic[n][d - 1], len(GRID), PERIOD))
    lengths = [after[LONG] for _, _, after, _ in course]
    for (_, before, after, events), last in zip(course[1:], lengths, strict=False):
        if "switched" in events:
            assert after[LONG] == before[SHORT] < last + PERIOD
        elif "restarted" not in events:
            assert after[LONG] == last + PERIOD


@pytest.mark.parametrize(
    ("losses", "patience", "expected"),
    [
        ([], 1, False),
        ([1], 1, False),
        ([1, 1], 1, True),  # as good is no improvement
        ([1, 0.5], 1, False),
        ([3, 2, 2.5, 2.5], 3, False),
        ([3, 2, 2.5, 2.5, 2.1], 3, True),  # figure 3.6: lowest at 40E, reset at 43E
        ([3, 2, 2.5, 1.9, 2.1], 3, False),
    ],
)
def test_stagnation_on_hand_made_curves(losses, patience, expected):
    assert stagnating(losses, patience) == expected


def play(averager, rows):
    """Evaluations two steps apart with the losses given; gives the events of each."""
    events, step = [], 0
    for row in rows:
        for _ in range(2):
            step += 1
            averager.update(step)
        losses = dict(zip((RAW, SHORT, LONG), row, strict=True))
        events.append(averager.validated({c: losses[c] for c in averager.candidates()}, 0.0))
    return events


def test_a_long_average_that_stagnates_gives_way():
    rows = [(9, 0, 5), (9, 6, 4), (9, 6, 4.1), (9, 6, 4.2), (9, 6, 4.3), (9, 6, 6.1)]
    averager = TwoTailed(Point([0.0]), TwoTailedConfig())
    assert play(averager, rows[:5]) == [[], [], [], [], ["switched"]]
    # What was the short average brings its own losses along: 6, 6, 6, 6 is stagnation too.
    assert play(averager, rows[5:]) == [["switched"]]
    core = TwoTailed(Point([0.0]), TwoTailedConfig(extensions=False))
    assert play(core, rows[:5]) == [[]] * 5


def test_a_short_average_that_stagnates_begins_anew():
    rows = [(9, 0, 5), (9, 6, 4), (9, 6, 3.9), (9, 6, 3.8), (9, 6, 3.7)]
    averager = TwoTailed(Point([0.0]), TwoTailedConfig())
    assert play(averager, rows) == [[], [], [], [], ["emptied"]]
    assert averager.lengths() == {SHORT: 0, LONG: 10}


def test_while_the_iterate_is_better_both_begin_anew():
    averager = TwoTailed(Point([0.0]), TwoTailedConfig())
    assert play(averager, [(4, 0, 5), (3, 0, 4)]) == [["restarted"], ["restarted"]]
    assert averager.lengths() == {SHORT: 0, LONG: 0}
    assert averager.candidates() == (RAW,)
    assert "a single iterate" in averager.unused()
    assert play(averager, [(4, 0, 3)]) == [[]]
    assert averager.unused() is None
    # Later a better iterate is the answer, and the averages go on.
    assert play(averager, [(1, 4, 3)]) == [[]]
    assert averager.lengths() == {SHORT: 2, LONG: 4}
    assert averager.answer({RAW: 1, SHORT: 4, LONG: 3}) == RAW


def test_the_same_weights_are_measured_once():
    averager = TwoTailed(Point([0.0]), TwoTailedConfig())
    assert averager.candidates() == (RAW,)
    averager.update(1)
    assert averager.candidates() == (RAW, LONG)
    averager.validated({RAW: 2.0, LONG: 1.0}, 0.0)
    averager.update(2)
    assert averager.candidates() == (RAW, SHORT, LONG)


# -- switching on the training loss (section 3.6, ii) ------------------------------------------


def trained(folder, name, texts, **averaging):
    """A run of a few validations on a folder with these texts; its validations and events."""
    data = folder / f"{name}-data"
    data.mkdir()
    for split, text in texts.items():
        (data / f"{split}.txt").write_text(text)
    tree = tiny_tree(data, validate_every=4, max_steps=80)
    tree["averaging"] = {"kind": "two-tailed", "patience": 2, **averaging}
    train(Recipe.model_validate(tree), folder / name, False, Silent(), quiet)
    records = list(read_metrics(folder / name / "metrics.jsonl"))
    validations = [record for record in records if record["kind"] == "validation"]
    events = [(r["step"], r["name"]) for r in records if r["kind"] == "event"]
    return validations, events


def test_the_training_losses_decide_and_the_validation_losses_are_reported(tmp_path, small_text):
    text = small_text.read_text()
    held_out = "".join(f"{line[::-1]}\n" for line in text.splitlines()[:60])
    texts = {"train": text, "valid": held_out, "test": held_out}
    validations, events = trained(tmp_path, "run", texts, switch_on="train")
    averager, place = TwoTailed(Point([0.0]), TwoTailedConfig(patience=2)), 0
    other, replayed, otherwise = TwoTailed(Point([0.0]), TwoTailedConfig(patience=2)), [], []
    for record in validations:
        while place < record["step"]:
            place += 1
            averager.update(place)
            other.update(place)
        names = averager.candidates()
        assert {f"train_{name}" for name in names} == {k for k in record if "train_" in k}
        by_training = {name: record[f"train_{name}"] for name in names}
        assert record["answer"] == averager.answer(by_training)
        assert record["loss"] == record[record["answer"]]
        told = averager.validated(by_training, 0.0)
        replayed += [(record["step"], event) for event in told]
        if set(other.candidates()) == set(names):
            told = other.validated({name: record[name] for name in names}, 0.0)
            otherwise += [(record["step"], event) for event in told]
    assert events == replayed
    assert any(name == "switched" for _, name in events)
    assert otherwise != replayed  # the text is such that the validation losses would say otherwise


def test_on_one_and_the_same_text_both_losses_decide_alike(tmp_path, small_text):
    text = "".join(small_text.read_text().splitlines(keepends=True)[:150])
    texts = dict.fromkeys(("train", "valid", "test"), text)
    by_valid = trained(tmp_path, "valid", texts)
    by_train = trained(tmp_path, "train", texts, switch_on="train")
    assert by_valid[1] == by_train[1]
    for a, b in zip(by_valid[0], by_train[0], strict=True):
        assert a == {key: value for key, value in b.items() if "train_" not in key}
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("valid", "train")]
    assert weights[0] == weights[1]


def test_the_training_loss_needs_a_running_text(small_text):
    tree = tiny_sentences(small_text)
    tree["averaging"] = {"kind": "two-tailed", "switch_on": "train"}
    with pytest.raises(ValueError, match=r"set averaging\.switch_on=valid"):
        Recipe.model_validate(tree)
