"""The report of a sentence model: a verdict on its codes, and the pictures that bear it out."""

import math
import re
import shutil
from dataclasses import replace
from html import unescape
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from training_tiny import Silent, quiet, tiny_sentences

from infolm.config import Recipe, load_recipe
from infolm.evaluation import measurement
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.posterior import Picture
from infolm.evaluation.posterior import picture as picture_of
from infolm.evaluation.reading import Mean, Reading
from infolm.evaluation.suite import BASELINE
from infolm.families.findings import Findings
from infolm.families.latent.diagnosis import (
    Verdict,
    at_floor,
    diagnosis,
    heard,
    mean_log_variance,
    remedies,
    same_for_all,
)
from infolm.families.latent.family import LatentFamily
from infolm.families.latent.picture import LatentPlots, draw_latent, span
from infolm.families.latent.report import (
    LatentFindings,
    LatentSections,
    latent_section,
    latent_table,
    read_anew,
    reconstruction_section,
)
from infolm.families.latent.run import LatentRun
from infolm.families.report import course, write_report
from infolm.families.train import train
from infolm.generation.latent import Reconstruction
from infolm.objectives.base import OBJECTIVES
from infolm.objectives.monte_carlo import MonteCarloConfig
from infolm.reports.curves import draw
from infolm.reports.history import History
from infolm.training.run import read_metrics

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "<script>alert(1)</script>"
SENTENCES, SIZE = 200, 20


def tree(kind: str, **objective: Any) -> dict[str, Any]:
    return {
        "data": {"path": "nowhere.txt"},
        "feed": {"kind": "sentences", "batch": 8},
        "model": {
            "kind": "sentence",
            "embedding": 6,
            "latent": {"size": SIZE},
            "encoder": {"hidden": 8},
            "decoder": {"hidden": 10, "layers": 2, "cell": "lstm"},
        },
        "objective": {"kind": kind, **objective},
        "optimiser": {"kind": "adam", "learning_rate": 0.01},
        "train": {"max_steps": 6, "validate_every": 3, "log_every": 1, "accelerator": "cpu"},
    }


def recipe(kind: str, **objective: Any) -> Recipe:
    return Recipe.model_validate(tree(kind, **objective))


def picture(
    information: float = 4.0,
    error: float = 0.05,
    mean_kl: float = 6.0,
    active: int = 15,
    gain: float = 30.0,
    log_variance: float = -1.0,
) -> Picture:
    """Of a model whose sentences are likelier by `gain` nats given their own codes, and whose
    posteriors all have the variance exp(log_variance)."""
    rng = np.random.default_rng(1)
    own = -rng.gamma(4.0, 15.0, SENTENCES)
    density = -0.5 * (
        rng.chisquare(SIZE, SENTENCES) + SIZE * (log_variance + math.log(2 * math.pi))
    )
    kl = np.linspace(2.0, 1.0, SIZE)
    sizes = np.array([10, 50, SENTENCES])
    return Picture(
        kl=kl * mean_kl / kl.sum(),
        active=np.arange(SIZE) < active,
        information=information,
        information_error=error,
        ceiling=math.log(SENTENCES),
        mean_kl=mean_kl,
        own_likelihood=own,
        other_likelihood=np.concatenate([own, own]) - gain,
        own_density=density,
        other_density=np.concatenate([density, density]) - 50,
        elbo=own - mean_kl,
        melbo=own,
        sizes=sizes,
        bound=-own.mean() + np.log(sizes),
        bound_error=5 / np.sqrt(sizes),
        sentences=SENTENCES,
        tokens=4000,
    )


# -- the verdict ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ({}, "healthy"),
        ({"information": 0.05, "error": 0.03}, "collapsed"),  # within two errors of nothing
        ({"information": 0.07, "error": 0.03}, "partly collapsed"),
        ({"information": -0.01}, "collapsed"),
        ({"information": 0.09, "error": 0.01, "mean_kl": 0.099}, "collapsed"),
        ({"information": 0.09, "error": 0.01, "mean_kl": 0.101}, "partly collapsed"),
        ({"gain": 0.09}, "collapsed"),  # the decoder does not listen
        ({"gain": 0.11}, "hardly read"),
        ({"gain": 1.99}, "hardly read"),  # less than half of the 4 nats that a code tells
        ({"gain": 2.01}, "healthy"),
        ({"information": 0.89}, "partly collapsed"),
        ({"information": 0.91}, "healthy"),  # within two errors of 1 nat
        ({"information": 2.5, "active": 1}, "partly collapsed"),
        ({"information": 2.5, "active": 2}, "healthy"),  # a tenth of the units
        ({"information": 2.6, "active": 1}, "healthy"),  # maybe more than half of ln 200 = 5.3
        ({"information": 0.0, "active": 0, "mean_kl": 90.0, "log_variance": -10.0}, "collapsed"),
    ],
)
def test_the_verdict(values: dict[str, Any], verdict: str) -> None:
    found = diagnosis(picture(**values), recipe("vae"))
    assert found.verdict == verdict
    opening = {
        "collapsed": "The posterior has collapsed: ",
        "partly collapsed": "The posterior has partly collapsed: ",
        "healthy": "The posterior has not collapsed: ",
        "hardly read": "The encoder distinguishes sentences (a code tells 4.00 ± 0.05 nats about ",
    }
    assert found.sentence.startswith(opening[verdict])
    assert ("Try one at a time" in found.sentence) == (verdict != "healthy")


