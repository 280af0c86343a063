"""One fine-tuning: networks around the given encoder, padding that changes nothing, learning."""

import json
import os
import re
import signal
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from encoder_tiny import phrase, squad_folder, sst2_folder, tiny_encoder
from torch.nn import functional

from infolm.errors import InfolmError, RunError
from infolm.finetuning import problems, trial
from infolm.finetuning.inputs import Inputs
from infolm.finetuning.networks import classifier, span_finder
from infolm.finetuning.problems import Classification, Options, read_problem
from infolm.finetuning.spans import evaluate
from infolm.finetuning.tasks import TASKS, Example, Labelled
from infolm.finetuning.trial import Settings, best_weights, fine_tune, score
from infolm.training.run import RunFolder

ARCHITECTURES = ["bert", "xlnet"]


def silent(step, loss):
    pass


@pytest.fixture
def tuned(tmp_path):
    """Fine-tune in a new folder; gives the trial and its folder."""
    numbers = count()

    def run(problem, encoder, *settings):
        folder = tmp_path / f"trial-{next(numbers)}"
        return fine_tune(problem, encoder, Settings(*settings), silent, folder), folder

    return run


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("build", [lambda e: classifier(e, ["no", "yes"]), span_finder])
def test_a_network_has_the_weights_that_were_learnt(architecture, build):
    encoder = tiny_encoder(architecture)
    inner = build(encoder).base_model.state_dict()
    for name, weight in encoder.weights.items():
        assert torch.equal(inner[name], weight), name
    fresh = build(replace(encoder, weights={})).base_model.state_dict()
    assert all(not torch.equal(fresh[k], w) for k, w in encoder.weights.items() if w.ndim > 1)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("build", [lambda e: classifier(e, ["no", "yes"]), span_finder])
def test_padding_changes_nothing(architecture, build):
    encoder = tiny_encoder(architecture)
    network = build(encoder).eval()
    rng = np.random.default_rng(0)
    rows = [rng.integers(5, len(encoder.tokenizer), length) for length in (4, 9, 17, 6)]
    inputs = Inputs.of(rows, [2, 5, 9, 6], encoder.tokenizer.special.pad)

    def scores(numbers):
        found = problems.run(network, inputs, np.array(numbers))
        return found.logits if "logits" in found else found.start_logits

    with torch.inference_mode():
        together = scores([0, 1, 2, 3])
        for number, row in enumerate(rows):
            alone = scores([number])[0]
            here = together[number] if together.shape[1] == 2 else together[number, : len(row)]
            assert torch.allclose(alone, here, atol=1e-5)


def test_xlnet_reads_the_first_token():
    network = classifier(tiny_encoder("xlnet"), ["no", "yes"]).eval()
    tokens = torch.randint(5, 50, (1, 7))
    with torch.inference_mode():
        hidden = network.transformer(tokens)[0][:, 0]
        summary = network.sequence_summary
        expected = network.logits_proj(torch.tanh(summary.summary(hidden)))
        assert torch.allclose(network(tokens).logits, expected, atol=1e-6)


