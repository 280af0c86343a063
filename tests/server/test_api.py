"""OpenAI's client and the LM Evaluation Harness talk to the server as it is."""

import json
import math

import numpy as np
import openai
import pytest
import requests

from infolm.families.base import open_run
from infolm.sentence_vectors import SentenceVectors

SENTENCES = ["the cat sees a dog", "dog a sees cat the", "a bird hears", "the dog sleeps"]


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def post(server):
    def post(path, **body):
        return requests.post(f"{server[0]}/v1/{path}", json=body, timeout=30)

    return post


def test_models(client):
    assert {model.id for model in client.models.list()} == {"run", "mim", "mlm", "markup"}
    assert client.models.retrieve("run").owned_by == "infolm"


def test_a_seed_gives_what_the_command_gives(client, trained):
    done = client.completions.create(
        model="run", prompt="the cat", max_tokens=12, n=3, seed=7, temperature=0.9, top_p=0.95
    )
    texts = open_run(trained).generate(
        prompt="the cat", tokens=12, num=3, seed=7, temperature=0.9, top_p=0.95
    )
    assert [choice.text for choice in done.choices] == texts.texts
    assert {choice.finish_reason for choice in done.choices} == {"length"}
    assert done.usage.prompt_tokens == 2
    assert done.usage.completion_tokens == 36


def test_a_stream_is_the_same_text(client):
    asked = {"model": "run", "prompt": "the", "max_tokens": 20, "seed": 3, "n": 2, "logprobs": 2}
    whole = client.completions.create(**asked)
    stream = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    texts, tokens, usage = ["", ""], [[], []], None
    for event in stream:
        for choice in event.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.logprobs.tokens
        usage = event.usage or usage
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices]
    assert usage == whole.usage


def test_it_ends_before_a_stop_string(client):
    asked = {"model": "run", "prompt": "the", "max_tokens": 40, "seed": 1}
    whole = client.completions.create(**asked).choices[0].text
    stop = whole[10:15]
    stopped = client.completions.create(**asked, stop=[stop, "nowhere"]).choices[0]
    assert stopped.text == whole[: whole.index(stop)]
    assert stopped.finish_reason == "stop"
    parts = client.completions.create(**asked, stop=stop, stream=True)
    assert "".join(p.choices[0].text for p in parts) == stopped.text


def test_an_echo_has_the_probabilities_of_score(client, trained):
    (true,) = open_run(trained).score(SENTENCES[0], unit="nats", eos=False, top=2)
    done = client.completions.create(
        model="run", prompt=SENTENCES[0], max_tokens=0, echo=True, logprobs=2
    )
    (choice,) = done.choices
    assert choice.text == SENTENCES[0]
    found = choice.logprobs
    assert found.tokens == [token.token for token in true.tokens]
    assert found.token_logprobs == pytest.approx([t.log_prob for t in true.tokens], rel=1e-5)
    assert found.top_logprobs[0] == pytest.approx(
        {each.token: each.log_prob for each in true.tokens[0].top}, rel=1e-5
    )
    assert [SENTENCES[0][offset:].split()[0] for offset in found.text_offset] == found.tokens


def test_greedy_is_the_likeliest(client):
    done = client.completions.create(
        model="run", prompt="a", max_tokens=5, temperature=0, logprobs=1
    )
    probs = done.choices[0].logprobs
    assert [[name] for name in probs.tokens] == [list(top) for top in probs.top_logprobs]


def test_score_is_the_commands(post, trained):
    for options in (
        {"unit": "nats", "top": 3},
        {"cache": "100,0.1,1"},
        {"dynamic": "0.1,0.001", "segment": 2},
    ):
        found = post("score", model="run", texts=SENTENCES, **options)
        assert found.status_code == 200, found.text
        rule = {"dynamic_rule": "sgd"} if "dynamic" in options else {}
        true = open_run(trained).score(SENTENCES, **options, **rule)
        assert found.json()["data"] == json.loads(json.dumps([s.to_dict() for s in true]))


def test_embeddings_of_sentence_models_and_encoders(client, sentences):
    texts = ["the sun is sea", "the wind"]
    done = client.embeddings.create(model="mim", input=texts)
    true = SentenceVectors.open(sentences / "mim").encode(texts)
    assert np.array([each.embedding for each in done.data]) == pytest.approx(true, abs=1e-6)
    alone = client.embeddings.create(model="mlm", input=texts[1]).data[0].embedding
    both = client.embeddings.create(model="mlm", input=texts, encoding_format="float").data
    assert len(alone) == 16
    assert both[1].embedding == pytest.approx(alone, abs=1e-5)


def test_latent_codes(post, sentences):
    run = open_run(sentences / "mim")
    ends = post("latent/interpolate", model="mim", a="the sun", b="is sea", steps=4).json()["data"]
    texts = run.generate(interpolate=("the sun", "is sea"), steps=4).texts
    assert [each["text"] for each in ends] == texts
    near = post("latent/neighbours", model="mim", sentence="the sun is sun", num=3).json()["data"]
    assert near == run.generate(neighbours="the sun is sun", num=3).records
    anew = post("latent/reconstruct", model="mim", sentences=["the sun"]).json()["data"]
    assert set(anew[0]) == {"sentence", "mean", "drawn", "10 times"}
    drawn = post("latent/sample", model="mim", num=3, seed=5).json()["data"]
    assert [each["text"] for each in drawn] == run.generate(num=3, seed=5).texts


