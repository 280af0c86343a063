"""The report of a run: complete, true to the run, and sufficient unto itself."""

import json
import math
import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest
import yaml
from safetensors.torch import load_file
from training_tiny import Silent, quiet

from infolm.config import Expected, Recipe
from infolm.data import synthetic
from infolm.data.corpora import load as load_corpus
from infolm.data.corpora import truth
from infolm.data.synthetic import true_entropy
from infolm.errors import InfolmError
from infolm.evaluation import measurement, suite
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.suite import BASELINE, LANGUAGE
from infolm.families.report import write_report
from infolm.families.running import report as running
from infolm.families.running.report import measurement_table
from infolm.families.running.run import LanguageRun
from infolm.families.train import train
from infolm.generation.sampling import SamplingSettings
from infolm.generation.text import write
from infolm.metrics import EVENT, described, within
from infolm.models.recurrent import RecurrentConfig
from infolm.nn.cells.base import CELLS
from infolm.reports.history import History
from infolm.reports.page import number
from infolm.training.run import RunFolder, read_metrics

EVIL = "<script>alert(1)</script>"
VOID = {"meta", "br", "wbr", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """A page read strictly: every element closed in its turn."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # the element a text stands in, and the text
        self.rows: list[list[str]] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        """What a person reads, on one line."""
        shown = "".join(text for tag, text in self.texts if tag not in {"style", "title"})
        return " ".join(shown.split())

    def inside(self, tag: str) -> list[str]:
        return [text for where, text in self.texts if where == tag]

    def row(self, split: str, method: str) -> list[str]:
        """The cells of a method in the group of rows of a split."""
        names = [row[0] for row in self.rows]
        start = names.index(split)
        return self.rows[names.index(method, start)][1:]


def recipe(text: Path) -> Recipe:
    return Recipe.model_validate(
        {
            "title": f"Cats & {EVIL}",
            "paper": "<i>nobody</i>",
            "expected": {"valid": 12.5, "test": 13.5, "source": "a <guess>"},
            "data": {"path": str(text), "pretokenised": True},
            "feed": {"batch": 4, "bptt": 8, "variable": False},
            "model": {"embedding": 8, "hidden": 10, "layers": 2},
            "optimiser": {"kind": "sgd", "learning_rate": 1.0},
            "averaging": {"kind": "triggered", "latest": 0.5},
            "train": {
                "epochs": 50,
                "max_steps": 6,
                "validate_every": 3,
                "validation_streams": 2,
                "log_every": 1,
                "accelerator": "cpu",
            },
        }
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps on a text in which every other word is a script."""
    folder = tmp_path_factory.mktemp("report")
    text = folder / "cats.txt"
    lines = [f"the cat {i % 7} sees {EVIL} & {EVIL} {i % 5} times" for i in range(400)]
    text.write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        train(recipe(text), folder / "a run", False, Silent(), quiet)
    return folder / "a run"


@pytest.fixture(scope="module")
def page(original: Path) -> Page:
    """Its report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(original.parent / "tokenised"))
        path = write_report(original)
    assert path == original / "report.html"
    return Page(path)


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A copy of that run, to do with as one likes: no manifest remembers its recipe."""
    ignored = shutil.ignore_patterns("report.html", "manifest.json")
    return Path(shutil.copytree(original, tmp_path / "a run", ignore=ignored))


def test_the_page_is_whole_and_needs_nothing_else(page: Page) -> None:
    forbidden = {"script", "link", "img", "iframe", "object", "embed", "form", "a", "base"}
    assert not forbidden & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        for name in ("href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    style = "".join(page.inside("style"))
    assert "@import" not in style
    assert "url(" not in style
    identities = [found["id"] for _, found in page.tags if "id" in found]
    assert len(identities) == len(set(identities))


def test_it_opens_with_what_was_trained_on_what(original: Path, page: Page) -> None:
    weights = sum(t.numel() for t in load_file(RunFolder(original).model).values())
    vocabulary = len(json.loads((original / "tokenizer.json").read_text())["model"]["vocab"])
    losses = [
        r["loss"] for r in read_metrics(original / "metrics.jsonl") if r["kind"] == "validation"
    ]
    text = Path(yaml.safe_load((original / "recipe.yaml").read_text())["data"]["path"])
    opened = LanguageRun.open(original)
    assert f"with {weights:,} parameters, trained on {text}" in page.text
    assert f"({len(opened.corpus.splits['train'].tokens):,} training tokens" in page.text
    assert f"a vocabulary of {vocabulary}; tokens are words)" in page.text
    assert "After 6 steps (0 of 50 epochs complete)" in page.text
    assert f"the best validation perplexity is {math.exp(min(losses)):.2f}" in page.text
    assert "Training is finished." in page.text


def verdict(path: Path) -> str:
    """The first paragraph of a report, as HTML."""
    found = re.search(r"</h1>\s*<p class=\"verdict\">(.*?)</p>", path.read_text())
    assert found
    return found.group(1)


def test_it_opens_with_a_verdict(original: Path, page: Page) -> None:
    """Six steps are too few, and the recipe expects a perplexity of 12.5."""
    said = verdict(original / "report.html")
    assert said.startswith("<strong>Worse than what</strong> this recipe should reach (perplexity")
    assert "<strong>Far worse</strong> than the 5-grams of the same text" in said
    assert f"theirs {float(page.row('Validation split', BASELINE)[0]):.1f})" in said
    assert said.endswith("train longer (<code>train.max_steps=12</code>).")


@pytest.mark.parametrize(
    ("difference", "told"),
    [
        (0.21, "Far worse"),
        (0.19, "Worse"),
        (0.021, "Worse"),
        (0.019, "No better"),
        (-0.019, "No better"),
        (-0.021, "Better"),
        (-0.21, "Far better"),
    ],
)
def test_the_verdict_beside_n_grams_is_by_the_difference(difference: float, told: str) -> None:
    said = running.beside_ngrams(4.0 + difference, 4.0, "train longer")
    assert said.startswith(f"<strong>{told}</strong> than")
    assert f"perplexity {math.exp(4 + difference):.1f}, theirs 54.6" in said
    assert ("train longer" in said) == (difference > -0.02)


@pytest.mark.parametrize(
    ("reached", "finished", "told"),
    [
        (90.0, True, "Better than expected"),
        (97.0, True, "As expected"),
        (103.0, False, "As expected"),
        (110.0, True, "Worse than what"),
        (110.0, False, "Not yet what"),
    ],
)
def test_the_verdict_beside_what_is_expected(reached: float, finished: bool, told: str) -> None:
    expected = Expected(valid=100, test=95, source="a table")
    loss = math.log(reached)
    assert f"<strong>{told}</strong>" in running.beside_expected(expected, loss, [], finished)
    static = Measurement("perplexity", 50.0, "", None, 9, "valid", "static, one stream", "")
    exact = running.beside_expected(expected, loss, [static], finished)
    assert "perplexity 50.00, expected 100.00" in exact
    bits = expected.model_copy(update={"metric": "bits_per_character"})
    assert running.beside_expected(bits, loss, [static], finished) == ""
    assert running.beside_expected(None, loss, [static], finished) == ""


def rewritten(run: Path, losses: list[float], *events: str) -> str:
    """The verdict on the run, had its validations been these."""
    records = [
        {"kind": "validation", "step": step, "epoch": 0, "loss": loss}
        for step, loss in zip(range(7 - len(losses), 7), losses, strict=True)
    ]
    records += [{"kind": "event", "step": 6, "name": name} for name in events]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    return verdict(write_report(run))


def test_the_verdict_tells_of_the_course(run: Path) -> None:
    assert "was still falling at the end: train longer" in rewritten(run, [3.0, 2.0, 1.0])
    learnt_by_heart = rewritten(run, [3.0, 1.0, 2.0], "diverged")
    assert "has risen by 1.00 nats since step 5" in learnt_by_heart
    assert "Training diverged and went back" in learnt_by_heart
    steady = rewritten(run, [3.0, 1.0, 1.0])
    assert "falling" not in steady
    assert "risen" not in steady
    assert "diverged" not in steady


def test_a_panel_without_a_value_is_not_drawn(run: Path) -> None:
    """A short training may have validations and no record of steps: neither speed nor loss."""
    rewritten(run, [3.0, 2.0])
    page = (run / "report.html").read_text()
    assert 'id="validation"' in page
    assert 'id="training"' not in page
    assert "tokens/s" not in page


def test_what_comes_from_the_run_is_escaped(page: Page) -> None:
    assert page.inside("h1") == [f"Cats & {EVIL}"]
    assert "After <i>nobody</i>" in page.text
    assert "expected: a <guess>" in page.text
    assert EVIL in "".join(page.inside("div"))  # in the samples, as text
    assert EVIL in "".join(page.inside("pre"))  # in the recipe


def test_a_run_on_ones_own_text_names_that_text_and_expects_nothing(run: Path) -> None:
    """As `infolm train awd-lstm/ptb data.path=cats.txt` left it, before and after it forgot what
    the recipe expects of its corpus."""
    tree = yaml.safe_load((run / "recipe.yaml").read_text())
    text = tree["data"]["path"]
    tree["data"]["corpus"] = "ptb"
    for title, expected in [
        ("A run on the Penn Treebank", tree["expected"]),
        ("a run on it", None),
    ]:
        tree |= {"title": title, "expected": expected}
        (run / "recipe.yaml").write_text(yaml.safe_dump(tree))
        page = Page(write_report(run))
        assert page.inside("h1") == [f"a run on {text}" if expected else title]
        assert f"trained on {text} (" in page.text
        assert "expected: a <guess>" not in [row[0] for row in page.rows]


def test_the_baseline_is_there_before_any_measurement(original: Path, page: Page) -> None:
    assert f"infolm evaluate '{original}' --cache --baseline" in page.text
    assert not (original / "measurements.json").exists()
    opened = LanguageRun.open(original)
    truth = suite.baseline(opened.corpus, ["valid", "test"], {})
    for split, title, expected in (
        ("valid", "Validation split", "12.50"),
        ("test", "Test split", "13.50"),
    ):
        values = {m.metric: m for m in truth if m.split == split and m.method == BASELINE}
        cells = page.row(title, BASELINE)
        assert cells[0] == f"{values['perplexity'].value:.2f}"
        assert cells[2] == f"{values['nll'].value:.4f}"
        assert cells[-1] == f"{values['nll'].tokens:,}"
        assert page.row(title, "expected: a <guess>")[0] == expected


def test_measurements_are_shown_as_they_were_measured(run: Path) -> None:
    opened = LanguageRun.open(run)
    opened.evaluate(chunk=50, cache="20,0.1,1")
    before = (run / "measurements.json").read_bytes()
    page = Page(write_report(run))
    assert (run / "measurements.json").read_bytes() == before
    assert "not been measured" not in page.text
    kept = measurement.read(run / "measurements.json")
    assert len({m.method for m in kept}) == 2
    for found in kept:
        title = {"valid": "Validation split", "test": "Test split"}[found.split]
        cells = page.row(title, found.method)
        if found.metric == "perplexity":
            assert cells[0] == f"{found.value:.2f}"
        if found.metric == "nll":
            assert cells[2] == f"{found.value:.4f}"
        assert cells[-1] == f"{found.tokens:,}"
    methods = [row[0] for row in page.rows[1:]]
    assert methods.index(BASELINE) == len({m.method for m in kept}) + 1  # after the model's own
    assert methods.count(BASELINE) == 2
    assert f"Counted: {measurement.CONVENTION}." in page.text


def measured(metric: str, value: float, stderr: float | None, method: str) -> Measurement:
    return Measurement(metric, value, "", stderr, 1234, "test", method, "")


def test_what_the_model_writes_is_a_table_of_its_own(run: Path) -> None:
    def text(metric: str, value: float, stderr: float | None, split: str) -> Measurement:
        return Measurement(metric, value, "", stderr, 99, split, "of <its> text", "by folds")

    kept = [
        measured("nll", 1.5, 0.01, "static"),
        text("reverse_nll", 5.5, 0.1, "test"),
        text("reverse_perplexity", 244.69, 2.5, "test"),
        text("mutual_information", 0.1234, 0.01, "generated"),
        text("mutual_information_shuffled", 0.0, None, "generated"),
    ]
    (run / "measurements.json").write_text(measurement.as_json(kept))
    page = Page(write_report(run))
    at = page.rows.index(["measure", "value"])
    assert page.rows[at + 1 :][:4] == [
        ["of <its> text"],
        ["reverse perplexity, test split", "244.69", "± 2.50"],
        ["mutual information, nats", "0.1234", "± 0.0100"],
        ["the same of shuffled pairs", "0.0000", ""],
    ]
    assert ["of <its> text"] not in page.rows[:at]
    assert "Generated text" in page.text


def test_the_table_has_errors_bits_and_the_best_in_bold(tmp_path: Path) -> None:
    table = measurement_table(
        [
            measured("nll", 1.5, 0.01, "static"),
            measured("perplexity", 4.4817, 0.0448, "static"),
            measured("bits_per_character", 2.164, 0.0144, "static"),
            measured("nll", 1.4, None, "with <cache>"),
            measured("perplexity", 4.0552, None, "with <cache>"),
        ],
        None,
    )
    file = tmp_path / "table.html"
    file.write_text(table)
    page = Page(file)
    assert page.rows[0] == [
        "method",
        "perplexity",
        "nats per token",
        "bits per character",
        "tokens",
    ]
    assert page.row("Test split", "static") == [
        *("4.48", "± 0.04", "1.5000", "± 0.0100", "2.1640", "± 0.0144"),
        "1,234",
    ]
    assert page.row("Test split", "with <cache>") == ["4.06", "", "1.4000", "", "", "", "1,234"]
    assert re.findall(r'class="best"><th scope="row">([^/]*)<', table) == ["with &lt;cache&gt;"]
    assert "Validation" not in table


def test_what_is_expected_stands_below_its_own_metric(tmp_path: Path) -> None:
    expected = Expected(valid=1.1, test=1.2, metric="bits_per_character", source="a table")
    found = Measurement("perplexity", 3.0, "perplexity", None, 9, "test", "static", "")
    file = tmp_path / "table.html"
    file.write_text(measurement_table([found], expected))
    page = Page(file)
    assert page.rows[0] == ["method", "perplexity", "bits per character", "tokens"]
    assert page.row("Test split", "expected: a table") == ["", "", "1.2000", "", ""]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of six steps on a text whose language is known."""
    folder = tmp_path_factory.mktemp("drawn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        patch.setattr(synthetic, "SIZES", {"train": 20_000, "valid": 2500, "test": 2500})
        tree = recipe(folder).model_dump() | {"data": {"corpus": "grammar"}}
        train(Recipe.model_validate(tree), folder / "run", False, Silent(), quiet)
        yield folder / "run"


def test_where_the_language_is_known_the_truth_is_shown(
    drawn: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFOLM_CACHE", str(drawn.parent / "tokenised"))
    entropy = true_entropy("grammar")
    opened = LanguageRun.open(drawn)
    known = truth(opened.recipe.data, opened.tokenizer)
    assert known is not None
    loss = min(
        r["loss"] for r in read_metrics(drawn / "metrics.jsonl") if r["kind"] == "validation"
    )
    above = loss + known.log_probs(opened.corpus.splits["valid"].tokens).mean()
    for measure in (False, True):  # a report shows it whether or not `evaluate` was asked
        if measure:
            opened.evaluate(chunk=50, cache="20,0.1,1")
        page = Page(write_report(drawn))
        assert f": {above:.3f} nats per token above the true entropy of {entropy:.3f}." in page.text
        assert f"a language whose entropy is {entropy:.4f} nats per token" in page.text
        assert ("not been measured" in page.text) != measure
        for title in ("Validation split", "Test split"):
            cells = page.row(title, "true entropy")
            assert cells[:4] == [f"{math.exp(entropy):.2f}", "", f"{entropy:.4f}", ""]
            itself = float(page.row(title, LANGUAGE)[2])
            baseline = page.row(title, BASELINE)
            assert float(baseline[4]) == pytest.approx(float(baseline[2]) - itself, abs=2e-4)
            assert page.row(title, LANGUAGE)[4] == ""
    bold = re.findall(r'class="best"><th scope="row">([^/]*)<', (drawn / "report.html").read_text())
    assert bold == [BASELINE] * 2  # six steps are few; the language itself is no contestant
    kept = measurement.read(drawn / "measurements.json")
    assert sum(m.metric == "nll_above_entropy" for m in kept) == 4


def test_real_text_has_no_known_truth(page: Page) -> None:
    assert "entropy" not in page.text


@pytest.mark.parametrize(
    ("value", "shown"), [(98.416, "98.42"), (1234.5, "1,234.50"), (1e300, "1.00e+300")]
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert number(value, 2) == shown


def test_the_curve_has_its_points_and_its_trigger(page: Page) -> None:
    labels = page.inside("text")
    assert {"training", "validation", "triggered", "nats per token", "perplexity"} <= set(labels)
    assert sum(found.get("id") in {"event-0", "event-1"} for _, found in page.tags) == 1
    assert "Triggered at step 3: from here on the mean" in page.text
    assert "reads its split as 2 parallel streams" in page.text


def test_two_means_are_shown_and_explained(run: Path) -> None:
    tree = yaml.safe_load((run / "recipe.yaml").read_text())
    tree["averaging"] = {"kind": "two-tailed"}
    (run / "recipe.yaml").write_text(yaml.safe_dump(tree))
    losses = {"answer": "long", "loss": 3.0, "raw": 4.0, "short": 3.5, "long": 3.0}
    lengths = {"short_length": 3, "long_length": 6}
    records = [
        r | (losses | lengths if r["kind"] == "validation" else {})
        for r in read_metrics(run / "metrics.jsonl")
        if r["kind"] != "event"
    ]
    names = ("switched", "emptied", "restarted", "diverged")
    records += [{"kind": "event", "step": 6, "name": name} for name in names]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    page = Page(write_report(run))
    assert {"raw", "short", "long", *names} <= set(page.inside("text"))
    assert (
        "validation losses of the iterate itself (raw) and of the short and the long" in page.text
    )
    for name in names:
        assert f"{name.capitalize()} at step 6: {described(name, EVENT).meaning}." in page.text
    assert "a single iterate" not in page.text


def regularise(run: Path, *events: str, **values: float) -> None:
    """Give the run a regulariser called bmi, with these quantities at every step."""
    quantities = {f"bmi/{name}": value for name, value in values.items()}
    records = [
        r | (quantities if r["kind"] == "step" else {}) for r in read_metrics(run / "metrics.jsonl")
    ]
    records += [{"kind": "event", "step": 3, "name": name} for name in events]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_regulariser_has_its_section(run: Path) -> None:
    regularise(run, "phase two", loss=1.2, jensen_shannon=-1.2, mine=0.25, accuracy=0.625, raml=4.5)
    page = Page(write_report(run))
    assert "Regulariser: bmi" in page.inside("h2")
    assert "A critic reads two sentences" in page.text
    assert f"Phase two at step 3: {described('phase two', EVENT).meaning}." in page.text
    assert {"bound (eq. 6)", "MINE (eq. 4)", "an untrained critic"} <= set(page.inside("text"))
    assert page.row("At the end", described("bmi/mine").meaning) == ["0.2500", "± 0.0000", "6"]
    assert page.row("At the end", described("bmi/loss").meaning) == ["1.2000", "± 0.0000", "6"]
    assert "at chance" not in page.text
    test_the_page_is_whole_and_needs_nothing_else(page)


def test_the_validations_after_the_switch_are_shown_again(run: Path) -> None:
    assert "at their own scale" not in Page(write_report(run)).text  # without a regulariser
    regularise(run, accuracy=0.625)  # phase one alone: from the trigger of averaging on
    page = Page(write_report(run))
    assert "The validations from step 3 on, at their own scale." in page.text
    assert sum(tag == "svg" for tag, _ in page.tags) == 3


def test_the_troubles_of_a_regulariser_are_told(run: Path) -> None:
    regularise(run, accuracy=0.5, mine=9.0, effective=0.1)
    tree = yaml.safe_load((run / "recipe.yaml").read_text())
    tree["regularisers"] = {"bmi": {"weight": 0.02, "batch": 20}}
    (run / "recipe.yaml").write_text(yaml.safe_dump(tree))
    text = Page(write_report(run)).text
    assert "The regulariser's weight is 0.02." in text
    for told in (
        "The critic is at chance: in the last 6 records it classifies 0.500 ± 0.000 of the pairs",
        "MINE is 9.00 nats at the end, more than the ln 20 = 3.00",
        "Phase two was requested (regularisers.bmi.phase_two), but no step of it was recorded",
        "The effective share of the importance weights is 0.10 at the end",
    ):
        assert told in text


def test_a_real_regulariser_has_nothing_that_is_not_explained(run: Path, tmp_path: Path) -> None:
    tree = yaml.safe_load((run / "recipe.yaml").read_text())
    tree["regularisers"] = {"bmi": {"switch": 0.5, "batch": 4}}
    train(Recipe.model_validate(tree), tmp_path / "bmi", False, Silent(), quiet)
    page = Page(write_report(tmp_path / "bmi"))
    quantities = {name: each for name, each in within("bmi").items() if name != "pairs"}
    for quantity in quantities.values():
        value, _, records = page.row("At the end", quantity.meaning)
        assert math.isfinite(float(value))
        assert records == ("3" if quantity.meaning.startswith("phase two") else "6")
    assert set(History.of(read_metrics(tmp_path / "bmi/metrics.jsonl")).regularisers["bmi"]) == set(
        quantities
    )
    assert "Phase two at step 3" in page.text
    assert "no step of it was recorded" not in page.text
    assert "In phase two it is 1." in page.text
    last = [r for r in read_metrics(tmp_path / "bmi/metrics.jsonl") if r["kind"] == "validation"][
        -1
    ]
    group = f"On the validation split, {last['bmi/pairs']:,} pairs, at the last validation"
    value, *_ = page.row(group, described("bmi/accuracy").meaning)
    assert float(value) == pytest.approx(last["bmi/accuracy"], abs=1e-4)
    assert "on the validation split" in page.text  # in the legend
    LanguageRun.open(tmp_path / "bmi").evaluate(chunk=20, split="test")
    page = Page(write_report(tmp_path / "bmi"))
    assert "critic of BMI" in page.text
    assert "accuracy, test split" in page.text


def test_a_run_of_one_term_has_no_such_section(page: Page) -> None:
    assert page.inside("h2") == ["Measurements", "Learning curve", "Samples", "Next commands"]
    assert sum(tag == "svg" for tag, _ in page.tags) == 1


def test_an_average_that_never_began_is_said(run: Path) -> None:
    tree = yaml.safe_load((run / "recipe.yaml").read_text())
    tree["averaging"] = {"kind": "tail", "start": 50}
    tree["train"] |= {"max_steps": None, "epochs": 1}
    (run / "recipe.yaml").write_text(yaml.safe_dump(tree))
    records = [r for r in read_metrics(run / "metrics.jsonl") if r["kind"] != "event"]
    for record in records:
        if record["kind"] == "validation":
            record |= {"answer": "raw", "raw": record["loss"]}
    sentence = "Averaging never started, as training ended before step 50 (averaging.start)"
    for epoch in (0, 1):  # not before the end: it may begin yet
        records[-1]["epoch"] = epoch
        text = "".join(json.dumps(record) + "\n" for record in records)
        (run / "metrics.jsonl").write_text(text)
        assert (sentence in Page(write_report(run)).text) == (epoch == 1)


def test_every_cell_has_its_name() -> None:
    assert set(CELLS) == set(get_args(RecurrentConfig.model_fields["cell"].annotation))


def test_samples_are_those_of_the_command(original: Path, page: Page) -> None:
    opened = LanguageRun.open(original)
    texts = write(opened.model, opened.tokenizer, "", 60, 3, 1, SamplingSettings())
    shown = [text for text in page.inside("div") if text.strip()]
    assert shown == [text.strip() for text in texts]
    assert f"infolm generate '{original}' --tokens 60 --num 3 --seed 1" in page.text


def test_the_recipe_the_versions_and_the_commands_are_there(original: Path, page: Page) -> None:
    assert page.inside("pre") == [(original / "recipe.yaml").read_text(encoding="utf-8")]
    assert f"infolm train '{original}' --resume" in page.text
    assert re.search(r"by infolm \S+ with torch \S+ and Python 3\.\d+\.\d+\.", page.text)


def test_a_second_report_takes_the_place_of_the_first(run: Path) -> None:
    first, second = (Page(write_report(run)).text.split("Written on")[0] for _ in range(2))
    assert first == second
    assert not list(run.glob(".report*"))


def test_a_run_killed_before_its_first_validation(run: Path) -> None:
    (run / "model.safetensors").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(lines[0] + "\n" + lines[1][:20])
    shutil.rmtree(run / "checkpoints")
    page = Page(write_report(run))
    assert "After 1 step (0 of 50 epochs complete) there has been no validation yet" in page.text
    assert verdict(run / "report.html").startswith("Too early to tell")
    assert "Training was interrupted before its end and can be resumed." in page.text
    assert "after the first validation" in page.text
    assert "There are no weights to generate with" in page.text
    assert page.row("Test split", BASELINE)


def test_a_run_without_a_single_record(run: Path) -> None:
    for name in ("model.safetensors", "metrics.jsonl"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints")
    page = Page(write_report(run))
    assert "Training has not reached its first checkpoint." in page.text
    assert "No loss has been recorded yet" in page.text
    assert "svg" not in {tag for tag, _ in page.tags}


def test_steps_after_the_last_record_count_if_they_were_saved(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "model.safetensors").unlink()
    page = Page(write_report(run))
    assert "After 6 steps" in page.text


def test_a_run_in_training_is_said_to_be(run: Path) -> None:
    with RunFolder(run).locked():
        page = Page(write_report(run))
    assert "Training was still running when this report was written." in page.text


def test_a_run_short_of_its_end_is_said_to_be_interrupted(run: Path) -> None:
    longer = (run / "recipe.yaml").read_text().replace("max_steps: 6", "max_steps: 60")
    (run / "recipe.yaml").write_text(longer)
    page = Page(write_report(run))
    assert "Training was interrupted before its end and can be resumed." in page.text


def test_the_end_without_its_validation_is_not_the_end(run: Path) -> None:
    records = read_metrics(run / "metrics.jsonl")
    kept = [r for r in records if (r["kind"], r["step"]) != ("validation", 6)]
    assert len(kept) == len(records) - 1
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))
    assert "Training was interrupted before its end" in Page(write_report(run)).text


def test_a_lost_corpus_is_no_obstacle(run: Path, tmp_path: Path) -> None:
    tree = yaml.safe_load((run / "recipe.yaml").read_text())
    tree["data"]["path"] = str(tmp_path / "gone <b>.txt")
    (run / "recipe.yaml").write_text(yaml.safe_dump(tree))
    page = Page(write_report(run))
    assert f"The {BASELINE} baseline is missing: the corpus could not be loaded" in page.text
    assert "Expected: perplexity 12.5 on the validation and 13.5 on the test split" in page.text
    assert "training tokens" not in page.text


def test_the_baseline_of_a_long_text_is_left_to_evaluate(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "BASELINE_TOKENS", 100)
    page = Page(write_report(run))
    assert f"the text is long; infolm evaluate '{run}' --baseline adds it" in page.text


def test_a_title_of_its_own_is_not_needed(run: Path) -> None:
    tree = yaml.safe_load((run / "recipe.yaml").read_text())
    tree |= {"title": "", "paper": "", "expected": None}
    (run / "recipe.yaml").write_text(yaml.safe_dump(tree))
    page = Page(write_report(run))
    assert page.inside("h1") == ["a run"]
    assert "expected:" not in page.text.split("recipe, every value")[0]


def test_without_matplotlib_it_says_what_to_install(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "infolm.reports.curves", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InfolmError, match=r"pip install 'infolm\[report\]'"):
        write_report(run)
    assert not (run / "report.html").exists()


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InfolmError, match=r"no recipe\.yaml"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_text_of_the_fixture_is_what_it_claims(original: Path) -> None:
    """The escaping is put to the test only if scripts are words of the vocabulary."""
    tokenizer = LanguageRun.open(original).tokenizer
    assert tokenizer.unknown(EVIL) == []
    assert load_corpus(LanguageRun.open(original).recipe.data).splits["test"].unknown == 0
