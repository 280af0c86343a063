"""The microscope in a real browser: its numbers are those of `infolm score`."""

import csv
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.exports.base import export, made
from infolm.families.base import open_run
from infolm.families.running.scoring import NeuralScorer, NgramScorer, ScoreSettings, sentences_of
from infolm.models.recurrent import RecurrentConfig
from infolm.models.transformer import TransformerConfig
from infolm.nn.cells.base import CELLS
from infolm.training.run import RunFolder

LINES = ["the cat sees a dog", "a zebra hears the Bird, and the bird sleeps", "then the dog"]
SIZES = {"embedding": 8, "hidden": 12, "layers": 3}
MODELS = {
    **{f"cell {cell}": RecurrentConfig(**SIZES, cell=cell) for cell in CELLS},
    **{
        f"mogrifier {gate}, {connections}": RecurrentConfig(
            **SIZES,
            capped=True,
            connections=connections,
            mogrifier={"rounds": 5, "rank": rank, "gate": gate, "zigzag": gate != "affine"},
        )
        for gate, rank, connections in (
            ("linear", 3, "residual"),
            ("affine", 0, "skip"),
            ("constant", 0, "skip-raw"),
        )
    },
    "untied": RecurrentConfig(**SIZES, tied=False, connections="skip", softmax={"projected": True}),
    "mixture": RecurrentConfig(**SIZES, last_hidden=7, softmax={"experts": 3}),
    "attention": TransformerConfig(hidden=12, heads=3, layers=2, context=6),
    "near-sighted": TransformerConfig(hidden=12, heads=2, layers=1, context=1, tied=False),
}
CACHE = "7,0.3,0.5"


