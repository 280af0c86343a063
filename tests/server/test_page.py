"""The page in a real browser: by pointer and by keyboard, and nothing on it is markup."""

import json
import shutil

import pytest
from serving import MARKUP, served

BAD = '<img src=x onerror=alert(1)><script>alert("1")</script>'
HURRIED = "const wait = setTimeout; setTimeout = (call, ms) => wait(call, ms / 10);"


@pytest.fixture
def opened(browser):
    """A page at an address, which must not have an error, ask elsewhere or say `alert`."""
    wrong, contexts = [], []

    def at(address, width=1000, scheme="light", hurried=False):
        viewport = {"width": width, "height": 800}
        contexts.append(browser.new_context(viewport=viewport, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        if hurried:  # what the page does every two seconds it does ten times as often
            page.add_init_script(HURRIED)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("request", lambda r: r.url.startswith(address) or wrong.append(r.url))
        page.goto(address)
        return page

    yield at
    for context in contexts:
        context.close()
    assert not wrong


pytestmark = pytest.mark.filterwarnings("ignore")


def test_one_writes_and_scores(opened, server):
    page = opened(server[0])
    page.fill("#prompt", f"the {BAD}")
    page.press("#prompt", "Control+Enter")
    page.locator("#written b", has_text=" ").wait_for()
    page.locator("#stop[disabled]").wait_for()
    assert page.text_content("#written").startswith(f"the {BAD}")  # as text, not as markup
    page.fill("#text", f"the cat sees a dog\na zebra {BAD}")
    page.fill("[name=segment]", "2")
    page.fill("[name=rate]", "1")
    for name in ("cache", "dynamic"):
        page.check(f"#score [name={name}]")
    page.click("#score button[type=submit]")
    page.locator("#scored .line >> nth=7").wait_for()
    methods = page.locator("#scored .line .method").all_text_contents()
    assert methods == ["as it is", "with a cache", "dynamic", "both"] * 2
    sums = page.locator("#scored .line small:last-child").all_text_contents()
    assert len(set(sums[4:])) == 4  # by the second line each has learnt from the first
    assert "zebra" in page.locator("#scored .unknown").all_text_contents()
    line = page.locator("#scored .line >> nth=1")
    line.focus()
    line.press("ArrowRight")
    line.press("ArrowRight")
    assert page.text_content("#detail").startswith("cat: ")
    assert page.locator("#scored img, #scored script, #written img").count() == 0


def test_markup_of_the_corpus_is_shown_as_text(opened, server):
    page = opened(server[0])
    page.select_option("#model", "markup")
    page.fill("#prompt", "the")
    page.press("#prompt", "Control+Enter")
    page.locator("#written b", has_text=MARKUP).wait_for()
    page.fill("#text", f"the {MARKUP} is sun")
    page.click("#score button[type=submit]")
    line = page.locator("#scored .line").first
    line.press("ArrowRight")
    line.press("ArrowRight")
    assert page.text_content("#detail").startswith(f"{MARKUP}: ")
    assert MARKUP in page.text_content("#detail").removeprefix(MARKUP)  # among the likeliest
    page.select_option("#model", "mim")
    page.click("#draw")
    page.locator("#points title", has_text=MARKUP).first.wait_for(state="attached")
    page.fill("#asked", f"the {MARKUP} is sun")
    page.press("#asked", "Enter")
    page.locator("#neighbours li", has_text=MARKUP).first.wait_for()
    page.fill("#a", f"the {MARKUP} is sun")
    page.fill("#b", "the sun is moon")
    page.press("#b", "Enter")
    page.locator("#way:not([hidden])").wait_for()
    assert page.locator("img, body script").count() == 0


def test_one_goes_about_among_codes_by_keyboard(opened, server):
    page = opened(server[0], width=390, scheme="dark")
    page.select_option("#model", "mim")
    page.press("#diagnose", "Enter")
    page.locator("#verdict strong").wait_for()
    page.press("#draw", "Enter")
    page.locator("#points svg").press("ArrowRight")
    page.locator("#chosen li").first.wait_for()
    sentence = page.text_content("#chosen .sentence")
    assert page.locator("#points .chosen title").text_content() == sentence
    assert "mean" in page.locator("#chosen dt").all_text_contents()
    page.locator("#chosen button", has_text="Walk from here").press("Enter")
    assert page.input_value("#start") == sentence
    page.press("#start", "Enter")
    page.locator("#walked:not([hidden])").wait_for()
    page.press("#value", "End")
    assert "its own" in page.text_content("#walked output")
    page.fill("#a", "the sun")
    page.fill("#b", BAD)
    page.press("#b", "Enter")
    page.locator("#way:not([hidden])").wait_for()
    page.press("#step", "ArrowRight")
    assert page.text_content("#way output") == "1 of 16"
    page.fill("#asked", f"the moon {BAD}")
    page.press("#asked", "Enter")
    page.locator("#neighbours li >> nth=7").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.fixture
def folder(tmp_path, trained):
    """A folder of two runs; the name, the title and the events of one are markup."""
    for name in ("good", BAD.replace("/", "-")):
        shutil.copytree(trained, tmp_path / name, ignore=shutil.ignore_patterns("checkpoints"))
    path = tmp_path / BAD.replace("/", "-")
    recipe = (path / "recipe.yaml").read_text()
    title = next(line for line in recipe.splitlines() if line.startswith("title:"))
    (path / "recipe.yaml").write_text(recipe.replace(title, f"title: {json.dumps(BAD)}"))
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "event", "step": 60, "name": BAD}) + "\n")
        file.write(json.dumps({"kind": "step", "step": 61, f"x/{BAD}": 1.0}) + "\n{damaged\n")
    return tmp_path


def test_curves_move_while_a_run_is_trained(opened, folder, trained):
    with served([], watched=folder) as (address, _):
        page = opened(address, width=390, scheme="dark", hurried=True)
        page.locator("#curves polyline >> nth=3").wait_for()  # two runs, training and validation
        assert page.is_hidden("#models")
        rows = page.locator("#rows tr")
        assert rows.count() == 2
        texts = rows.all_inner_texts()
        assert any(BAD in text and "1 damaged lines" in text for text in texts)
        assert page.locator("#rows img, #rows script, select img").count() == 0
        option = page.locator("#quantity option", has_text="training: script>").count()
        assert option == 1
        # The curve that the keyboard has reached is read out.
        page.locator("#curves svg").press("Home")
        assert page.text_content("#reading").startswith("step ")
        before = page.locator("#curves polyline").first.get_attribute("points")
        records = [
            {"kind": "step", "step": 80 + i, "likelihood/nll": 1.0, "progress": 0.9}
            for i in (0, 20)
        ]
        with (folder / "good" / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
        now = "document.querySelector('#curves polyline').getAttribute('points')"
        page.wait_for_function(f"before => {now} !== before", arg=before)
        page.locator("#rows tr", has_text="good").locator("text=100 (90 %)").wait_for()
        page.locator("#rows tr", has_text="good").locator("text=stopped").wait_for()
        shutil.copytree(trained, folder / "later")
        page.locator("#rows tr", has_text="later").wait_for()
        box = page.locator("#rows tr", has_text="good").locator("input")
        box.press("Space")
        page.locator("#curves polyline >> nth=2").wait_for(state="detached")
        page.fill("#filter", "lat")
        assert rows.count() == 1
        for width in (390, 1000):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") == width