def test_the_loss_of_classes_and_of_scores():
    encoder = tiny_encoder()
    examples = [Example("cat", "dog", 2.0), Example("the old king", "bird", 0.0)]
    numbers = np.array([1, 0])
    for name in ("mnli", "stsb"):
        labelled = Labelled(examples, {"dev": examples}, {})
        problem = Classification(TASKS[name], labelled, encoder, 16, "dev")
        network = problem.network(encoder).eval()
        logits = problems.run(network, problem.train, numbers).logits
        loss = problem.loss(network, numbers)
        if name == "mnli":
            logs = logits.log_softmax(1)
            assert loss.item() == pytest.approx(-(logs[0, 0] + logs[1, 2]).item() / 2, abs=1e-6)
        else:
            assert logits.shape == (2, 1)
            expected = (logits[0, 0] ** 2 + (logits[1, 0] - 2) ** 2) / 2
            assert loss.item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_loss_of_spans_is_over_the_tokens_of_each_window(tmp_path):
    encoder = tiny_encoder()
    problem = read_problem("squad", squad_folder(tmp_path), encoder)
    network = problem.network(encoder).eval()
    numbers = np.array([0, 3, 5, 11])
    losses = []
    for number in numbers:
        found = problems.run(network, problem.train, numbers[numbers == number])
        start, end = problem._targets[number]
        losses.append(functional.cross_entropy(found.start_logits, start[None]).item())
        losses.append(functional.cross_entropy(found.end_logits, end[None]).item())
    assert len(set(problem.train.lengths[numbers].tolist())) > 1
    assert problem.loss(network, numbers).item() == pytest.approx(np.mean(losses), abs=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("head", ["pooler", "linear"])
def test_a_word_that_tells_the_class_is_learnt(architecture, head, tmp_path, tuned):
    encoder = tiny_encoder(architecture)
    problem = read_problem("sst2", sst2_folder(tmp_path), encoder, Options(head=head))
    assert problem.counts == {
        "train": {"examples": 96, "cut": 0},
        "dev": {"examples": 32, "cut": 0},
    }
    trial, folder = tuned(problem, encoder, 0.01, 8, 5, 1)
    best = trial.epochs[trial.best]
    assert score(best.choice, "accuracy") == 1.0
    assert score(best.dev, "accuracy") > 0.9
    assert best.answers == {"dev": 2}
    # The weights are those of the best epoch.
    network = problem.network(encoder)
    network.load_state_dict(best_weights(folder))
    with torch.inference_mode():
        found = problem.measure(network.eval())
    assert (found.choice, found.dev, found.answers) == (best.choice, best.dev, best.answers)


def test_the_linear_head_is_one_layer_on_the_vector_of_cls():
    encoder = tiny_encoder()
    labelled = Labelled([Example("the cat", "a dog", 0.0)], {}, {})
    problem = Classification(TASKS["mnli"], labelled, encoder, 16, head="linear")
    network = problem.network(encoder).eval()
    new = {name for name, _ in network.named_parameters()} - {f"bert.{k}" for k in encoder.weights}
    assert new == {"classifier.weight", "classifier.bias"}
    tokens, mask, segments = (torch.from_numpy(x) for x in problem.train.padded(np.array([0])))
    with torch.inference_mode():
        vectors = network.bert(tokens, mask, segments).last_hidden_state
        expected = vectors[:, 0] @ network.classifier.weight.T + network.classifier.bias
        assert expected.shape == (1, 3)
        loss = problem.loss(network, np.array([0])).item()
        assert loss == pytest.approx(-expected.log_softmax(1)[0, 0].item(), abs=1e-6)


def test_models_are_chosen_on_one_half_and_reported_on_the_other(tmp_path):
    """Both halves measured by hand, from the answers to all of dev."""
    encoder = tiny_encoder()
    folder, questions = sst2_folder(tmp_path / "sst2"), squad_folder(tmp_path / "squad")
    for choose_on in ("half", "dev"):
        options = Options(choose_on=choose_on)
        problem = read_problem("sst2", folder, encoder, options)
        choosing, reported = problem.choice["dev"].choosing, problem.choice["dev"].reported
        network = problem.network(encoder).eval()
        with torch.inference_mode():
            right = problem.predict(network, problem._dev["dev"].inputs) == np.arange(32) % 2
            found = problem.measure(network)
        assert found.choice["dev"]["accuracy"] == pytest.approx(right[choosing].mean())
        assert found.dev["dev"]["accuracy"] == pytest.approx(right[reported].mean())
        if choose_on == "half":
            assert sorted([*choosing, *reported]) == list(range(32))
            assert problem.choice["dev"].counts == {"choosing": 16, "reported": 16}
        else:
            assert choosing.tolist() == reported.tolist() == list(range(32))
        # Of SQuAD too, where no paragraph is on both sides.
        squad = read_problem("squad", questions, encoder, options)
        network = squad.network(encoder).eval()
        with torch.inference_mode():
            found, answers = squad.measure(network), squad.answers(network)
        choice = squad.choice["dev"]
        for numbers, scores in ((choice.choosing, found.choice), (choice.reported, found.dev)):
            some = [squad._questions[number] for number in numbers]
            assert evaluate(answers, some) == scores["dev"]
        sides = [{squad._questions[n].context for n in side} for side in vars(choice).values()]
        assert (sides[0] & sides[1] == set()) == (choose_on == "half")
        assert found.answers == {"dev": len(set(answers.values()))}


def test_a_dev_that_cannot_be_halved_is_refused(tmp_path):
    folder = sst2_folder(tmp_path, dev=1)
    with pytest.raises(InfolmError, match=r"too few examples.*--choose-on dev"):
        read_problem("sst2", folder, tiny_encoder())
    read_problem("sst2", folder, tiny_encoder(), Options(choose_on="dev"))


def test_the_word_after_is_is_found(tmp_path, tuned):
    encoder = tiny_encoder()
    problem = read_problem("squad", squad_folder(tmp_path, articles=20), encoder)
    trial, _ = tuned(problem, encoder, 0.006, 8, 20, 1)
    best = trial.epochs[trial.best].dev["dev"]
    assert best["exact_match"] > 90
    assert best["f1"] >= best["exact_match"]


def long_squad(folder, articles=12):
    """Some forty words a paragraph, one of them an adjective: that is the answer."""
    rng, data = np.random.default_rng(3), []
    for a in range(articles):
        paragraphs = []
        for p in range(8):
            before, answer = f"{phrase(rng, rng.integers(1, 40))} ", rng.choice(["good", "old"])
            asked = {"id": f"q{a}-{p}", "question": "what is the ?"}
            asked["answers"] = [{"answer_start": len(before), "text": str(answer)}]
            context = f"{before}{answer} {phrase(rng, rng.integers(1, 40))}"
            paragraphs.append({"context": context, "qas": [asked]})
        data.append({"paragraphs": paragraphs})
    folder.mkdir(exist_ok=True)
    (folder / "toy.json").write_text(json.dumps({"data": data}))
    return folder


def test_windows_with_the_answer_teach_to_find_it_among_all_windows(tmp_path, tuned):
    """More than half of the windows lack the answer. Learnt without them, it is still found where
    all windows of dev are read."""
    encoder, folder = tiny_encoder(length=24), long_squad(tmp_path)
    problem = read_problem("squad", folder, encoder)
    every = read_problem("squad", folder, encoder, Options(windows="all"))
    assert every.counts["train"]["without the answer"] > 0.5 * every.counts["train"]["windows"]
    assert problem.counts["train"]["without the answer"] == 0
    assert problem.counts["train"]["in no window"] == 0
    assert problem.counts["dev"] == every.counts["dev"]
    assert problem.counts["dev"]["windows"] > 2 * problem.counts["dev"]["examples"]
    trial, _ = tuned(problem, encoder, 0.01, 8, 6, 1)
    assert trial.epochs[trial.best].dev["dev"]["exact_match"] > 90


def test_the_same_seed_gives_the_same_numbers(tmp_path, tuned):
    encoder = tiny_encoder(dropout=0.1)
    problem = read_problem("sst2", sst2_folder(tmp_path), encoder)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    one, _ = tuned(problem, encoder, 1e-3, 16, 2, 1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    same, _ = tuned(problem, encoder, 1e-3, 16, 2, 1)
    other, _ = tuned(problem, encoder, 1e-3, 16, 2, 2)
    fresh, _ = tuned(problem, replace(encoder, weights={}), 1e-3, 16, 2, 1)
    assert one == same
    assert one.epochs[0].loss != other.epochs[0].loss
    assert one.epochs[0].loss != fresh.epochs[0].loss


def killed(run, at):
    """Have a child process do `run(watch)`, and kill it after step `at`."""

    def watch(step, loss):
        if step == at:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        run(watch)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("seconds", [0, 300])  # checkpoints after every step, or after epochs alone
def test_killed_at_any_step_it_resumes_to_the_same_bytes(tmp_path, monkeypatch, tuned, seconds):
    encoder = tiny_encoder(dropout=0.1)
    problem = read_problem("sst2", sst2_folder(tmp_path), encoder)
    settings = (1e-3, 16, 3, 1)  # 6 steps an epoch
    alone, folder = tuned(problem, encoder, *settings)
    monkeypatch.setattr(trial, "CHECKPOINT_SECONDS", seconds)
    again = tmp_path / "again"

    def run(watch):
        return fine_tune(problem, encoder, Settings(*settings), watch, again)

    for at in (1, 4, 6, 7, 12, 17, 18):
        killed(run, at)
    steps = []
    assert run(lambda step, loss: steps.append(step)) == alone
    # A step is not taken again where its checkpoint was written before the kill.
    assert steps == ([18] if seconds == 0 else [13, 14, 15, 16, 17, 18])
    model = RunFolder(again).model
    assert model.read_bytes() == RunFolder(folder).model.read_bytes()
    assert {path.name for path in again.iterdir()} == {"trial.json", model.name}
    assert run(None) == alone  # it has ended: nothing is trained


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'[{"loss": "a"}]', b"\xff"], ids=ascii)
def test_a_damaged_trial_is_named(tmp_path, tuned, damage):
    encoder = tiny_encoder()
    problem = read_problem("sst2", sst2_folder(tmp_path), encoder)
    settings = (1e-3, 16, 1, 1)
    _, folder = tuned(problem, encoder, *settings)
    (folder / trial.ENDED).write_bytes(damage)
    with pytest.raises(InfolmError, match=r"is damaged: move .* away"):
        fine_tune(problem, encoder, Settings(*settings), lambda step, loss: None, folder)