def as_run(trained: Path, name: str, config, tokenizer: Tokenizer | None = None):
    """The trained run with another model in it, at random and far from uniform."""
    run = open_run(trained)
    tokenizer = tokenizer or run.tokenizer
    torch.manual_seed(len(name))
    model = config.build(len(tokenizer)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    recipe = run.recipe.model_copy(update={"model": config})
    path = trained.parent / name
    if not path.exists():
        path.symlink_to(trained)
    return replace(run, model=model, recipe=recipe, folder=RunFolder(path), tokenizer=tokenizer)


class Microscope:
    """A page that was opened, and what it finds."""

    def __init__(self, browser, path: Path, **context) -> None:
        self.page = browser.new_context(**context).new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self._heard(message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("body[data-ready=yes]")

    def _heard(self, message) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def type(self, text: str) -> None:
        """And wait until it has been read."""
        self.page.evaluate("document.body.dataset.scored = 'no'")
        self.page.fill("#text", text)
        self.settle()

    def settle(self) -> None:
        self.page.wait_for_selector("body[data-scored=yes]")
        assert not self.errors

    def rows(self, by: str) -> dict[str, list[dict[str, str]]]:
        """Of the CSV file, by model."""
        with self.page.expect_download() as download:
            self.page.click(f"#csv-{by}")
        found = defaultdict(list)
        with Path(download.value.path()).open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                found[row["model"]].append(row)
        return found


def written(runs, tmp_path, **options) -> Path:
    out = tmp_path / "page.html"
    export(runs[0], made("page", options), out, *runs[1:])
    return out


def agree(found, scorer, settings=None, tolerance=1e-4, lines=LINES) -> None:
    """Tokens of the page against `infolm score`."""
    scored = scorer.score(sentences_of(lines), settings or ScoreSettings(top=0))
    true = [token for sentence in scored for token in sentence.tokens]
    assert [row["token"] for row in found] == [token.token for token in true]
    for key in ("start", "end"):
        assert [int(row[key]) for row in found] == [getattr(token, key) for token in true]
    surprisals = [float(row["surprisal"]) for row in found]
    assert surprisals == pytest.approx([token.surprisal for token in true], abs=tolerance)
    words = [float(row["word_surprisal"]) for row in found]
    known = [s.words[token.word].surprisal for s in scored for token in s.tokens]
    assert words == pytest.approx(known, abs=tolerance)


@pytest.fixture(scope="module")
def runs(trained):
    return [as_run(trained, name, config) for name, config in MODELS.items()]


@pytest.fixture(scope="module")
def whole(runs, browser, tmp_path_factory):
    return Microscope(browser, written(runs, tmp_path_factory.mktemp("page")))


def test_every_model_gives_the_numbers_of_score(whole, runs):
    whole.type("\n".join(LINES))
    found = whole.rows("token")
    assert set(found) == {*MODELS, "n-grams"}
    for run in runs:
        agree(found[run.folder.path.name], NeuralScorer(run))
        ranks = [int(row["rank"]) for row in found[run.folder.path.name]]
        true = NeuralScorer(run).score(sentences_of(LINES), ScoreSettings())
        assert ranks == [token.rank for s in true for token in s.tokens]
    agree(found["n-grams"], NgramScorer(runs[0]))
    assert all(url.startswith(("file:", "blob:", "data:")) for url in whole.requests)


def test_cache_and_carried_context(whole, runs):
    whole.type("\n".join(LINES))
    whole.page.evaluate("document.body.dataset.scored = 'no'")
    whole.page.check("#cache")
    for name, value in zip(("window", "weight", "flatness"), CACHE.split(","), strict=True):
        whole.page.fill(f"#{name}", value)
        whole.page.dispatch_event(f"#{name}", "change")
    whole.settle()
    found = whole.rows("token")
    for run in runs:
        settings = ScoreSettings(cache=CACHE, context="carried")
        agree(found[run.folder.path.name], NeuralScorer(run), settings)
    agree(found["n-grams"], NgramScorer(runs[0]), ScoreSettings(context="carried"))
    whole.page.uncheck("#cache")
    whole.page.uncheck("#carried")
    whole.settle()


def test_what_is_typed_later_is_read_behind_what_stands(whole, runs):
    """The state that was kept is that of the text as it is now."""
    for text in ("the cat", "the cat sees", "the dog sees a bird", "the dog"):
        whole.type(text)
        agree(whole.rows("token")["cell lstm"], NeuralScorer(runs[2]), lines=[text])
    assert runs[2].folder.path.name == "cell lstm"


def test_text_is_never_markup(whole):
    whole.type("<img src=x onerror=alert(1)> <b>the</b>")
    assert whole.page.locator("#panels img, #panels b, #detail img").count() == 0
    assert "<b>the</b>" in whole.page.locator(".panel").first.inner_text()


def test_words_are_reached_by_keys_and_named_for_screen_readers(whole):
    whole.type("the cat sees")
    page = whole.page
    page.locator(".word").first.focus()
    page.keyboard.press("ArrowRight")
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused.startswith("cat: ")
    assert "bits" in focused
    detail = page.locator("#detail").inner_text()
    assert all(name in detail for name in MODELS)
    assert detail.count(" %") >= 6 * len(MODELS)
    assert page.locator(".word[tabindex='0']").count() == len(MODELS) + 1


def test_it_writes_on_from_the_cursor(whole):
    whole.type("the cat dog")
    page = whole.page
    page.evaluate("document.getElementById('text').setSelectionRange(7, 7)")
    page.fill("#temperature", "0.05")
    page.fill("#count", "5")
    page.evaluate("document.body.dataset.scored = 'no'")
    page.click("#write")
    whole.settle()
    text = page.input_value("#text")
    assert text.startswith("the cat")
    assert text.endswith(" dog")
    assert len(text.split()) >= 4
    assert "<unk>" not in text


def test_it_fits_a_phone_and_reads_in_the_dark(runs, browser, tmp_path):
    path = written(runs[:1], tmp_path)
    seen = Microscope(browser, path, viewport={"width": 360, "height": 700}, color_scheme="dark")
    seen.type("the cat sees a dog and then the bird")
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360
    for word in seen.page.locator(".word").all():
        ink, paper = (
            word.evaluate(f"e => getComputedStyle(e).{name}")
            for name in ("color", "backgroundColor")
        )
        assert contrast(ink, paper) > 4.5


def contrast(a: str, b: str) -> float:
    """Of WCAG 2, of two colours as 'rgb(r, g, b)'."""

    def luminance(colour: str) -> float:
        parts = np.array([float(p) for p in colour[4:-1].split(",")]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


TOKENIZERS = {
    "characters": lambda: Tokenizer.from_characters(["\n", "<unk>", *" abcdehinorst'.é😀"]),
    "bytes": Tokenizer.from_bytes,
    "pairs": lambda: Tokenizer.from_bpe(["the other cat's bath, the hat\n"] * 9, 290),
    "raw words": lambda: Tokenizer.from_words(
        ["<eos>", "<unk>", "the", "cat", "'s", ".", "do", "n't"],
        pretokenised=False,
        contractions=True,
        lowercase=True,
    ),
    "treebank": lambda: Tokenizer.from_words(["<eos>", "<unk>", "the", "cat", "'s", ".", "U.S."]),
    "marks": lambda: Tokenizer.from_words(
        ["<eos>", "<unk>", "the", "cat's", "."], pretokenised=False
    ),
}
RAW = ["The other cat's bath,  the hat.", "I don't: 1,000.5 in the U.S. 😀 thé 東京 ", "cat"]


def test_every_tokenizer_cuts_as_ours_does(trained, browser, tmp_path):
    config = RecurrentConfig(embedding=4, hidden=5, layers=1)
    runs = [as_run(trained, name, config, make()) for name, make in TOKENIZERS.items()]
    seen = Microscope(browser, written(runs, tmp_path, ngrams=False))
    seen.type("\n".join(RAW))
    found, words = seen.rows("token"), seen.rows("word")
    for run in runs:
        name = run.folder.path.name
        agree(found[name], NeuralScorer(run), lines=RAW)
        scored = NeuralScorer(run).score(sentences_of(RAW), ScoreSettings())
        true = [word for sentence in scored for word in sentence.words]
        assert [row["word"] for row in words[name]] == [word.word for word in true]
        surprisals = [float(row["surprisal"]) for row in words[name]]
        assert surprisals == pytest.approx([word.surprisal for word in true], abs=1e-4)


def test_whole_numbers_are_near_and_said(trained, browser, tmp_path):
    run = open_run(trained)
    exact, rounded = tmp_path / "exact.html", tmp_path / "rounded.html"
    export(run, made("page", {"ngrams": False}), exact)
    export(run, made("page", {"ngrams": False, "weights": "int8"}), rounded)
    assert rounded.stat().st_size < exact.stat().st_size
    seen = Microscope(browser, rounded)
    seen.type("\n".join(LINES))
    agree(seen.rows("token")[trained.name], NeuralScorer(run), tolerance=0.3)
    assert "int8" in seen.page.locator("#convention").inner_text()


def test_each_model_reads_the_first_text_once(trained, browser, tmp_path):
    runs = [open_run(trained), as_run(trained, "other", RecurrentConfig(**SIZES))]
    page = browser.new_context().new_page()
    page.add_init_script(
        """globalThis.again = 0;
        const replace = Element.prototype.replaceWith;
        Element.prototype.replaceWith = function (...nodes) {
            again++;
            replace.apply(this, nodes);
        };"""
    )
    page.goto(written(runs, tmp_path).as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    assert page.locator(".panel .word").count() > 3
    assert page.evaluate("again") == 0
    assert page.evaluate("performance.getEntriesByName('first words').length") == 1
    page.select_option("#unit", "nats")  # which every panel shows anew
    page.wait_for_function("again >= 3")


def test_only_the_page_takes_several_runs(trained, infolm, tmp_path):
    done = infolm("export", trained, trained, "--to", "transformers", "--out", tmp_path / "out")
    assert done.code == 2
    assert "--to transformers holds one run, not 2" in done.err
    assert not list(tmp_path.iterdir())


def test_what_the_page_cannot_hold_is_refused(trained, tmp_path):
    pieces = Tokenizer.from_wordpiece(["the cat sees a dog\n"] * 9, 60)
    run = as_run(trained, "pieces", RecurrentConfig(embedding=4, hidden=5, layers=1), pieces)
    with pytest.raises(InfolmError, match="word pieces"):
        written([run], tmp_path, ngrams=False)
    assert not list(tmp_path.iterdir())
