"""Programs that score models of `transformers` get the numbers of `infolm score` from ours."""

import json
import math

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from infolm.exports.base import export, made
from infolm.families.base import open_run
from infolm.finetuning.networks import quiet

PAIRS = [
    ("the cat sees a dog", "dog a sees cat the"),
    ("a bird hears and then sleeps", "a hears bird then and sleeps"),
    ("the dog sleeps", "the dog the"),
    ("and then the bird sees a cat", "and then the sees bird a zebra"),
]
SENTENCES = [sentence for pair in PAIRS for sentence in pair]

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def handed_on(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "folder"
    export(open_run(trained), made("transformers", {}), folder)
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(folder)
        return model.eval(), AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def surprisals(trained):
    """Of the tokens of each sentence behind `<eos>`, in nats."""
    scored = open_run(trained).score(SENTENCES, unit="nats", eos=False)
    return [[token.surprisal for token in sentence.tokens] for sentence in scored]


def test_minicons_finds_our_surprisals(handed_on, surprisals):
    from minicons.scorer import IncrementalLMScorer

    model, tokenizer = handed_on
    scorer = IncrementalLMScorer(model, "cpu", tokenizer=tokenizer)
    found = scorer.token_score(SENTENCES, surprisal=True, bos_token=True)
    for sentence, tokens, true in zip(SENTENCES, found, surprisals, strict=True):
        (bos, _), *rest = tokens
        assert bos == tokenizer.bos_token
        assert [word for word, _ in rest][:3] == sentence.split()[:3]
        assert [value for _, value in rest] == pytest.approx(true, rel=1e-5)


@pytest.fixture
def evaluated(handed_on, tmp_path, monkeypatch):
    """A task of the harness, by its own description, on lines of JSON."""
    for name in ("HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "hub"))
    from lm_eval import simple_evaluate
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    def run(rows, **description):
        lines = tmp_path / "task.jsonl"
        lines.write_text("\n".join(map(json.dumps, rows)))
        task = ConfigurableTask(
            config={
                "task": "local",
                "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"test": str(lines)}},
                "test_split": "test",
                **description,
            }
        )
        model, tokenizer = handed_on
        scorer = HFLM(pretrained=model, tokenizer=tokenizer, backend="causal", device="cpu")
        found = simple_evaluate(
            scorer,
            tasks=[task],
            task_manager=TaskManager(include_defaults=False),  # not the harness's 13,000 files
            bootstrap_iters=0,
            log_samples=True,
        )
        return found["results"]["local"], found["samples"]["local"]

    return run


def test_the_harness_chooses_as_we_score(evaluated, surprisals):
    rows = [{"good": good, "bad": bad} for good, bad in PAIRS]
    results, samples = evaluated(
        rows,
        output_type="multiple_choice",
        doc_to_text="",
        doc_to_choice="{{[good, bad]}}",
        doc_to_target=0,
        metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    )
    sums = [-math.fsum(values) for values in surprisals]
    found = [float(answer[0]) for row in samples for answer in row["filtered_resps"]]
    assert found == pytest.approx(sums, rel=1e-5)
    right = [good > bad for good, bad in zip(sums[::2], sums[1::2], strict=True)]
    assert results["acc,none"] == sum(right) / len(right)


def test_the_harness_finds_our_perplexity(evaluated, surprisals):
    results, _ = evaluated(
        [{"text": sentence} for sentence in SENTENCES],
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "word_perplexity"}],
    )
    words = sum(len(sentence.split()) for sentence in SENTENCES)
    true = math.exp(math.fsum(map(math.fsum, surprisals)) / words)
    assert results["word_perplexity,none"] == pytest.approx(true, rel=1e-5)