def test_the_earlier_of_equal_epochs_is_best(tmp_path, tuned):
    encoder = tiny_encoder()
    problem = read_problem("sst2", sst2_folder(tmp_path), encoder)
    trial, _ = tuned(problem, encoder, 1e-12, 16, 3, 1)
    assert len({score(epoch.dev, "accuracy") for epoch in trial.epochs}) == 1
    assert trial.best == 0


def test_the_rate_rises_over_a_tenth_of_the_steps_and_falls_to_0(tmp_path, monkeypatch, tuned):
    encoder = tiny_encoder()
    problem = read_problem("sst2", sst2_folder(tmp_path, train=80), encoder)
    rates, step = [], torch.optim.AdamW.step

    def recorded(self, *arguments):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", recorded)
    tuned(problem, encoder, 1.0e-3, 4, 2, 1)
    expected = [min(i / 4, 1 - (i - 1) / 40) * 1e-3 for i in range(1, 41)]
    assert rates == pytest.approx(expected)


def test_a_loss_that_is_not_finite_ends_the_trial(tmp_path, tuned):
    encoder = tiny_encoder()
    broken = {k: torch.full_like(w, torch.nan) for k, w in encoder.weights.items()}
    problem = read_problem("sst2", sst2_folder(tmp_path), encoder)
    with pytest.raises(RunError, match=r"loss of step 1 is nan.*--learning-rate"):
        tuned(problem, replace(encoder, weights=broken), 1e-3, 16, 1, 1)