def test_the_map_has_the_principal_components_of_codes(post, sentences):
    from sklearn.decomposition import PCA

    (found,) = post("latent/map", model="mim", num=2000).json()["data"]
    texts = [point["sentence"] for point in found["points"]]
    assert len(set(texts)) == len(texts)
    true = PCA(2).fit(codes := SentenceVectors.open(sentences / "mim").encode(texts))
    assert found["variance"] == pytest.approx(true.explained_variance_ratio_, abs=1e-5)
    places = np.array([[point["x"], point["y"]] for point in found["points"]])
    # A component may point either way.
    assert np.abs(places) == pytest.approx(np.abs(true.transform(codes)), abs=1e-4)
    activity = {unit["unit"]: unit["activity"] for unit in found["units"]}
    assert activity == pytest.approx(dict(enumerate(codes.var(0))), abs=1e-5)
    assert list(activity.values()) == sorted(activity.values(), reverse=True)
    few = post("latent/map", model="mim", num=3).json()["data"][0]["points"]
    assert [each in found["points"] for each in few] == [True] * 3


def test_a_walk_goes_through_the_sentence(post, sentences):
    asked = {"model": "mim", "sentence": "the sun is sea", "steps": 5, "reach": 50}
    walks = [post("latent/walk", **asked, unit=unit).json()["data"] for unit in range(2)]
    (anew,) = post("latent/reconstruct", model="mim", sentences=["the sun is sea"]).json()["data"]
    code = SentenceVectors.open(sentences / "mim").encode(["the sun is sea"])[0]
    for unit, walk in enumerate(walks):
        assert walk[2]["text"] == anew["mean"]
        assert walk[2]["value"] == pytest.approx(code[unit], abs=1e-5)
        assert np.ptp(np.diff([step["value"] for step in walk])) == pytest.approx(0, abs=1e-5)
    writer = open_run(sentences / "mim").writer()
    far = [writer.walk("the sun is sea", unit, [-1e3, 1e3]) for unit in range(3)]
    assert len({text for texts in far for text in texts}) > 1  # the unit is what changes
    assert post("latent/walk", **asked, unit=10**6).status_code == 400


def test_the_diagnosis_is_the_reports(post, sentences):
    from infolm.families.latent.diagnosis import diagnosis
    from infolm.families.latent.report import of_run

    run = open_run(sentences / "mim")
    report = of_run(run, run.lines("valid"))
    true = diagnosis(report.picture, run.recipe, report.reading)
    (found,) = post("latent/diagnosis", model="mim").json()["data"]
    assert (found["verdict"], found["sentence"]) == tuple(true)
    assert [unit["kl"] for unit in found["units"]] == pytest.approx(report.picture.kl.tolist())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("as_tokens", [True, False])
def test_the_harness_finds_our_scores(server, trained, tmp_path, as_tokens):
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from infolm.exports.base import export, made

    run = open_run(trained)
    export(run, made("transformers", {}), tmp_path / "folder")
    harness = LocalCompletionsAPI(
        base_url=f"{server[0]}/v1/completions",
        model="run",
        tokenizer=str(tmp_path / "folder"),
        tokenizer_backend="huggingface",
        tokenized_requests=as_tokens,
        num_concurrent=1,
    )
    asked = [
        Instance("loglikelihood", {}, ("the cat", text.removeprefix("the cat")), i)
        for i, text in enumerate(["the cat sees a dog", "the cat sleeps and hears"])
    ]
    found = harness.loglikelihood(asked)
    scored = run.score(["the cat sees a dog", "the cat sleeps and hears"], unit="nats", eos=False)
    true = [math.fsum(token.log_prob for token in each.tokens[2:]) for each in scored]
    assert [value for value, _ in found] == pytest.approx(true, rel=1e-5)
    greedy = [all(token.rank == 1 for token in each.tokens[2:]) for each in scored]
    assert [is_greedy for _, is_greedy in found] == greedy


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("completions", {"model": "none", "prompt": "a"}, 404),
        ("completions", {"model": "mim", "prompt": "a"}, 400),
        ("completions", {"model": "run", "prompt": "a", "max_tokens": 10**9}, 400),
        ("completions", {"model": "run", "prompt": [10**6]}, 400),
        ("completions", {"model": "run", "prompt": "a", "temperature": -1}, 400),
        ("completions", {"model": "run", "prompt": "a", "logit_bias": {"1": 5}}, 400),
        ("completions", {"model": "run", "prompt": "a " * 5000}, 400),
        ("score", {"model": "run", "texts": ""}, 400),
        ("score", {"model": "run", "texts": "a\nb"}, 400),
        ("score", {"model": "run", "texts": "a", "cache": "tune"}, 400),
        ("score", {"model": "mlm", "texts": "a"}, 400),
        ("score", {"model": "run", "texts": "a", "segment": 3}, 400),
        ("latent/interpolate", {"model": "mim", "a": "zebra", "b": "sun"}, 400),
        ("nothing", {}, 404),
    ],
)
def test_a_bad_request_gets_a_reason(post, trained, path, body, status):
    found = post(path, **body)
    assert found.status_code == status
    assert set(found.json()["error"]) == {"message", "type", "param", "code"}
    assert str(trained.parent) not in found.text
    assert "Traceback" not in found.text
