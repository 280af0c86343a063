"""The grid: what is tried, what is chosen, and a folder that is written whole or not at all."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from encoder_tiny import squad_folder, sst2_folder, tiny_encoder

from infolm.errors import InfolmError, RunError
from infolm.finetuning import networks, search
from infolm.finetuning.networks import open_encoder
from infolm.finetuning.problems import Options, read_problem, run
from infolm.finetuning.trial import Epoch, Settings, Trial
from infolm.training.run import RunFolder


def silent(share, text):
    pass


def test_the_grid_is_the_papers():
    tried = search.grid(search.RATES, search.BATCHES, 4, 5)
    assert len(tried) == len(set(tried)) == 5 * 2 * 5
    assert {settings.seed for settings in tried} == {1, 2, 3, 4, 5}
    assert search.grid([1e-5, 1e-5], [16], 1, 1) == [Settings(1e-5, 16, 1, 1)]


@pytest.fixture
def problem(tmp_path):
    return read_problem("sst2", sst2_folder(tmp_path / "sst2"), tiny_encoder())


# Dev accuracy by (rate, seed), an epoch each.
ACCURACIES = {
    (0.1, 1): [0.9, 0.5],
    (0.1, 2): [0.1, 0.2],
    (0.2, 1): [0.3, 0.7],
    (0.2, 2): [0.8, 0.6],
    (0.3, 1): [0.75, 0.75],
    (0.3, 2): [0.75, 0.1],
}


@pytest.fixture
def told(problem, monkeypatch, tmp_path):
    """A search whose trials have the accuracies above, and weights that say which it was."""

    def pretended(problem, encoder, settings, watch, folder):
        values = ACCURACIES[settings.learning_rate, settings.seed]
        watch(1, 0.5)
        weights = problem.network(encoder).state_dict()
        weights["classifier.bias"] = torch.tensor([settings.learning_rate, settings.seed])
        # What is reported would choose otherwise.
        epochs = [
            Epoch(
                0.0, {"dev": {"accuracy": v}}, {"dev": {"accuracy": 1 - v}}, {"dev": 1 + (v > 0.5)}
            )
            for v in values
        ]
        folder.mkdir()
        RunFolder(folder).save_model(weights)
        return Trial(settings, epochs, int(np.argmax(values)))

    monkeypatch.setattr(search, "fine_tune", pretended)
    tried = search.grid([0.1, 0.2, 0.3], [8], 2, 2)
    found = search.search(problem, tiny_encoder(), tried, silent, tmp_path)
    # Only the chosen trial's weights are kept.
    assert [path.parent.name for path in tmp_path.glob("*/model.safetensors")] == ["0.2-8-2-2"]
    return found


def test_the_highest_mean_is_chosen_and_its_best_trial_kept(told):
    # The best trial of all is of rate 0.1, whose mean is 0.55; rates 0.2 and 0.3 have 0.75.
    assert told.trials[told.chosen].settings == Settings(0.2, 8, 2, 2)
    assert told.network.classifier.bias.tolist() == pytest.approx([0.2, 2])
    assert told.test == {}


def test_the_spread_is_over_seeds_at_the_best_and_at_the_last_epoch(told):
    rows = search.summary(told)
    assert [row["chosen"] for row in rows] == [False, True, False]
    spread = pytest.approx(statistics.stdev([0.9, 0.2]))
    assert rows[0]["choice"]["dev"]["accuracy"] == {
        "mean": pytest.approx(0.55),
        "deviation": spread,
    }
    assert rows[0]["best"]["dev"]["accuracy"] == {"mean": pytest.approx(0.45), "deviation": spread}
    assert rows[1]["last"]["dev"]["accuracy"]["mean"] == pytest.approx(0.35)


def test_the_results_say_what_chose_and_what_is_reported(told, problem):
    found = search.results(problem, told)
    assert found["choice"] == {"on": "half", "examples": {"dev": {"choosing": 16, "reported": 16}}}
    assert found["note"] == search.NOTES["half"]
    assert found["chosen"]["choice"]["dev"]["accuracy"] == 0.8
    assert found["chosen"]["dev"]["dev"]["accuracy"] == pytest.approx(0.2)
    assert found["trials"][0]["by_epoch"][0]["choice"]["dev"]["accuracy"] == 0.9
    assert found["head"] == "pooler"
    # Sixteen of each class, halved class by class.
    assert found["best_constant"]["dev"] == {"answer": "0", "scores": {"accuracy": 0.5}}


def test_a_model_with_one_answer_and_a_rate_at_the_edge_are_warned_of(told, problem):
    said = search.warnings(problem, told)
    # Seed 2 of rate 0.1 alone has one answer after its best epoch.
    assert said == [
        "1 of 6 trials give the same answer to all examples, even after their best epoch"
    ]
    worst = replace(told, chosen=1)
    first, _, last = search.warnings(problem, worst)
    assert first.startswith("the chosen model gives the same answer to all 32 examples of dev")
    assert last.startswith("the chosen learning rate, 0.1, is the lowest that was tried: try lower")
    (_, highest) = search.warnings(problem, replace(told, chosen=4))
    assert "0.3, is the highest" in highest
    alone = replace(told, trials=told.trials[2:4], chosen=0)
    assert search.warnings(problem, alone) == []  # one rate has no edge
    assert search.results(problem, worst)["warnings"] == [first, said[0], last]


def test_narrow_and_fresh_encoders_have_higher_rates_to_try():
    assert search.rates(768, fresh=False) == search.RATES
    for columns, fresh in ((128, False), (128, True), (768, True)):
        assert search.rates(columns, fresh) == search.HIGH_RATES
    assert min(search.HIGH_RATES) > max(search.RATES)


def test_progress_rises_to_the_end(problem, tmp_path):
    shares = []
    tried = search.grid([1e-3], [16, 32], 2, 2)
    search.search(problem, tiny_encoder(), tried, lambda share, _: shares.append(share), tmp_path)
    assert len(shares) == 2 * 2 * (6 + 3)
    assert shares == sorted(set(shares))
    assert shares[-1] == 1


def test_a_search_that_is_cut_short_is_resumed(problem, tmp_path):
    encoder, tried = tiny_encoder(), search.grid([1e-3, 1e-2], [16], 2, 2)
    alone = search.search(problem, encoder, tried, silent, tmp_path / "alone")
    out = tmp_path / "out"
    state = tmp_path / ".out-trials"

    def run(report, encoder=encoder, tried=tried):
        with search.resumable(out, problem, encoder) as folder:
            return search.search(problem, encoder, tried, report, folder)

    class Enough(Exception):
        pass

    def cut(share, text):
        if "trial 3" in text:
            raise Enough

    with pytest.raises(Enough):
        run(cut)
    begun = {path.name for path in state.iterdir() if path.is_dir()}
    assert begun == {"0.001-16-2-1", "0.001-16-2-2", "0.01-16-2-1"}
    shares = []
    again = run(lambda share, text: shares.append(share))
    assert min(shares) > 0.5  # what had ended is not trained again
    assert (again.trials, again.chosen) == (alone.trials, alone.chosen)
    for name, weight in alone.network.state_dict().items():
        assert torch.equal(again.network.state_dict()[name], weight)
    assert not state.exists()

    with pytest.raises(Enough):
        run(cut)
    # With fewer seeds, the weights of another trial are needed: forgotten, they are trained again.
    fewer = run(silent, tried=[settings for settings in tried if settings.seed == 1])
    assert fewer.trials == alone.trials[::2]
    with pytest.raises(Enough):
        run(cut)
    steps = []
    run(lambda share, text: steps.append(text), replace(encoder, weights={}))
    assert len(steps) == 4 * 12  # of another encoder nothing is taken over


@pytest.mark.parametrize("architecture", ["bert", "xlnet"])
def test_transformers_reads_the_folder_and_gives_the_same_scores(architecture, tmp_path):
    from transformers import (
        AutoModelForQuestionAnswering,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoTokenizer,
    )

    encoder = tiny_encoder(architecture)
    sst2 = read_problem("sst2", sst2_folder(tmp_path / "sst2"), encoder)
    linear = read_problem("sst2", tmp_path / "sst2", encoder, Options(head="linear"))
    squad = read_problem("squad", squad_folder(tmp_path / "squad"), encoder)
    readers = (
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoModelForQuestionAnswering,
    )
    text = "the old dog is good"
    for problem, reader in zip((sst2, linear, squad), readers, strict=True):
        folder = tmp_path / f"out-{reader.__name__}"
        with search.resumable(folder, problem, encoder) as state:
            found = search.search(problem, encoder, search.grid([1e-3], [32], 1, 1), silent, state)
        search.write(folder, found, encoder, problem.length, search.results(problem, found))
        with networks.quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            read = reader.from_pretrained(folder, local_files_only=True)
        given = tokenizer(text, return_tensors="pt")
        special = encoder.tokenizer.special
        expected = [special.cls, *encoder.tokenizer.encode(text), special.sep]
        assert given["input_ids"].tolist() == [expected]
        assert tokenizer.model_max_length == 32
        with torch.inference_mode():
            for ours, theirs in zip(
                run(found.network, problem.train, np.arange(4)).to_tuple(),
                run(read.eval(), problem.train, np.arange(4)).to_tuple(),
                strict=True,
            ):
                assert torch.equal(ours, theirs)
        assert json.loads((folder / "results.json").read_text())["length"] == 32
        assert [path.name for path in tmp_path.glob(".*")] == []
    assert read.config.num_labels == 2


def test_the_labels_have_the_names_of_the_task(problem):
    names = networks.classifier(tiny_encoder(), ["entailment", "not_entailment"]).config
    assert names.id2label == {0: "entailment", 1: "not_entailment"}
    assert names.label2id == {"entailment": 0, "not_entailment": 1}


def test_a_berts_folder_is_an_encoder(tmp_path, problem):
    from transformers import BertModel

    encoder = tiny_encoder()
    for pooler in (True, False):
        folder = tmp_path / f"bert-{pooler}"
        model = BertModel(encoder.sizes, add_pooling_layer=pooler)
        with networks.quiet():
            model.save_pretrained(folder)
        encoder.tokenizer.save(folder / "tokenizer.json")
        opened = open_encoder(folder)
        assert opened.length == 32
        assert opened.weights.keys() == model.state_dict().keys()
        for name, weight in model.state_dict().items():
            assert torch.equal(opened.weights[name], weight)
        # What was learnt of the layer on [CLS] is taken, too.
        network = networks.classifier(opened, ["no", "yes"])
        if pooler:
            assert torch.equal(network.bert.pooler.dense.weight, model.pooler.dense.weight)


def test_what_is_no_berts_folder_is_refused(tmp_path):
    with pytest.raises(InfolmError, match=r"not an encoder's folder.*recipe\.yaml.*config\.json"):
        open_encoder(tmp_path)
    config = tmp_path / "config.json"
    config.write_text("{}")
    with pytest.raises(InfolmError, match="not one of transformers'"):
        open_encoder(tmp_path)
    config.write_text('{"model_type": "gpt2"}')
    with pytest.raises(InfolmError, match="of type gpt2"):
        open_encoder(tmp_path)
    encoder = tiny_encoder()
    config.write_text(json.dumps(encoder.sizes.to_dict() | {"model_type": "bert"}))
    encoder.tokenizer.save(tmp_path / "tokenizer.json")
    with pytest.raises(InfolmError, match=r"no weights of a BERT.*model\.safetensors"):
        open_encoder(tmp_path)


def written(folder, problem, encoder):
    with search.resumable(folder, problem, encoder) as state:
        found = search.search(problem, encoder, search.grid([1e-3], [32], 1, 1), silent, state)
    search.write(folder, found, encoder, problem.length, search.results(problem, found))


def test_a_folder_is_replaced_whole_or_kept(tmp_path, problem, monkeypatch):
    encoder, folder = tiny_encoder(), tmp_path / "deep" / "out"
    written(folder, problem, encoder)
    (folder / "mark").touch()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(networks, "save", full)
        with pytest.raises(RunError, match=r"could not be written.*No space left.*--out"):
            written(folder, problem, encoder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    rename = Path.rename

    def stopped(path, target):
        if path.name == "new":
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stopped)
        with pytest.raises(KeyboardInterrupt):
            written(folder, problem, encoder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    written(folder, problem, encoder)
    assert {path.name for path in folder.iterdir()} == set(before) - {"mark"}
    assert [path.name for path in folder.parent.iterdir()] == ["out"]


def test_a_folder_of_something_else_is_refused(tmp_path):
    search.check_target(tmp_path / "new" / "deep")
    (tmp_path / "results.json").touch()
    search.check_target(tmp_path)
    (tmp_path / "home").mkdir()
    search.check_target(tmp_path / "home")
    (tmp_path / "home" / "letter").touch()
    with pytest.raises(InfolmError, match=r"is not the folder of a fine-tuned model.*--out"):
        search.check_target(tmp_path / "home")
    with pytest.raises(InfolmError, match=r"is a file.*--out"):
        search.check_target(tmp_path / "home" / "letter")
    with pytest.raises(InfolmError, match=r"cannot be written to.*--out"):
        search.check_target(tmp_path / "home" / "letter" / "out")