def test_what_is_asked_of_the_encoder_is_checked(tmp_path):
    encoder = tiny_encoder(length=16)
    with pytest.raises(InfolmError, match=r"'squat'.*squad"):
        read_problem("squat", tmp_path, encoder)
    with pytest.raises(InfolmError, match=r"--length 17 is more .* 16"):
        read_problem("sst2", sst2_folder(tmp_path), encoder, Options(length=17))
    short = read_problem("sst2", tmp_path, encoder, Options(length=8))
    assert short.length == 8
    assert short.counts["train"]["cut"] == 0
    assert short.cut == []
    cut = read_problem("sst2", tmp_path, encoder, Options(length=6))
    assert len(cut.cut) == sum(counts["cut"] for counts in cut.counts.values()) > 0
    assert re.match(r"line \d+ of .*train\.tsv", cut.cut[0])
    assert read_problem("sst2", tmp_path, encoder).length == 16


def test_a_share_of_the_training_examples(tmp_path):
    encoder = tiny_encoder()
    problem = read_problem("sst2", sst2_folder(tmp_path), encoder, Options(share=0.25))
    assert problem.counts["train"]["examples"] == 24
    assert problem.counts["dev"]["examples"] == 32
    squad = read_problem("squad", squad_folder(tmp_path / "squad"), encoder, Options(share=0.5))
    assert squad.counts["train"]["examples"] == 40