def as_read(
    different: int = 190, difference: float = 0.2, error: float = 0.01, sentences: int = 200
) -> Reading:
    own, others = Mean(0.1 + difference, error), Mean(0.1, error)
    share = different / sentences
    return Reading(sentences, different, share, own, others, Mean(difference, error))


@pytest.mark.parametrize(
    ("reading", "same"),
    [
        (as_read(), False),
        (as_read(different=1), True),
        (as_read(different=19), True),  # a tenth of the sentences
        (as_read(different=20), False),
        (as_read(difference=0.0, error=0.01), True),
        (as_read(difference=0.019, error=0.01), True),
        (as_read(difference=0.021, error=0.01), False),  # more than two errors
        (as_read(difference=0.02, error=0.03, different=20, sentences=20), False),  # may be 0.08
        (as_read(different=1, difference=0.0, error=0.0, sentences=5), True),
        (as_read(different=1, difference=0.0, error=0.0, sentences=20), True),
    ],
)
def test_a_decoder_that_writes_the_same_from_all_codes(reading: Reading, same: bool) -> None:
    assert same_for_all(reading) == same
    for kind in ("mim", "vae", "ae"):
        found = diagnosis(picture(), recipe(kind), reading)
        assert found.verdict == ("hardly read" if same else "healthy")
        assert ("the decoder hardly reads the code" in found.sentence) == same
        assert ("Try one at a time" in found.sentence) == same
    if same:
        said = f"codes of {reading.sentences} sentences it writes {reading.written} different ones"
        assert said in found.sentence


WORDS = ["sun", "moon", "star", "sky", "sea", "rain", "wind", "snow"]


