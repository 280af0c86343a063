"""Models with a latent code from the command line: what they write, how they are measured."""

import json

import pytest
import yaml
from one_sentence import one_sentence
from training_tiny import tiny_file, tiny_sentences

from infolm.data.sentences import Lines
from infolm.errors import InfolmError
from infolm.evaluation.latent import posteriors
from infolm.families.latent.run import LatentRun
from infolm.sentence_vectors import SentenceVectors


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each objective, trained by the library."""
    from training_tiny import Silent, quiet

    from infolm.config import Recipe
    from infolm.families.train import train

    folder = tmp_path_factory.mktemp("latent")
    text = folder / "text.txt"
    words = ["sun", "moon", "star", "sky", "sea", "rain", "wind", "snow"]
    text.write_text("".join(f"the {words[i % 8]} ? is {words[i % 3]}\n" for i in range(400)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        for kind in ("mim", "vae", "ae"):
            tree = tiny_sentences(text, max_steps=20) | {"objective": {"kind": kind}}
            train(Recipe.model_validate(tree), folder / kind, False, Silent(), quiet)
    return folder


def test_interpolation(infolm, runs):
    done = infolm("generate", runs / "mim", "--interpolate", "the sun", "is sea", "--steps", 5)
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 5
    again = infolm(
        "generate", runs / "mim", "--interpolate", "the sun", "is sea", "--steps", 5, "--json"
    )
    assert [row["text"] for row in json.loads(again.out)] == done.out.splitlines()


def test_reconstruction(infolm, runs, tmp_path):
    (tmp_path / "some.txt").write_text("the sun ? is sun\nthe sea\n")
    done = infolm("generate", runs / "vae", "--reconstruct", tmp_path / "some.txt", "--json")
    rows = json.loads(done.out)
    assert [row["sentence"] for row in rows] == ["the sun ? is sun", "the sea"]
    assert set(rows[0]) == {"sentence", "mean", "drawn", "10 times"}
    plain = infolm("generate", runs / "ae", "--reconstruct", tmp_path / "some.txt")
    assert plain.out.count("mean") == 2
    assert "drawn" not in plain.out


def test_perturbed_neighbours_samples_and_answers(infolm, runs):
    run = runs / "mim"
    done = infolm("generate", run, "--perturb", "the sun", "--num", "4", "--json")
    assert len(json.loads(done.out)) == 4
    done = infolm("generate", run, "--neighbours", "the sun ? is sun", "--num", "3")
    first = done.out.splitlines()[0].split()
    assert (float(first[0]), first[1:]) == (0.0, ["the", "sun", "?", "is", "sun"])
    assert len(done.out.splitlines()) == 3
    for options in ([], ["--deviation", "0.1"], ["--aggregated", "--sampled"]):
        done = infolm("generate", run, "--num", "2", *options, "--json")
        assert len(json.loads(done.out)) == 2, done.err
    done = infolm("generate", run, "--answer", "the moon", "--json")
    assert [row["words"] for row in json.loads(done.out)] == [5, 10, 15]


@pytest.mark.parametrize("kind", ["mim", "vae", "ae"])
def test_measurements(infolm, runs, kind):
    done = infolm("evaluate", runs / kind, "--split", "test", "--codes", "10", "--json")
    assert done.code == 0, done.err
    found = {(m["metric"], m["method"]): m for m in json.loads(done.out)}
    metrics = {metric for metric, _ in found}
    always = {"reconstruction_nll", "reconstruction_perplexity", "melbo_nll", "melbo_perplexity"}
    assert always | {"bleu_mean", "active_units"} <= metrics
    bounds = {"elbo_nll", "elbo_perplexity", "importance_weighted_nll", "kl", "mutual_information"}
    assert metrics & bounds == (set() if kind == "ae" else bounds)
    for m in found.values():
        assert m["unit"]
        assert m["tokens"] > 0
        assert m["convention"]
    kept = json.loads((runs / kind / "measurements.json").read_text())
    assert {(m["metric"], m["method"]) for m in kept} >= set(found)
    without = infolm(
        "evaluate", runs / kind, "--split", "test", "--codes", "2", "--no-eos", "--json"
    )
    fewer = {m["metric"]: m for m in json.loads(without.out)}
    with_eos = {metric: m for (metric, _), m in found.items()}
    assert fewer["melbo_nll"]["tokens"] == with_eos["melbo_nll"]["tokens"] - 20  # lines
    assert fewer["melbo_nll"]["value"] < with_eos["melbo_nll"]["value"]


def test_what_is_drawn_and_how_much_is_asked_on_the_command_line(infolm, runs):
    def measured(*options):
        done = infolm(
            *("evaluate", runs / "mim", "--split", "test", "--codes", "4", *options, "--json")
        )
        assert done.code == 0, done.err
        return {(m["metric"], m["method"]): m for m in json.loads(done.out)}

    plain = measured()
    method = "latent code"
    assert "5 codes of q(z | x)" in plain["melbo_nll", method]["convention"]
    assert plain["importance_weighted_nll", method]["tokens"] == 20 * 6  # all lines, five words
    assert plain["melbo_perplexity_without_eos", method]["tokens"] == 100
    assert "the likeliest words from the mean" in plain["bleu_mean", method]["convention"]
    assert {"distinct_reconstructions", "bleu_shuffled", "likelihood_gain"} < {m for m, _ in plain}
    asked = measured("--nz", "3", "--sentences", "8", "--bleu-words", "sampled")
    assert "3 codes of q(z | x)" in asked["melbo_nll", method]["convention"]
    assert asked["importance_weighted_nll", method]["tokens"] == 8 * 6
    drawn = asked["bleu_mean", "latent code, sampled words"]
    assert "words drawn from the mean" in drawn["convention"]
    assert ("bleu_mean", method) not in asked
    kept = json.loads((runs / "mim" / "measurements.json").read_text())
    methods = {m["method"] for m in kept if m["metric"] == "bleu_mean"}
    assert methods == {method, "latent code, sampled words"}  # one does not replace the other


def test_the_training_split_is_measured_by_a_prior_that_has_not_seen_it(infolm, runs):
    options = ("--codes", "2", "--sentences", "10", "--json")
    done = infolm("evaluate", runs / "mim", "--split", "train", *options)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert {m["split"] for m in found} == {"train"}
    (weighted,) = [m for m in found if m["metric"] == "importance_weighted_nll"]
    assert "the prior is N(0, 1)" in weighted["convention"]
    assert "of these 360 sentences" in next(
        m["convention"] for m in found if m["metric"] == "melbo_nll"
    )


def test_sampled_codes(infolm, runs, tmp_path):
    """The paper's way, by name; a VAE's are wide enough to be seen."""
    between = ("generate", runs / "vae", "--interpolate", "the sun", "is sea", "--sampled")
    texts = [
        infolm(*between, "--seed", seed, *z).out
        for seed in (1, 2)
        for z in ((), ("--z", "mean"), ("--z", "sampled"))
    ]
    assert texts[0] == texts[1] != texts[2]
    assert texts[3] == texts[4]
    assert texts[2] != texts[5]
    done = infolm("generate", runs / "vae", "--answer", "the moon", "--z", "sampled", "--json")
    assert len(json.loads(done.out)) == 3, done.err
    file = tmp_path / "questions.tsv"
    file.write_text("the sun\tis sun\t1\nthe sun\tis sea\t0\nthe sea\tis sun\t0\nthe sea\tsea\t1\n")
    done = infolm("evaluate", runs / "vae", "--rank", file, "--z", "sampled", "--seed", 3, "--json")
    found = {m["method"]: m for m in json.loads(done.out)}
    assert "codes are drawn with seed 3" in found["latent code, sampled codes"]["convention"]
    refused = infolm("generate", runs / "ae", "--answer", "the moon", "--z", "sampled")
    one_sentence(refused, "--z sampled", "points")
    one_sentence(infolm("evaluate", runs / "ae", "--rank", file, "--z", "sampled"), "points")
    one_sentence(infolm("generate", runs / "vae", "--z", "sampled"), "--interpolate and --answer")
    one_sentence(infolm("evaluate", runs / "vae", "--z", "sampled"), "add --rank")


def test_the_code_of_an_auto_encoder_is_all_but_a_point(runs):
    """Nothing has taught its variance, so it is opened with the least."""
    run = LatentRun.open(runs / "ae")
    assert (posteriors(run.model, Lines.of([[2, 3], [4]], 0)).log_variance == -10).all()


def test_ranking(infolm, runs, tmp_path):
    file = tmp_path / "questions.tsv"
    file.write_text("the sun\tis sun\t1\nthe sun\tis sea\t0\nthe sea\tis sun\t0\nthe sea\tsea\t1\n")
    done = infolm("evaluate", runs / "mim", "--rank", file, "--json")
    found = {(m["metric"], m["method"]): m["value"] for m in json.loads(done.out)}
    assert found["precision_at_1", "chance"] == 0.5
    assert 0 <= found["precision_at_1", "latent code"] <= 1


def test_bad_input(infolm, runs, tmp_path, small_text):
    run = runs / "mim"
    generate = ("generate", run)
    one_sentence(infolm(*generate, "--interpolate", "the comet", "sun"), "comet", "<unk>")
    done = infolm(*generate, "--interpolate", "the comet", "sun", "--unknown")
    assert done.code == 0, done.err
    one_sentence(infolm(*generate, "--interpolate", "", "sun"), "sentence 1 is empty")
    (tmp_path / "gap.txt").write_text("sun\n\nmoon\n")
    one_sentence(infolm(*generate, "--reconstruct", tmp_path / "gap.txt"), "line 2", "empty")
    one_sentence(infolm(*generate, "--reconstruct", tmp_path / "none.txt"), "none.txt")
    one_sentence(infolm(*generate, "--perturb", "sun", "--answer", "moon"), "give only one of")
    one_sentence(infolm(*generate, "--prompt", "sun"), "--prompt", "single sentences")
    one_sentence(infolm("evaluate", run, "--dynamic", "tune"), "--dynamic", "single sentences")
    one_sentence(infolm("evaluate", run, "--rank", tmp_path / "none.tsv"), "none.tsv")
    one_sentence(infolm("generate", runs / "ae", "--perturb", "sun"), "--perturb", "auto-encoder")
    recipe = tiny_file(tmp_path, small_text, max_steps=2)
    infolm("train", recipe, "--out", tmp_path / "lm")
    one_sentence(infolm("generate", tmp_path / "lm", "--interpolate", "a", "b"), "no latent code")
    one_sentence(infolm("evaluate", tmp_path / "lm", "--rank", tmp_path / "x"), "no latent code")
    one_sentence(infolm("evaluate", tmp_path / "lm", "--split", "train"), "--split", "latent code")
    with pytest.raises(InfolmError, match=r"has no latent code.*model\.kind is sentence"):
        SentenceVectors.open(tmp_path / "lm")
    long = tmp_path / "long.yaml"
    long.write_text(yaml.safe_dump(tiny_sentences(small_text, max_steps=2)))
    refused = infolm("train", long, "feed.longest=3", "--out", tmp_path / "long")
    one_sentence(refused, "sentence 1", "feed.longest", "feed.beyond=cut")
    assert not (tmp_path / "long").exists()
    gaps = tmp_path / "gaps.txt"
    gaps.write_text("\n" * 300 + "one\n")
    one_sentence(infolm("train", long, f"data.path={gaps}", "--out", tmp_path / "gaps"), "sentence")


def test_training_says_what_its_loss_is(infolm, tmp_path, small_text):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_sentences(small_text, max_steps=4)))
    done = infolm("train", path, "--out", tmp_path / "run")
    assert done.code == 0
    assert "information" in done.err
    assert "done: best validation" in done.err
    assert "perplexity" not in done.err


def test_no_single_token_is_scored(infolm, runs):
    one_sentence(infolm("score", runs / "mim", "--text", "the sun"), "integral over codes")
