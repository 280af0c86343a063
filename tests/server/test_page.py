"""The page in a real browser."""

import shutil

import pytest


@pytest.fixture
def page(server):
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.wrong = []
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.goto(server[0])
        yield page
        browser.close()


@pytest.mark.filterwarnings("ignore")
def test_one_writes_scores_and_interpolates(page, trained):
    page.fill("#prompt", "the <b>cat</b>")
    page.press("#prompt", "Control+Enter")
    page.locator("#written b", has_text=" ").wait_for()
    page.locator("#stop[disabled]").wait_for()
    assert page.text_content("#written").startswith("the <b>cat</b>")  # as text, not as markup
    page.fill("#text", "the cat sees a dog\na zebra")
    page.click("#score button[type=submit]")
    page.locator("#scored .line >> nth=1").wait_for()
    assert page.locator("#scored .unknown").all_text_contents() == ["zebra"]
    page.select_option("#model", "mim")
    page.fill("#a", "the sun")
    page.fill("#b", "the sea is moon")
    page.click("#latent button[type=submit]")
    page.locator("#way:not([hidden])").wait_for()
    page.press("#step", "ArrowRight")
    assert page.text_content("#way output") == "1 of 16"
    assert not page.wrong
