"""A real browser, for tests of pages."""

import shutil

import pytest


@pytest.fixture(scope="module")
def browser():
    """Chromium, or a reason to skip. One for a module, not for the session: while Playwright is
    started, its thread has a running event loop, and no other test could start one there."""
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()