@pytest.mark.parametrize(("steps", "rate"), [(1, 1e-9), (250, 0.02)], ids=["untrained", "trained"])
def test_the_verdict_on_narrow_codes_is_by_what_the_decoder_makes_of_them(
    steps: int, rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codes at the floor of the variance tell 20 sentences apart without any training. Only a
    decoder that has learnt to read them gives sentences back. An auto-encoder learns it soonest,
    and is opened with the least variance."""
    monkeypatch.setenv("INFOLM_CACHE", str(tmp_path / "tokenised"))
    text = tmp_path / "sky.txt"
    rng = np.random.default_rng(1)
    lines = [" ".join(rng.choice(WORDS, rng.integers(2, 5))) for _ in range(400)]
    text.write_text("\n".join(lines) + "\n")
    values = tiny_sentences(text, max_steps=steps, accelerator="cpu", validate_every=50)
    values["objective"] = {"kind": "ae"}
    values["model"] |= {
        "latent": {"size": 8, "least_log_variance": -10},
        "embedding_start": "normal",
    }
    values["model"]["decoder"] = {"hidden": 24}
    values["optimiser"]["learning_rate"] = rate
    train(Recipe.model_validate(values), tmp_path / "run", False, Silent(), quiet)
    run = LatentRun.open(tmp_path / "run")
    held_out = run.lines("valid")
    assert len(held_out) == 20
    found = picture_of(run.model, held_out)
    assert found.information > 0.9 * found.ceiling
    verdict = diagnosis(found, recipe("mim"), read_anew(run, held_out)).verdict
    assert (verdict == "healthy") == (steps > 1)
    assert verdict in ("healthy", "hardly read", "collapsed")


def test_what_a_decoder_writes_says_nothing_against_worse() -> None:
    """A code that tells nothing, and one that tells little, are called so."""
    assert diagnosis(picture(0.0), recipe("vae"), as_read(1, 0.0)).verdict == "collapsed"
    assert diagnosis(picture(gain=0.0), recipe("mim"), as_read(1, 0.0)).verdict == "collapsed"
    assert diagnosis(picture(0.5), recipe("vae"), as_read(1, 0.0)).verdict == "partly collapsed"


def test_a_decoder_that_gains_less_than_its_code_tells() -> None:
    deaf = diagnosis(picture(gain=0.6), recipe("mim"), as_read(2, 0.0, 0.001))
    assert deaf.verdict == "hardly read"
    assert "a sentence is 0.6 ± 0.0 nats likelier given its own code" in deaf.sentence
    assert "it writes 2 different ones, whose BLEU is 0.100 beside their own" in deaf.sentence
    assert "longer training" in deaf.sentence
    alone = diagnosis(picture(gain=0.6), recipe("mim")).sentence
    assert "given its own code than given another's. Try" in alone


def few(gains: list[float], information: float, error: float) -> Picture:
    """Of as many sentences as gains."""
    own = np.full(len(gains), -60.0)
    found = replace(
        picture(information, error),
        ceiling=math.log(len(gains)),
        sentences=len(gains),
        own_likelihood=own,
        other_likelihood=np.concatenate([own - gains, own - gains]),
    )
    assert heard(found).value == pytest.approx(np.mean(gains))
    stderr = np.std(gains, ddof=1) / math.sqrt(len(gains))
    assert heard(found).stderr == pytest.approx(stderr)
    return found


@pytest.mark.parametrize(
    ("gains", "information", "verdict"),
    [
        ([8.0, 12.0] * 10, (2.9, 0.05), "healthy"),
        ([-9.0, 10.0] * 10, (2.9, 0.05), "undecided"),  # a gain of 0.5 ± 2.2
        ([8.0, 12.0] * 10, (0.4, 0.4), "undecided"),  # from nothing to 1.2 nats
        ([8.0, 12.0] * 10, (0.8, 0.3), "healthy"),  # something, and not surely little
        ([8.0, 12.0] * 10, (0.1, 0.1), "collapsed"),  # no more than 0.3
        ([-0.1, 0.1] * 10, (2.9, 0.05), "collapsed"),  # a gain of 0.00 ± 0.02
    ],
)
def test_twenty_sentences_do_not_condemn_a_model(
    gains: list[float], information: tuple[float, float], verdict: Verdict
) -> None:
    found = diagnosis(few(gains, *information), recipe("vae"), as_read(20, 0.1, 0.04, 20))
    assert found.verdict == verdict
    told = "20 sentences are too few to say whether the posterior has collapsed"
    assert (told in found.sentence) == (verdict == "undecided")


def test_units_above_the_noise_are_no_idle_ones() -> None:
    """By the threshold of a VAE none of these is active, and by their own noise all are."""
    narrow = replace(picture(2.5, active=0), above_noise=np.ones(SIZE, np.bool_))
    found = diagnosis(narrow, recipe("mim"))
    assert found.verdict == "healthy"
    assert "0 of 20 units are active (20 stand above the noise)" in found.sentence
    idle = replace(narrow, above_noise=np.zeros(SIZE, np.bool_))
    assert diagnosis(idle, recipe("mim")).verdict == "partly collapsed"
    page = html(latent_section(replace(FOUND, picture=narrow), PLOTS, recipe("mim"), [], "runs/x"))
    assert ["units above the noise", "20", "", "of 20"] in rows(page)
    points = latent_section(replace(FOUND, picture=narrow), PLOTS, recipe("ae"), [], "runs/x")
    assert "above the noise" not in [row[0] for row in rows(html(points))]


def test_the_glance_has_what_the_decoder_writes() -> None:
    found = replace(FOUND, reading=as_read(7, 0.25))
    page = html(latent_section(found, PLOTS, recipe("mim"), [], "runs/x"))
    assert ["different reconstructions", "7", "", "of 200 sentences"] in rows(page)
    assert ["BLEU of a reconstruction", "0.350", "± 0.010", "200 sentences"] in rows(page)
    assert ["BLEU of another's", "0.100", "± 0.010", "200 sentences"] in rows(page)
    assert page.findtext(".//strong") == "Hardly read."


def test_few_sentences_are_no_collapse() -> None:
    """Two sentences cannot show more than ln 2 = 0.69 nats."""
    two = replace(picture(information=0.68), ceiling=math.log(2), sentences=2)
    assert diagnosis(two, recipe("vae")).verdict == "healthy"


def test_the_sentence_has_its_evidence() -> None:
    found = diagnosis(picture(0.01, 0.02, 0.03, 0, 0.0), recipe("vae")).sentence
    assert "tells 0.01 ± 0.02 nats about its sentence" in found
    assert "mean KL from the prior is 0.03 nats and 0 of 20 units are active" in found
    found = diagnosis(picture(0.5), recipe("vae")).sentence
    assert "of the 5.30 that 200 sentences can show, and 15 of 20 units are active" in found
    found = diagnosis(picture(gain=0.04), recipe("vae")).sentence
    assert "the decoder ignores the code, as a sentence is only 0.04 nats likelier" in found


def test_a_code_that_tells_all_that_can_be_seen_may_tell_more() -> None:
    assert "so it may be more" in diagnosis(picture(5.1), recipe("vae")).sentence
    assert "so it may be more" not in diagnosis(picture(4.9), recipe("vae")).sentence


def test_an_auto_encoder_has_no_distribution() -> None:
    nothing = picture(0.0, 0.1, 0.0, 0, gain=30.0)
    found = diagnosis(nothing, recipe("ae"))
    assert found.verdict == "healthy"  # whatever KL and information are
    assert "KL, mutual information and ELBO mean nothing" in found.sentence
    assert "30.0 ± 0.0 nats likelier" in found.sentence
    deaf = diagnosis(replace(nothing, other_likelihood=nothing.own_likelihood), recipe("ae"))
    assert deaf.verdict == "collapsed"
    assert "the decoder does not read it" in deaf.sentence
    assert "model.decoder.dropout.embedding=0.25" in deaf.sentence
    assert "objective.kl" not in deaf.sentence


def test_a_variance_at_its_floor_is_said() -> None:
    narrow = picture(5.2, mean_kl=90.0, log_variance=-10.0)
    found = diagnosis(narrow, recipe("mim"))
    assert found.verdict == "healthy"
    assert "at its floor (`model.latent.least_log_variance=-10`), as the loss of MIM" in (
        found.sentence
    )
    assert "floor" not in diagnosis(picture(5.2, log_variance=-8.0), recipe("mim")).sentence
    assert "floor" not in diagnosis(narrow, recipe("ae")).sentence
    assert "MIM" not in diagnosis(narrow, recipe("vae")).sentence


def other(latent: str, **objective: Any) -> Recipe:
    values = tree("mim") | {"objective": objective}
    values["model"] |= {"latent": {"kind": latent, "variables": SIZE, "classes": 4}}
    return Recipe.model_validate(values)


def test_a_quantised_code_is_a_point_that_costs_the_same_for_all() -> None:
    vq = other("quantised", kind="vq")
    found = diagnosis(picture(mean_kl=27.7, log_variance=-10.0), vq)
    assert found.verdict == "healthy"
    assert "it always costs 27.70 nats; the decoder reads it, and a code tells 4.00" in (
        found.sentence
    )
    assert "floor" not in found.sentence
    deaf = diagnosis(picture(gain=0.0, mean_kl=27.7), vq)
    assert deaf.verdict == "collapsed"
    assert "but the decoder does not read it" in deaf.sentence
    same = diagnosis(picture(0.0, 0.0, 27.7, 0, 0.0), vq)
    assert same.verdict == "collapsed"
    assert "but a code tells 0.00 ± 0.00 nats about its sentence" in same.sentence
    assert "objective.decay=0.9" in same.sentence


def test_classes_have_no_variance_to_be_at_its_floor() -> None:
    vimco = other("categorical", kind="monte-carlo", estimator="vimco", samples=4)
    found = diagnosis(picture(5.2, mean_kl=20.0, log_variance=-10.0), vimco)
    assert found == ("healthy", found.sentence)
    assert "floor" not in found.sentence


def test_classes_are_called_so() -> None:
    of_classes = replace(picture(), classes=np.full(SIZE, 3.0))
    vimco = other("categorical", kind="monte-carlo", estimator="vimco", samples=4)
    found = replace(FOUND, picture=of_classes, scales=["likeliest", "drawn"])
    found = replace(found, reconstructions=[Reconstruction("a", ("b", "c"))])
    page = html(latent_section(found, PLOTS, vimco, [], "runs/x"))
    assert ["classes in use, by their perplexity", "3.0", "", "of 4"] in rows(page)
    assert "by variable of the code" in "".join(page.itertext())
    written = html(reconstruction_section(found))
    names = [each.text for each in next(written.iter("dl")) if each.tag == "dt"]
    assert names == ["sentence", "likeliest", "a draw"]
    assert "one variable at a time" in "".join(written.itertext())
    shown = draw_latent(of_classes, point=False).dimensions
    assert "variables, the largest first" in texts(ElementTree.fromstring(shown))


def test_a_point_with_a_prior_has_bounds() -> None:
    plots = draw_latent(picture(), point=True)
    assert plots.dimensions == ""
    assert plots.bounds
    assert "q(z|x)" not in plots.histograms


@pytest.mark.parametrize("log_variance", [-10.0, -1.0, 0.0])
def test_the_variance_is_read_off_the_densities(log_variance: float) -> None:
    """The error of its mean is that of sum noise^2 / Z over the sentences."""
    error = math.sqrt(2 / (SIZE * SENTENCES))
    found = mean_log_variance(picture(log_variance=log_variance))
    assert found == pytest.approx(log_variance, abs=4 * error)
    assert at_floor(picture(log_variance=log_variance), recipe("mim")) == (log_variance == -10)


def test_what_is_heard_is_the_gain_in_likelihood() -> None:
    found = heard(picture(gain=7.5))
    assert found.value == pytest.approx(7.5)
    assert found.stderr == pytest.approx(0, abs=1e-9)


# -- what to try ----------------------------------------------------------------------------


def test_every_remedy_is_an_override_that_the_recipe_takes(tmp_path: Path) -> None:
    file = tmp_path / "vae.yaml"
    file.write_text(yaml.safe_dump(tree("vae")))
    found = remedies(load_recipe(str(file)))
    assert len(found) == 6
    for _, overrides in found:
        changed = load_recipe(str(file), overrides.split())
        assert changed != load_recipe(str(file))
        if "kl.weight" not in overrides:  # which can be lowered again
            assert overrides not in [each for _, each in remedies(changed)]
        assert overrides in diagnosis(picture(0.0), load_recipe(str(file))).sentence
    keys = {each.split("=")[0] for _, overrides in found for each in overrides.split()}
    assert keys == {
        *("objective.kl.schedule", "objective.kl.steps", "objective.kl.weight"),
        *("objective.free_bits.nats", "objective.free_bits.per"),
        *("objective.lagging", "objective.kind", "model.latent.batch_norm"),
    }


@pytest.mark.parametrize("kind", ["mim", "ae"])
def test_the_remedy_of_the_others_too(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(tree(kind)))
    ((_, override),) = remedies(load_recipe(str(file)))
    assert load_recipe(str(file), [override]) != load_recipe(str(file))


GAUSSIAN = {"kind": "gaussian", "size": SIZE}
CATEGORICAL = {"kind": "categorical", "variables": SIZE, "classes": 4}
QUANTISED = {"kind": "quantised", "variables": SIZE, "classes": 4}


@pytest.mark.parametrize("symbols", [False, True])
@pytest.mark.parametrize(
    ("latent", "objective", "expected"),
    [
        (
            GAUSSIAN,
            {"kind": "monte-carlo", "estimator": "iwae"},
            {"objective.augment", "objective.lambda", "objective.estimator", "objective.samples"},
        ),
        (
            GAUSSIAN,
            {"kind": "monte-carlo", "samples": 16, "augment": "kl", "lambda": 0.4},
            {"objective.lambda"},
        ),
        (
            CATEGORICAL,
            {"kind": "monte-carlo", "estimator": "reinforce", "augment": "power", "alpha": 2},
            {"objective.alpha", "objective.estimator", "objective.samples"},
        ),
        (
            CATEGORICAL,
            {
                **{"kind": "monte-carlo", "estimator": "vimco", "samples": 4},
                **{"augment": "renyi", "lambda": 0.2, "alpha": 1.5},
            },
            {"objective.lambda", "objective.samples"},
        ),
        (QUANTISED, {"kind": "vq"}, {"objective.decay"}),
        (QUANTISED, {"kind": "vq", "decay": 0.5}, set()),
    ],
)
def test_the_remedies_of_a_collapse_are_those_of_the_objective(
    latent: dict[str, Any],
    objective: dict[str, Any],
    expected: set[str],
    symbols: bool,
    tmp_path: Path,
) -> None:
    values = tree("mim") | {"objective": objective}
    values["model"] |= {"latent": latent}
    if symbols:
        values["model"] = {"kind": "symbol", "hidden": 8, "latent": latent}
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    found = remedies(load_recipe(str(file)))
    for _, overrides in found:
        assert load_recipe(str(file), overrides.split()) != load_recipe(str(file))
    keys = {each.split("=")[0] for _, overrides in found for each in overrides.split()}
    last = "train.epochs" if symbols else "model.decoder.dropout.embedding"
    assert keys == expected | {last}


# -- plots ----------------------------------------------------------------------------------


def path(svg: ElementTree.Element, name: str) -> list[tuple[float, float]]:
    """The corners of what is drawn in the group `name`."""
    found = svg.find(f".//{SVG}g[@id='{name}']/{SVG}path")
    if found is None:
        found = svg.find(f".//{SVG}path[@id='{name}']")
    assert found is not None, name
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", found.get("d", ""))]


def texts(svg: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in svg.iter(f"{SVG}text")]


def heights(svg: ElementTree.Element, name: str) -> list[float]:
    """How high each step of a filled staircase is, in points above its base."""
    corners = path(svg, name)
    base = corners[0][1]
    steps = pairwise(corners)
    return [base - y0 for (x0, y0), (x1, y1) in steps if y0 == y1 and x1 > x0]


def test_dimensions_are_sorted_and_the_active_ones_marked() -> None:
    kl = np.array([0.5, 4.0, 0.1, 2.0])
    active = np.array([False, True, False, True])
    shown = draw_latent(replace(picture(), kl=kl, active=active), point=False).dimensions
    svg = ElementTree.fromstring(shown)
    scale = heights(svg, "dimensions-active-units")[0] / 4.0
    assert heights(svg, "dimensions-active-units") == pytest.approx(
        [4.0 * scale, 2.0 * scale, 0, 0], abs=1e-3
    )
    assert heights(svg, "dimensions-idle-units") == pytest.approx(
        [0, 0, 0.5 * scale, 0.1 * scale], abs=1e-3
    )
    assert "Of 4 dimensions 2 are active" in str(svg.findtext(f"{SVG}desc"))


def test_histograms_count_what_is_there() -> None:
    found = picture()
    svg = ElementTree.fromstring(draw_latent(found, point=False).histograms)
    low, high = span([found.own_likelihood, found.other_likelihood])
    for i, values in enumerate((found.own_likelihood, found.other_likelihood)):
        counts, _ = np.histogram(values, np.linspace(low, high, 51))
        drawn = np.array(heights(svg, f"pairs-likelihood-{i}"))
        np.testing.assert_allclose(drawn / drawn.max(), counts / counts.max(), atol=1e-3)


def test_an_axis_leaves_out_the_tails_alone() -> None:
    values = np.arange(1000.0)
    margin = 0.02 * (5989.01 - 9.99)
    assert span([values, values + 5000]) == pytest.approx((9.99 - margin, 5989.01 + margin))
    wild = np.append(values, [-1e9, -math.inf, 1e9])
    low, high = span([wild])
    assert -50 < low < 20
    assert 980 < high < 1050
    assert span([np.array([3.0])]) == (2.5, 3.5)
    assert span([np.array([-math.inf])]) == (0.0, 1.0)


def test_points_have_likelihoods_alone() -> None:
    plots = draw_latent(picture(), point=True, prior=False)
    assert plots.dimensions == plots.bounds == ""
    assert "q(z|x)" not in plots.histograms


@pytest.mark.parametrize(
    "found",
    [
        picture(),
        picture(0.0, 0.0, 0.0, 0, 0.0),
        replace(picture(), other_density=np.full(400, -1e6) * np.arange(1, 401)),
        replace(picture(), other_density=np.full(400, -math.inf)),
        replace(
            picture(),
            **{name: np.array([1.0]) for name in ("kl", "elbo", "melbo", "bound", "bound_error")},
            sizes=np.array([2]),
            active=np.array([True]),
        ),
    ],
    ids=["usual", "nothing", "wild", "infinite", "one"],
)
def test_any_picture_is_drawn(found: Picture) -> None:
    plots = draw_latent(found, point=False)
    for shown in (plots.dimensions, plots.histograms, plots.bounds):
        svg = ElementTree.fromstring(shown)
        assert "nan" not in shown.lower()
        assert "inf" not in " ".join(texts(svg))
        assert not re.search(r"#[0-9a-f]{6}\b", shown)


def test_plots_of_a_page_have_identities_of_their_own() -> None:
    plots = draw_latent(picture(), point=False)
    seen: set[str] = set()
    for shown in (plots.dimensions, plots.histograms, plots.bounds):
        own = {found.get("id", "") for found in ElementTree.fromstring(shown).iter()} - {""}
        assert not own & seen
        seen |= own


# -- tables and texts -----------------------------------------------------------------------


def html(parts: list[str]) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{''.join(parts)}</div>")


def rows(element: ElementTree.Element) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in element.iter("tr")]


def measured(metric: str, value: float, split: str, method: str = "latent code") -> Measurement:
    return Measurement(metric, value, "a unit", 0.5, 99, split, method, f"as {EVIL}")


MEASURED = [
    measured("elbo_perplexity", 120.0, "valid"),
    measured("bleu_mean", 0.25, "test"),
    measured("elbo_perplexity", 130.0, "test"),
    measured("importance_weighted_perplexity", 110.0, "test"),
    measured("importance_weighted_perplexity", 90.0, "test", f"latent code, prior: {EVIL}"),
    measured("melbo_perplexity", 100.0, "test"),
    measured("mutual_information", 3.0, "test"),
    measured("something_new", 1.0, "test"),
]
FOUND = LatentFindings(
    picture(),
    [Reconstruction(f"a {EVIL} b", ("from the mean", "drawn", "spoilt"))],
    ["first", f"{EVIL}", "last"],
    ["a sample"],
)
PLOTS = LatentPlots("<svg/>", "<svg/>", "<svg/>")


def test_the_glance_has_the_picture_and_the_headline_of_the_test_split() -> None:
    page = html(latent_section(FOUND, PLOTS, recipe("vae"), MEASURED, "runs/x"))
    assert rows(page) == [
        ["200 sentences of the validation split"],
        ["mutual information of sentence and code, nats", "4.000", "± 0.050", "at most 5.298"],
        ["mean KL from the prior, nats", "6.000", "", ""],
        ["ln p(x|z) given its own code, above another's, nats", "30.00", "± 0.00", ""],
        ["active units", "15", "", "of 20"],
        ["Measured on the test split"],
        ["ELBO: bound on the perplexity", "130.00", "± 0.50", "a unit"],
        ["importance-weighted bound on the perplexity", "110.00", "± 0.50", "a unit"],
        [
            f"importance-weighted bound on the perplexity; prior: {EVIL}",
            *("90.00", "± 0.50", "a unit"),
        ],
        ["MELBO: bound on the perplexity", "100.00", "± 0.50", "a unit"],
        ["BLEU of reconstructions from the mean", "0.250", "± 0.500", "a unit"],
    ]
    assert "infolm evaluate" not in "".join(page.itertext())
    assert len(page.findall(".//figure")) == 3


def test_what_is_not_measured_yet_says_how() -> None:
    page = html(latent_section(FOUND, PLOTS, recipe("vae"), [], "runs/x"))
    assert page.find(".//p/code") is not None
    assert "measured by infolm evaluate runs/x." in "".join(page.itertext())
    page = html(latent_section(FOUND, PLOTS, recipe("vae"), MEASURED[:1], "runs/x"))
    assert ["Measured on the validation split"] in rows(page)


def test_what_one_types_is_code() -> None:
    collapsed = replace(FOUND, picture=picture(0.0))
    page = html(latent_section(collapsed, PLOTS, recipe("vae"), MEASURED, "runs/x"))
    assert "objective.kind=mim" in [each.text for each in page.iter("code")]
    assert page.findtext(".//p/strong") == "Collapsed."


def test_of_points_nothing_is_shown_that_means_nothing() -> None:
    plots = replace(PLOTS, dimensions="", bounds="")
    page = html(latent_section(FOUND, plots, recipe("ae"), MEASURED, "runs/x"))
    names = [row[0] for row in rows(page)]
    assert names == [
        "200 sentences of the validation split",
        "ln p(x|z) given its own code, above another's, nats",
        "active units",
        "Measured on the test split",
        "MELBO: bound on the perplexity",
        "BLEU of reconstructions from the mean",
    ]
    assert len(page.findall(".//figure")) == 1
    names = [row[0] for row in rows(html(latent_table(recipe("ae"), MEASURED)))]
    assert names == [
        *("measure", "Test split", "BLEU of reconstructions from the mean"),
        *("MELBO: bound on the perplexity", "something new"),
    ]


def test_the_table_has_every_measurement_and_how_it_was_counted() -> None:
    page = html(latent_table(recipe("vae"), MEASURED))
    assert len(rows(page)) == len(MEASURED) + 3
    assert [row for row in rows(page) if len(row) == 1] == [["Validation split"], ["Test split"]]
    assert ["something new", "1.000", "± 0.500", "a unit"] in rows(page)
    assert f"something_new, test (latent code): as {EVIL}" in str(page.findtext(".//pre"))


def test_sentences_stand_beside_what_is_made_of_them() -> None:
    page = html(reconstruction_section(FOUND))
    assert [[each.text for each in listed] for listed in page.iter("dl")] == [
        [
            *("sentence", f"a {EVIL} b", "the mean", "from the mean"),
            *("a draw", "drawn", "tenfold", "spoilt"),
        ],
        ["0%", "first", "50%", EVIL, "100%", "last"],
    ]
    point = replace(FOUND, reconstructions=[Reconstruction("a", ("b",))], scales=["mean"])
    first = next(html(reconstruction_section(point)).iter("dl"))
    assert [each.text for each in first] == ["sentence", "a", "the mean", "b"]


# -- the course of training -----------------------------------------------------------------


def records(kind: str, weights: tuple[float, float] = (0.5, 1.0)) -> list[dict[str, Any]]:
    def step(number: int, nll: float, kl: float, weight: float) -> dict[str, Any]:
        values = {"nll": nll, "kl": kl, "kl_weight": weight, "loss": 50.0}
        named = {f"{kind}/{name}": value for name, value in values.items()}
        return {"kind": "step", "step": number, "epoch": 0, "tokens_per_second": 9.0, **named}

    def validation(number: int, loss: float, **terms: float) -> dict[str, Any]:
        return {"kind": "validation", "step": number, "epoch": 0, "loss": loss, **terms}

    return [
        step(10, 5.0, 9.0, weights[0]),
        validation(10, -0.5, nll=4.5, kl=8.0, information=3.0),
        step(20, 4.0, 7.0, weights[1]),
        validation(20, -0.75, nll=4.0, kl=6.0, information=4.0),
    ]


def history_of(kind: str, found: list[dict[str, Any]] | None = None) -> History:
    """As the family of an objective reads the records."""
    recipe = SimpleNamespace(objective=OBJECTIVES[kind]())
    return LatentFamily().history(cast(Any, recipe), records(kind) if found is None else found)


def test_kl_and_information_have_their_panels() -> None:
    history = history_of("vae")
    assert history.codes is not None
    assert history.codes.training_kl.values.tolist() == [9.0, 7.0]
    assert history.regularisers == {}
    shown = draw(history)
    svg = ElementTree.fromstring(shown)
    (x0, y0), (x1, y1) = path(svg, "kl")  # 8 and 6 nats
    (_, z0), (_, z1) = path(svg, "training-kl")  # 9 and 7, on the same axis
    assert y1 - y0 == pytest.approx(z1 - z0, abs=1e-3)
    assert y0 - z0 == pytest.approx((y1 - y0) / 2, abs=1e-3)
    (_, below), (_, above) = path(svg, "information")
    assert above < below
    assert [x for x, _ in path(svg, "kl-weight")] == pytest.approx([x0, x1])
    assert len(path(svg, "validation")) == len(path(svg, "objective")) == 2
    assert "perplexity" not in shown
    assert {"best validation loss, -0.75", "KL, nats", "information,", "KL weight"} <= {
        line for text in texts(svg) for line in text.split("\n")
    }
    assert "the KL is 6.000 and the mutual information 4.000 nats" in shown
    assert not re.search(r"#[0-9a-f]{6}\b", shown)


def test_the_loss_of_a_monte_carlo_objective_is_called_a_bound() -> None:
    shown = draw(history_of("monte-carlo"))
    assert "bound on the loss," in shown
    assert "loss given the code" not in shown
    assert "loss given the code," in draw(history_of("vae"))


def test_what_is_next_to_nothing_looks_like_it() -> None:
    flat = records("vae")
    flat[1]["information"], flat[3]["information"] = 0.001, -0.001
    svg = ElementTree.fromstring(draw(history_of("vae", flat)))
    (_, first), (_, second) = path(svg, "information")
    assert abs(first - second) < 3  # points, of a panel of more than fifty


def test_a_constant_weight_and_the_kl_of_points_are_not_drawn() -> None:
    assert 'id="kl-weight"' not in draw(history_of("vae", records("vae", (1.0, 1.0))))
    shown = draw(history_of("ae"))
    assert 'id="kl"' not in shown
    assert 'id="information"' not in shown
    assert 'id="objective"' in shown


def test_a_language_model_has_no_codes() -> None:
    step = {"kind": "step", "step": 1, "likelihood/nll": 5.0}
    assert History.of([step]).codes is None
    assert History.of([]).codes is None


@pytest.mark.parametrize("some", [slice(0, 1), slice(0, 2), slice(1, 3)])
def test_odd_courses_are_drawn(some: slice) -> None:
    shown = draw(history_of("mim", records("mim")[some]))
    assert "nan" not in shown.lower()


# -- whole runs -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of six steps for each objective."""
    folder = tmp_path_factory.mktemp("sentences")
    text = folder / "cats.txt"
    lines = [f"the cat {i % 7} sees {EVIL} & {i % 5} birds" for i in range(400)]
    text.write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        for kind in ("mim", "vae", "ae"):
            values = tree(kind) | {"data": {"path": str(text), "pretokenised": True}}
            train(Recipe.model_validate(values), folder / kind, False, Silent(), quiet)
    return {kind: folder / kind for kind in ("mim", "vae", "ae")}


def read(page: Path) -> str:
    """What a person reads, on one line."""
    _, _, body = page.read_text(encoding="utf-8").partition("</style>")
    return " ".join(unescape(re.sub("<[^>]*>", " ", body)).split())


def headings(page: Path) -> list[str]:
    return re.findall("<h2>([^<]*)</h2>", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["mim", "vae", "ae"])
def test_the_report_of_a_sentence_model(kind: str, runs: dict[str, Path]) -> None:
    page = write_report(runs[kind])
    text = read(page)
    assert headings(page) == [
        *("The latent code", "Measurements", "From code to sentence"),
        *("Learning curve", "Samples", "Next commands"),
    ]
    assert (
        f"A sentence model (objective {kind}) with a code of 20 dimensions, an encoder of 1 GRU "
        "layer of 8 units and a decoder of 2 LSTM layers of 10 units, and with"
    ) in text
    loss = min(r["loss"] for r in read_metrics(runs[kind] / "metrics.jsonl") if "loss" in r)
    best = f"the best validation loss is {loss:,.3f} nats per token"
    if kind == "vae":
        best = f"the best validation perplexity is at most {math.exp(loss):,.2f} , by the ELBO"
    assert best in text
    html = page.read_text(encoding="utf-8")
    opening = re.search(r"</h1>\s*<p class=.verdict.><strong>([\w ]+)</strong>: (.*?)</p>", html)
    assert opening
    assert f"<strong>{opening.group(1)}.</strong>" in html  # as the section below has it
    sound = opening.group(1) in ("Healthy", "Undecided")
    assert ("<code>" in opening.group(2)) != sound  # what to try
    assert BASELINE not in text
    assert text.count("infolm evaluate") == 3  # in the verdict's section, below, at the end
    assert "--cache" not in text
    assert '--interpolate "one" "another" --steps 9' in text
    drawn = {
        "mim": "The likeliest words, from codes drawn from N(0, 0.1²).",
        "vae": "The likeliest words, from codes drawn from N(0, 1²).",
        "ae": "An auto-encoder has no distribution of codes to draw from.",
    }
    assert drawn[kind] in text
    assert EVIL in text  # as a word of the vocabulary
    assert "<script" not in page.read_text(encoding="utf-8")
    identities = re.findall(r'\bid="([^"]*)"', page.read_text(encoding="utf-8"))
    assert len(identities) == len(set(identities))


def test_of_an_auto_encoder_codes_are_its_means(runs: dict[str, Path]) -> None:
    """Its variance is not learnt, so the picture takes the least."""
    found = LatentSections(Findings.of(runs["ae"], course)).codes
    assert found is not None
    error = math.sqrt(2 / (SIZE * found.picture.sentences))
    assert mean_log_variance(found.picture) == pytest.approx(-10, abs=4 * error)
    assert all(len(each.written) == 1 for each in found.reconstructions)
    assert len(found.interpolation) == 9


@pytest.fixture
def run(runs: dict[str, Path], tmp_path: Path) -> Path:
    # Without the manifest, which would remember the recipe.
    ignored = shutil.ignore_patterns("manifest.json")
    return Path(shutil.copytree(runs["vae"], tmp_path / "run", ignore=ignored))


def test_measurements_of_codes_are_shown(run: Path) -> None:
    (run / "measurements.json").write_text(measurement.as_json(MEASURED))
    text = read(write_report(run))
    assert "not been measured" not in text
    assert "ELBO: bound on the perplexity 130.00 ± 0.50 a unit" in text
    assert "Generated text" not in text  # the mutual information is that of codes


def test_a_weighted_kl_is_no_bound(run: Path) -> None:
    values = yaml.safe_load((run / "recipe.yaml").read_text())
    values["objective"]["kl"]["weight"] = 0.5
    (run / "recipe.yaml").write_text(yaml.safe_dump(values))
    assert "the best validation loss is" in read(write_report(run))


def test_before_the_first_validation_nothing_is_known_of_codes(run: Path) -> None:
    (run / "model.safetensors").unlink()
    page = write_report(run)
    assert "Nothing is known of the codes: there are no weights" in read(page)
    assert "From code to sentence" not in headings(page)


def test_without_its_corpus_it_has_no_picture(run: Path, tmp_path: Path) -> None:
    values = yaml.safe_load((run / "recipe.yaml").read_text())
    values["data"]["path"] = str(tmp_path / "gone.txt")
    (run / "recipe.yaml").write_text(yaml.safe_dump(values))
    assert "Nothing is known of the codes: the corpus could not be loaded" in read(
        write_report(run)
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "dreg of 1 sample"),
        ({"estimator": "reinforce"}, "reinforce of 1 sample"),
        ({"estimator": "reinforce", "baseline": "mean"}, "reinforce of 1 sample, baseline mean"),
        (
            {"samples": 16, "mi_samples": 1, "augment": "kl", "lambda": 0.5},
            "dreg of 16 samples, 1 for the information (grouping likelihood), kl with lambda 0.5",
        ),
    ],
)
def test_a_monte_carlo_objective_in_words(config: dict[str, Any], words: str) -> None:
    assert MonteCarloConfig(**config).words == f"objective monte-carlo: {words}"
